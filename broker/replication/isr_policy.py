"""Which in-sync set a leader wants: who caught up joins, who stays behind leaves (R4, KIP-497, KIP-841). Pure.

Owns the two judgements. Always true: nobody leaves below the minimum, those without a session first; who lags is judged
by what the log held a while ago, so that it need not reach an end that runs ahead of it, and by where it started then:
DeleteRecords waits for whoever does not know; while a proposal's outcome is not applied, all that is proposed is the
set as it is, which settles it (R17). Must not know requests, nor who commits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from broker.metadata.records import LogPlace
from broker.replication.leader import NOT_LED, Held, Leader

_SAMPLES: Final = 4  # of the log's end within the longest time a replica may lag


@dataclass(frozen=True, slots=True)
class PartitionProposal:
    """One partition of AlterPartition (56): the leader in `leader_epoch` proposes `in_sync`, pairs of node id and
    broker epoch, on top of the row of `partition_epoch`. A member that joins is named with the broker epoch of its
    report (R16, KIP-903). `is_done`: an unclean start came to its end (R20, LeaderRecoveryState 0)."""

    place: LogPlace
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[tuple[int, int], ...]
    is_done: bool = True


class Behind:
    """What a leader's log held, of one leader epoch."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, Held]] = deque()  # monotonic ms

    def look(self, now_ms: int, held: Held, lag_ms_max: int) -> Held:
        """What the log held `lag_ms_max` ago, or a quarter longer; NOT_LED while it is led for less."""
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= lag_ms_max / _SAMPLES:
            samples.append((now_ms, held))
        while len(samples) > 1 and now_ms - samples[1][0] >= lag_ms_max:
            samples.popleft()
        at_ms, before = samples[0]
        return before if now_ms - at_ms >= lag_ms_max else NOT_LED


def wanted(leader: Leader, before: Held, log_start: int = 0) -> frozenset[int] | None:
    """The set to propose; None: the one there is. `before`: see `Behind.look`; `log_start`: of the log."""
    row = leader.in_sync.row
    if not leader.in_sync.is_settled:
        return row.in_sync
    target = row.in_sync | {node_id for node_id in row.sessions if leader.may_join(node_id, log_start)}
    behind = [node_id for node_id in row.in_sync if leader.is_behind(node_id, before)]
    for node_id in sorted(behind, key=lambda node_id: (node_id in row.sessions, node_id)):
        if len(target) > row.min_in_sync:
            target -= {node_id}
    return None if target == row.in_sync else target
