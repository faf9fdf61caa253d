"""Selects the in-sync set that a leader proposes: caught-up replicas join, lagging ones leave (R4, KIP-497, KIP-841).
Pure.

- The set never shrinks below the minimum. Members without a session leave first.
- Lag is measured against an earlier log end, so a replica need not reach an end that keeps growing. Lag is also
  measured against the log start of that time, because DeleteRecords waits for members that do not know the log start.
- While the outcome of a proposal is unknown, the leader proposes only the committed set. That proposal settles the
  outcome (R17).
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from broker.metadata.records import LogPlace
from broker.replication.leader import NOT_LED, Leader, LogExtent

_SAMPLES: Final = 4  # samples of the log's end within the longest time that a replica may lag


class PartitionProposal(msgspec.Struct, frozen=True):
    """One partition of AlterPartition (56): the leader in `leader_epoch` proposes `in_sync` on top of the row of
    `partition_epoch`. `in_sync` has pairs of node id and broker epoch. A joiner is named with the broker epoch of its
    report (R16, KIP-903). `is_done`: an unclean start is complete (R20, LeaderRecoveryState 0)."""

    place: LogPlace
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[tuple[int, int], ...]
    is_done: bool = True


class LagSamples:
    """Samples of a leader's log extent in one leader epoch."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, LogExtent]] = deque()  # monotonic ms

    def sample(self, now_ms: int, held: LogExtent, lag_ms_max: int) -> LogExtent:
        """Note `held`. Returns the extent at a time between 1 and 1.25 × `lag_ms_max` ago; NOT_LED if this leader epoch
        is younger."""
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= lag_ms_max / _SAMPLES:
            samples.append((now_ms, held))
        while len(samples) > 1 and now_ms - samples[1][0] >= lag_ms_max:
            samples.popleft()
        at_ms, before = samples[0]
        return before if now_ms - at_ms >= lag_ms_max else NOT_LED


def wanted(leader: Leader, before: LogExtent, log_start: int = 0) -> frozenset[int] | None:
    """The set to propose; None if it is equal to the committed set. `before`: a result of `LagSamples.sample`.
    `log_start`: the log start offset."""
    row = leader.in_sync.row
    if not leader.in_sync.is_settled:
        return row.in_sync
    target = row.in_sync | {node_id for node_id in row.sessions if leader.may_join(node_id, log_start)}
    behind = [node_id for node_id in row.in_sync if leader.is_behind(node_id, before)]
    for node_id in sorted(behind, key=lambda node_id: (node_id in row.sessions, node_id)):
        if len(target) > row.min_in_sync:
            target -= {node_id}
    return None if target == row.in_sync else target
