"""Makes appended bytes durable: one fdatasync at a time covers all waiting appends.

`flush_states.py` (pure) decides when to sync, and `flusher.py` does it. `sync_rounds.py` hands the syncs of several
logs to the kernel together (ADR 11). The flushed end moves in the turn of the loop in which the result of the sync
arrives.
"""
