"""Consumer groups: coordinator, offsets, the classic protocol.

`machine` decides (pure), `group_effects.py` performs. A commit is judged by `offset_requests.py`, written through
the group's shard (`shard.py`, on `broker/internal_topics`), and answered when the record is committed.
"""
