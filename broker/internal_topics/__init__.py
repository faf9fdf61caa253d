"""Internal logs: state that is stored as records of an internal topic. Groups and transactions use internal logs, which
do not know them. The user of an internal log supplies a `ReplayedState`. One partition's state in one leader epoch is a
shard. The state machine of a shard (`shard_life.py`) has the states absent, loading, ready and failed.
1. Led: `internal_log.py` loads the state from the local log, a few ms of the loop at a time. After the loss of a disk,
   it loads the bucket's snapshot first. Clients get COORDINATOR_LOAD_IN_PROGRESS.
2. A write: `appender.py` batches waiting writes, appends the batch and waits until it is committed. The state changes
   after the commit.
3. A snapshot: `snapshots.py` writes the applied state to the bucket when a snapshot is due.
4. A rewrite: `rewriting.py` appends the live state again and moves the log start (ADR 17).
5. Resigned: pending writes fail with NOT_COORDINATOR and the state is dropped.
"""
