"""What one broker tells of its cluster: counts for `/metrics`, and those of the cluster's findings that it is to tell.

Owns who tells what: a partition is told of by its leader, what nobody leads and who is away by the controller. Always
true: a sum over all brokers counts each partition once; an image is gone through once however often somebody asks, in
turns of 5 ms. Must not know what is wrong when (cluster_status), nor the words (cluster_findings).
"""

from __future__ import annotations

from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import NO_LEADER
from broker.observe.cluster_findings import Finding, broker_findings, partition_findings
from broker.observe.cluster_status import PartitionRow, broker_row, partition_row
from seams.turns import Turns, next_turn


class ClusterLook:
    """Of `image`, as `node_id` tells it; `decides`: it is the controller. Counts: `leaders` and `replicas` of this
    broker; of partitions that it leads those that are `under_replicated`, `below_min`, `starting` and `moving`; by
    the controller `leaderless` and `sessions`, 0 elsewhere."""

    def __init__(self, image: ClusterImage, node_id: int, *, decides: bool) -> None:
        self.image = image
        self.node_id = node_id
        self.decides = decides
        self.leaders = self.replicas = 0
        self.under_replicated = self.below_min = self.starting = self.moving = self.leaderless = 0
        self.sessions = sum(node.active for node in image.nodes.values()) if decides else 0
        self._lacking: list[PartitionRow] = []

    def add(self, topic: Topic, index: int) -> None:
        """4 µs."""
        row = topic.rows[index]
        self.replicas += self.node_id in row.replicas or self.node_id in row.target
        leads = row.leader == self.node_id
        is_told = leads or (self.decides and row.leader == NO_LEADER)
        if not is_told:
            return
        found = partition_row(topic, index, self.image)
        if leads:
            self.leaders += 1
            self.under_replicated += found.under_replicated
            self.below_min += bool(found.below_min)
            self.starting += bool(found.starting)
            self.moving += bool(found.target)
        else:
            self.leaderless += 1
        if found.offline or found.under_replicated or found.starting:
            self._lacking.append(found)

    def findings(self) -> list[Finding]:
        """Worst first."""
        brokers = [broker_row(node) for _, node in sorted(self.image.nodes.items())]
        return [
            *partition_findings(self._lacking, brokers),
            *(broker_findings(brokers) if self.decides else ()),
        ]


def look_at(image: ClusterImage, node_id: int, *, decides: bool) -> ClusterLook:
    """At once: for few partitions."""
    looked = ClusterLook(image, node_id, decides=decides)
    for topic in image.topics.values():
        for index in range(topic.partitions):
            looked.add(topic, index)
    return looked


class ClusterLooks:
    """The last look of one broker: an image that did not change is not gone through again."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._last: ClusterLook | None = None

    async def of(self, image: ClusterImage, *, decides: bool) -> ClusterLook:
        """In turns: of tens of thousands."""
        if self._last is not None and self._last.image is image and self._last.decides == decides:
            return self._last
        looked = ClusterLook(image, self._node_id, decides=decides)
        turns = Turns()
        for topic in image.topics.values():
            for index in range(topic.partitions):
                looked.add(topic, index)
                if turns.over():
                    await next_turn()
        self._last = looked
        return looked
