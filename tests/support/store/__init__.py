"""Object stores: in memory, faulty, scripted, real S3 servers, and a bucket's content behind the broker's back."""
