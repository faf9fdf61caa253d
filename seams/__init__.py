"""The outside world as parameters: disk, workers, syncs, clock, randomness, network, crash points.

This folder is the only place that touches `os`, `time`, `random`, `socket` and threads. Everything above takes what it
needs from a `World`, so that the whole broker also runs in virtual time on a disk that loses what was not synced.
"""
