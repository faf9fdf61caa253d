"""The transaction coordinator (KIP-98): the state of each transactional id, its log, and the markers that it sends.

1. A request comes to `coordinator.py`, which finds the shard that leads the id's partition (`shard.py`). `machine.py`
   (pure) returns an answer, or the state to write before the answer (`transaction.py`, `records.py`).
2. `TransactionShard.write` submits the record through `broker/internal_topics/led_shard.py`. When the record is
   committed (acks=all), the request is answered.
3. A decided transaction's partitions go to `pending_markers.py` (pure). `marker_sender.py` sends each leader its
   markers, until every partition answered. Then the completion is written in the same way.
4. `peers.py` asks other coordinators when a leader verifies a batch or must end an open transaction.
5. `open_ended.py` ends transactions that no coordinator will end: behind a gap, or open for longer than any time-out.

This package does not access the logs of data partitions. A data partition learns of an outcome by a marker.
"""
