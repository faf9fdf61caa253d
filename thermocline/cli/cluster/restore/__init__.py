"""`cluster restore` and `rebuild`: for when only the bucket is left, or its `cluster.json` is lost. Pure plans,
shells.
"""
