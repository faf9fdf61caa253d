"""The logs of a data directory: directories, leases, checkpoints, disk space."""
