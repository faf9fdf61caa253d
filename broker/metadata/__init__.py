"""Cluster metadata: its records, the image made by applying them, and `cluster.json`, which stores both.

`rows.py` makes every change of a partition's row (leader, epoch, in-sync set, replicas) by the steps of
`row_steps.py`.
"""
