"""`cluster drain` and `rebalance`: a pure plan of replica moves, a pacer for how many at a time, and their
execution.
"""
