"""Metadata and its like: what clients learn about the cluster and its topics."""
