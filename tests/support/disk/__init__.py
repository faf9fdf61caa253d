"""Disks that forget what was not synced, logs on them, and checkers of late work."""
