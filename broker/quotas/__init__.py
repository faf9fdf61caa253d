"""Client quotas (KIP-13, 124, 546, 599): rates and token buckets, which quota is a client's, and how long it is muted.
Pure: times are parameters."""
