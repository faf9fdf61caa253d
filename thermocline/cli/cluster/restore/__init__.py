"""`cluster restore` and `rebuild`: recover a cluster of which only the bucket is left, or whose `cluster.json` is lost.
"""
