"""Consumer groups: coordinator, offsets, the classic protocol.

`machine` (pure) decides, and `group_effects.py` performs the machine's effects. `offset_requests.py` validates a
commit; the group's shard (`shard.py`, on `broker/internal_topics`) writes it. The commit is answered when its record is
committed.
"""
