"""Which replica a consumer of a rack is sent to by its partition's leader (KIP-392).

Owns Kafka's choice, of `RackAwareReplicaSelector` and of what it is offered. Always true: whoever is chosen is in sync,
has a session, reported in this leader epoch that it holds the offset asked for, and stands in the client's rack; the
leader sends nobody away who stands in its own. Pure. Must not know requests, nor how a follower serves.
Source: Kafka 4.3.1's `ReplicaManager.findPreferredReadReplica`, `RackAwareReplicaSelector`, `ReplicaView.comparator`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.replication.leader import Leader

HERE: Final = -1
"""The leader serves the fetch itself."""
_NOT_LATE: Final = 1 << 63


def nearest(leader: Leader, offset: int, rack: str, rack_of: Callable[[int], str | None]) -> int:
    """The node to read `offset` from, for a client of `rack`; `HERE`: the leader. `rack_of`: where a node stands; None
    also where the client cannot reach it."""
    if rack_of(leader.node_id) == rack:
        return HERE
    found, most = HERE, (-1, 0, 0)
    for node_id in leader.in_sync.row.in_sync:
        report = leader.report(node_id)
        if report is None or not report.log_start_offset <= offset <= report.end_offset or rack_of(node_id) != rack:
            continue
        # As Kafka: the greater end, then who is late for less long, then the higher id.
        caught_up = (report.end_offset, leader.late_since_ms.get(node_id, _NOT_LATE), node_id)
        if found == HERE or caught_up > most:
            found, most = node_id, caught_up
    return found
