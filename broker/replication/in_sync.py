"""In-sync sets of a leader. The leader waits for the union of the committed set and every proposed set (R4, R16, R17).
Pure.

Only an applied row with a higher partition epoch drops a proposal. A response or a time-out does not drop it, because
the commit may have succeeded although its response was lost. The set and the minimum come only from the applied row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from broker.metadata.data_configs import effective_min
from broker.metadata.image import ClusterImage, Topic

NO_SESSION: Final = -1  # broker epoch of a broker without a session


class AppliedRow(msgspec.Struct, frozen=True):
    """One partition in the image that its leader applied. `min_in_sync` is the effective one, min(min.insync.replicas,
    |replicas|). `replicas`: all assigned nodes, before and after an ongoing move. `sessions`: broker epoch of every
    replica with an active session, by node."""

    leader_epoch: int
    partition_epoch: int
    in_sync: frozenset[int]
    min_in_sync: int
    replicas: frozenset[int]
    sessions: Mapping[int, int]


class InSync:
    """The in-sync sets of one leader epoch. The high watermark is the least flushed end over `union`."""

    __slots__ = ("_proposals", "row", "union")

    def __init__(self, row: AppliedRow) -> None:
        self.row = row
        self.union = row.in_sync
        self._proposals: list[tuple[int, frozenset[int]]] = []  # pairs of partition epoch and complete new set

    def apply(self, row: AppliedRow) -> None:
        """Another row of the same leader epoch. A lower partition epoch is ignored."""
        assert row.leader_epoch == self.row.leader_epoch, (row, self.row)
        if row.partition_epoch < self.row.partition_epoch:
            return
        self.row = row
        self._proposals = [(epoch, target) for epoch, target in self._proposals if epoch >= row.partition_epoch]
        self._unite()

    def propose(self, target: frozenset[int]) -> int:
        """Add `target` to the union, before the proposal is sent. Returns the partition epoch for the proposal."""
        self._proposals.append((self.row.partition_epoch, target))
        self._unite()
        return self.row.partition_epoch

    def _unite(self) -> None:
        self.union = self.row.in_sync.union(*(target for _, target in self._proposals))

    @property
    def is_settled(self) -> bool:
        """Whether this leader has applied the outcome of every proposal."""
        return not self._proposals

    @property
    def has_enough(self) -> bool:
        """Whether at least `min_in_sync` members of the committed set have a session."""
        row = self.row
        return sum(node in row.sessions for node in row.in_sync) >= row.min_in_sync


def applied_row(topic: Topic, index: int, image: ClusterImage) -> AppliedRow:
    """The row of a partition of `topic`, with the minimum and the sessions of `image` (R2, R16). `topic` is from
    `image` or a newer one. Only this function makes an `AppliedRow`: the high watermark is safe only if row, minimum
    and sessions are taken together.
    """
    row = topic.rows[index]
    nodes = image.nodes
    replicas = frozenset((*row.replicas, *row.target))
    sessions = {
        node_id: node.broker_epoch for node_id in replicas if (node := nodes.get(node_id)) is not None and node.active
    }
    in_sync = frozenset(row.in_sync)
    min_in_sync = effective_min(topic, row, image)
    return AppliedRow(row.leader_epoch, row.partition_epoch, in_sync, min_in_sync, replicas, sessions)
