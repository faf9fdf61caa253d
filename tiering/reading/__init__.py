"""Cold reads: serves records that only the bucket holds.

    cold_reader ─► plan (pure) ─► ranges of local files, sent by sendfile
      │              └───────► missing ─► loader ─► source ─► chunk_table: the next attempt finds it
      └─► prefetch: the next chunks of a reader that reads in order

Concurrent readers of one chunk share one load (`single_flight.py`). On S3, chunks are fetched by ranged GETs into
`coldstore/segments/chunk_cache.py`; in a directory bucket the object's own file is read. The CRC is checked before the
first byte leaves. `by_time.py` answers ListOffsets.
"""
