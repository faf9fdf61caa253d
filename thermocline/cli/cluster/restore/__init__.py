"""`cluster restore` and `rebuild`: only the bucket is left, or it lost its `cluster.json`. Pure plans, shells."""
