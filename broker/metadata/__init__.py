"""The cluster's metadata: records, the image they add up to, and `cluster.json`, which holds them.

`rows.py` makes every change of a partition's row (leader, epoch, in-sync set, replicas) by the steps of
`row_steps.py`.
"""
