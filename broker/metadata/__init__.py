"""What the cluster is: typed records, and the image they add up to."""
