"""A broker that reads the bucket of another cluster and never writes to it."""
