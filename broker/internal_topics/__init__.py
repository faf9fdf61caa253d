"""State that lives as records of an internal topic. It knows nothing of groups, its first user.

A user gives a `ReplayedState`. One partition's state in one leader epoch is a shard, and its life is a machine
(`shard_life.py`): absent, loading, ready, failed.
1. Led: `internal_log.py` loads the state from the local log, a few ms of the loop at a time. A lost disk loads the
   bucket's snapshot first. Clients get COORDINATOR_LOAD_IN_PROGRESS.
2. A write: `appender.py` batches what waits, appends and waits until it is committed. The state changes after that.
3. A snapshot: `snapshots.py` writes the applied state to the bucket when one is due.
4. A rewrite: `rewriting.py` appends the live state again and moves the log start (ADR 17).
5. Resigned: pending writes fail with NOT_COORDINATOR and the state is dropped.
"""
