"""How far followers are behind, as their leaders know it: records, bytes, and for how long.

Owns the figures. Always true: only replicas in session are judged, absent ones are the controller's to tell; who had
all that the log held half a second ago is not late. Must not know how ends are reported.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.observe.standing import LateReplica
from broker.partition.leading.leader_replica import LeaderReplica
from broker.replication.catch_up import bytes_between

LATE_MAX: Final = 1_000
"""Rows that one look keeps: those of the first partitions."""


def late_replicas(partition: LeaderReplica) -> list[LateReplica]:
    """Of a partition that is led here, as it is now."""
    leader, log = partition.leader, partition.log
    if not partition.leading or not leader.late_since_ms:
        return []
    now_ms = int(asyncio.get_running_loop().time() * 1000)  # as `Leader.look` was told
    found = []
    for node_id, since_ms in sorted(leader.late_since_ms.items()):
        end = leader.reported_end(node_id)
        records = None if end < 0 else max(log.log_end_offset - end, 0)
        rest = () if end < 0 else log.segments_between(end, log.log_end_offset)
        size = None if end < 0 else bytes_between(rest, end, log.log_end_offset)
        found.append(LateReplica(partition.topic, partition.index, node_id, records, size, max(now_ms - since_ms, 0)))
    return found
