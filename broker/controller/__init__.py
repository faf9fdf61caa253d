"""Who decides for the cluster, and who may serve a bucket at all."""
