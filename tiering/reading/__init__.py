"""Reads what only the bucket holds.

    cold_reader ─► plan (pure) ─► ranges of local files, sent by sendfile
      │              └───────► missing ─► loader ─► source ─► chunk_table: the next attempt finds it
      └─► prefetch: the next chunks of a reader that reads in order

Concurrent readers of one chunk share one load (`single_flight.py`). On S3, chunks come by ranged GETs through
`coldstore/segments/chunk_cache.py`; of a directory bucket the object's own file is read. The CRC is checked before
the first byte leaves. `by_time.py` answers ListOffsets.
"""
