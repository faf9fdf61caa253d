"""Reading what only the bucket holds.

    door ─► plan (pure) ─► an answer: ranges of files, sent by sendfile
      │        └────────► Missing ─► hydrate ─► source ─► hold: the next read finds it there
      └─► prefetch: the same for a reader who goes on

One of each: `single_flight` has the single flight, `loader` the bound, the queue and the deadline, `chunk_table` what
is at hand.
"""
