"""What clients learn of the cluster and its topics."""
