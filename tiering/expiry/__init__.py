"""What goes from disk and bucket, and when."""
