"""`cluster drain` and `rebalance`: a pure plan of which replicas move, a machine of how many at a time, a shell."""
