"""Replication: the decisions of a partition's leader and followers. Most modules are pure machines.

How a record reaches a follower:
1. The follower's fetch for the offset after its flushed end waits at the leader (`fetcher.py`,
   `fetch_session_handler.py`). An append completes it, before the leader's own sync.
2. The leader checks broker epoch and lineage, and answers with bytes, high watermark, log start, and how far the
   bucket is verified and reserved (`broker/handlers/fetch/replica_fetch.py`).
3. The follower checks each batch, writes the batches of a partition by one write, and syncs once for all partitions of
   the response (`broker/partition/following/follower_replica.py`). `follower.py` says whether to truncate first.
4. Its next fetch names its new flushed end: the acknowledgement. `leader.py` moves the high watermark to the least
   end of the in-sync set, including proposed members (`in_sync.py`).
5. Twice a second `isr_policy.py` says which replicas caught up and which lag. The controller decides. Only the
   committed row takes effect.

A broker has two connections to a leader: one for its replicas in sync, one for those that catch up (`fetch_lane.py`,
ADR 28).
"""
