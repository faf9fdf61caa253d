"""Formats of a Kafka log: batches, their records, indexes, and the small files of a data directory.

`record_batch.py` has the header of a batch, `records.py` the records in it, `compression.py` its codecs.
`checkpoints.py`, `leader_epochs.py` and `producer_snapshot.py` are the files beside the segments. Nothing here does
I/O.
"""
