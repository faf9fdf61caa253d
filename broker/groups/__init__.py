"""Consumer groups: coordinator, offsets, the classic protocol.

`machine` decides (pure), and `group_effects.py` performs its effects. `offset_requests.py` validates a commit; the
group's shard (`shard.py`, on `broker/internal_topics`) writes it. The commit is answered when its record is committed.
"""
