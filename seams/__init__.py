"""The outside world as parameters: disk, workers, syncs, clock, randomness, network, crash points.
Only this folder touches `os`, `time`, `random`, `socket` and threads. Everything above takes them from a `World`, so
the whole broker also runs in virtual time on a disk that loses what was not synced."""
