"""The outside world as parameters: disk, workers, syncs, clock, randomness, network, crash points.

Only this folder touches `os`, `time`, `random`, `socket` and threads. All other code takes them from a `World`, so the
whole broker also runs in virtual time, on a simulated disk that loses unsynced bytes.
"""
