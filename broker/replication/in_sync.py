"""Which replicas a leader has to wait for: the committed in-sync set, united with all it proposed (R4, R16, R17).

Owns that union and what the applied row allows. Always true: only an applied row with a higher partition epoch drops a
proposal, never an answer or a time-out, because a commit whose answer was lost may stand; nothing about the set or the
minimum is read anywhere else than in the applied row. Pure. Must not know offsets, requests, nor who commits rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

NO_SESSION: Final = -1
"""Broker epoch of who has none."""


@dataclass(frozen=True, slots=True)
class AppliedRow:
    """One partition as its leader's applied image has it.

    `min_in_sync` is the effective one, min(min.insync.replicas, |replicas|); `sessions` holds the broker epoch of every
    replica that has an active session, by node."""

    leader_epoch: int
    partition_epoch: int
    in_sync: frozenset[int]
    min_in_sync: int
    sessions: Mapping[int, int]


class InSync:
    """Of one leader epoch. `union`: those whose flushed ends make the high watermark."""

    __slots__ = ("_proposals", "row", "union")

    def __init__(self, row: AppliedRow) -> None:
        self.row = row
        self.union = row.in_sync
        self._proposals: list[tuple[int, frozenset[int]]] = []  # partition epoch it was sent at, whole new set

    def apply(self, row: AppliedRow) -> None:
        """Another row of the same leader epoch; one of a lower partition epoch says nothing new."""
        assert row.leader_epoch == self.row.leader_epoch, (row, self.row)
        if row.partition_epoch < self.row.partition_epoch:
            return
        self.row = row
        self._proposals = [(epoch, target) for epoch, target in self._proposals if epoch >= row.partition_epoch]
        self._unite()

    def propose(self, target: frozenset[int]) -> int:
        """Count `target` from now on, before the proposal is sent; the partition epoch to send it at."""
        self._proposals.append((self.row.partition_epoch, target))
        self._unite()
        return self.row.partition_epoch

    def _unite(self) -> None:
        self.union = self.row.in_sync.union(*(target for _, target in self._proposals))

    @property
    def is_settled(self) -> bool:
        """Whether no proposal is out whose outcome is not applied."""
        return not self._proposals

    @property
    def has_enough(self) -> bool:
        """Whether as many members of the committed set have a session as records need to count as committed."""
        row = self.row
        return sum(node in row.sessions for node in row.in_sync) >= row.min_in_sync
