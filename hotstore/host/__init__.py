"""All logs of a data directory: places, leases, checkpoints, disk space."""
