"""Produce, from the frame to the acknowledgement.

1. `fast_path.py` takes the requests that arrived together and parses them in place (`frame_parser.py`). `routes.py`
   remembers each connection's topics.
2. `batch_checks.py` checks header and CRC of each batch. It decodes records only if the header cannot be trusted.
3. Each partition's batches are appended by one write (`run.py`, `append.py`): `LeaderReplica` →
   `hotstore/log/log_append.py`. The append checks the producer's sequence and stamps offset and leader epoch in place.
4. `hotstore/flush/flusher.py` syncs. The leader machine (`broker/replication/leader.py`) moves the high watermark to
   the least flushed end of the in-sync set. `DelayedOperations` then answers acks=all.
5. `responses.py` packs the answers.

Requests that wait, or that need another check, take `flow.py` and `produce.py` to the same append. Transactional
batches also take this path: `verification.py` verifies them at the coordinator before a transaction begins in a
partition. Batches whose codec differs from their topic's also take this path: `recompression.py` has a worker
recompress them (`logformat/recompression.py`).
"""
