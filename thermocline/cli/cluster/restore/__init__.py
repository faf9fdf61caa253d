"""`cluster restore` and `rebuild`: recover a cluster after the loss of all disks, or of its `cluster.json`."""
