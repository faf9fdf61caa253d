"""Selects the replica that a consumer reads from, by rack (KIP-392). A replica to which a redirect failed is not
selected. Pure.

The chosen replica is in sync, has a session, reported in this leader epoch that it holds the offset, and is in the
client's rack. The leader does not redirect clients of its own rack. Source: Kafka 4.3.1's
`ReplicaManager.findPreferredReadReplica`, `RackAwareReplicaSelector`, `ReplicaView.comparator`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from broker.replication.leader import Leader

HERE: Final = -1  # the leader serves the fetch itself
_NOT_LATE: Final = 1 << 63


def nearest(leader: Leader, offset: int, rack: str, rack_of: Callable[[int], str | None]) -> int:
    """The node from which a client in `rack` should read `offset`; `HERE` is the leader. `rack_of`: a node's rack; None
    if it has none or the client cannot reach the node."""
    if rack_of(leader.node_id) == rack:
        return HERE
    found, most = HERE, (-1, 0, 0)
    for node_id in leader.in_sync.row.in_sync:
        report = leader.report(node_id)
        if report is None or not report.log_start_offset <= offset <= report.end_offset or rack_of(node_id) != rack:
            continue
        # As in Kafka: the greater end offset, then the shorter lag in time, then the higher id.
        caught_up = (report.end_offset, leader.late_since_ms.get(node_id, _NOT_LATE), node_id)
        if found == HERE or caught_up > most:
            found, most = node_id, caught_up
    return found


STAY_S: Final = 10.0
PLACES_MAX: Final = 1_000


class _Sent(NamedTuple):
    offset: int
    at_s: float
    stays: bool  # time at which the reader came back; it is served here from then on


class RedirectMemory:
    """The redirects of one connection. If a reader comes back for the same offset within `STAY_S`, the leader serves it
    for `STAY_S` and then redirects it again. A replica that was killed or cannot reach the bucket thus costs a reader
    one redirect in that time. Kafka's leader would redirect the reader repeatedly. At most `PLACES_MAX` entries. Times
    are seconds of one clock that never goes back."""

    __slots__ = ("_sent",)

    def __init__(self) -> None:
        self._sent: dict[tuple[str, int], _Sent] = {}  # the oldest first

    def may_go(self, place: tuple[str, int], offset: int, now_s: float) -> bool:
        """Whether to redirect a reader of `place` at `offset`; if so, it counts as redirected."""
        known = self._sent.pop(place, None)
        is_recent = known is not None and now_s - known.at_s < STAY_S
        if known is not None and is_recent and (known.stays or known.offset == offset):
            self._sent[place] = known if known.stays else _Sent(offset, now_s, True)
            return False
        self._sent[place] = _Sent(offset, now_s, False)
        if len(self._sent) > PLACES_MAX:
            del self._sent[next(iter(self._sent))]
        return True
