"""Makes appended bytes durable: one fdatasync at a time covers all that waits.

`flush_states.py` (pure) says when to sync, `flusher.py` does. `sync_rounds.py` hands the syncs of several logs to the
kernel together (ADR 11). The flushed end moves in the loop's turn in which the sync is known to be done.
"""
