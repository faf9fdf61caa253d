"""Cold reads: data that only the bucket holds.

    cold_reader ─► plan (pure) ─► an answer: ranges of files, sent by sendfile
      │               └────────► Missing ─► loader ─► source ─► chunk_table: the next read finds it
      └─► prefetch: the same for sequential readers

`single_flight` has the in-flight loads, `loader` what a load does, `chunk_table` what is loaded."""
