"""Cluster summary: one broker's share of the cluster's counts and findings, for `/metrics` and `/broker`.

A partition is reported by its leader; partitions without a leader and absent brokers are reported by the controller. A
sum over all brokers thus counts each partition once. An image is walked once for all requests, in turns of 5 ms.
"""

from __future__ import annotations

from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import NO_LEADER
from broker.observe.cluster_findings import Finding, broker_findings, partition_findings
from broker.observe.cluster_status import PartitionRow, broker_row, partition_row
from seams.loop.turns import Turns, next_turn


class ClusterSummary:
    """The share of `node_id` in `image`. `decides`: this node is the controller.

    `leaders` and `replicas` count the partitions that this broker leads and holds. `under_replicated`, `below_min`,
    `starting` and `moving` count partitions that this broker leads. The controller counts `leaderless` partitions and
    `sessions`; on other brokers they are 0.
    """

    def __init__(self, image: ClusterImage, node_id: int, *, decides: bool) -> None:
        self.image = image
        self.node_id = node_id
        self.decides = decides
        self.leaders = self.replicas = 0
        self.under_replicated = self.below_min = self.starting = self.moving = self.leaderless = 0
        self.sessions = sum(node.active for node in image.nodes.values()) if decides else 0
        self._lacking: list[PartitionRow] = []

    def add(self, topic: Topic, index: int) -> None:
        """Count a partition; takes 4 µs."""
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
        """The findings, worst first."""
        brokers = [broker_row(node) for _, node in sorted(self.image.nodes.items())]
        return [*partition_findings(self._lacking, brokers), *(broker_findings(brokers) if self.decides else ())]


def summarize(image: ClusterImage, node_id: int, *, decides: bool) -> ClusterSummary:
    """The summary, made at once; for few partitions."""
    seen = ClusterSummary(image, node_id, decides=decides)
    for topic in image.topics.values():
        for index in range(topic.partitions):
            seen.add(topic, index)
    return seen


class ClusterSummaries:
    """The last summary of one broker, reused while its image is the same."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._last: ClusterSummary | None = None

    async def of(self, image: ClusterImage, *, decides: bool) -> ClusterSummary:
        """The summary, made in turns with other work; for tens of thousands of partitions."""
        if self._last is not None and self._last.image is image and self._last.decides == decides:
            return self._last
        seen = ClusterSummary(image, self._node_id, decides=decides)
        turns = Turns()
        for topic in image.topics.values():
            for index in range(topic.partitions):
                seen.add(topic, index)
                if turns.over():
                    await next_turn()
        self._last = seen
        return seen
