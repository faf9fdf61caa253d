"""`cluster drain` and `rebalance`: a pure plan of replica moves, a pacer that limits concurrent moves, and their
execution.
"""
