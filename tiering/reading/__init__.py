"""Reading what only the bucket holds.

    door ─► plan (pure) ─► an answer: ranges of files, sent by sendfile
      │        └────────► Missing ─► hydrate ─► source ─► hold: the next read finds it there
      └─► prefetch: the same for a reader who goes on

One of each: `flights` has the single flight, `hydrate` the bound, the queue and the deadline, `hold` what is at hand.
"""
