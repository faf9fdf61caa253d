"""Client quotas (KIP-13, 124, 546, 599): rates, token buckets, the choice of a client's quota, and its throttle time.
Pure: times are parameters.
"""
