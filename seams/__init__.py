"""The outside world as parameters: disk, workers, syncs, clock, randomness, network, crash points.

Only this folder touches `os`, `time`, `random`, `socket` and threads. All other code uses the outside world through a
`World`. The whole broker can thus run in virtual time, on a simulated disk that loses unsynced bytes.
"""
