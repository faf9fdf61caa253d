"""Fetch and ListOffsets, for consumers and followers.

1. `fetch.py` takes the partitions of a full fetch, or the partitions of a fetch session that changed (KIP-227).
2. `attempt.py` asks `tiering/reading/fetch_router.py` for each partition: hot, cold, out of range, or not known yet.
3. Hot: a file range, sent by sendfile. `hotstore/host/residency.py` first makes sure that the loop does not wait for
   the disk. Cold: `tiering/reading`.
4. Too few bytes: `long_poll.py` waits for an append, then tries again.
5. `responses.py` makes the answer. It names the current leader after an error (KIP-951) and the nearest replica to a
   consumer that names its rack (KIP-392).

`replica_fetch.py` answers a follower's fetch: with records up to the log's end, or with the offset where the two logs
diverge.
"""
