"""What a stream sees of its partitions from one trigger to the next.

Owns how often bucket and cluster are asked: Spark asks for the latest offset a hundred times a second while nothing
comes, and every question to a bucket is billed. Always true: what `latest` gives is one view, not older than the
intervals below. The clock is a parameter; only pacing hangs on it, never what is read. Must not know what a batch is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from logformat.values import TopicPartition
from thermocline.pipeline.history import PartitionHistory
from thermocline.pipeline.spark.tiers import PartitionState, Tiers

# Without a cluster new data shows when its segment is committed: one conditional GET a partition, $0.4 a million.
MANIFESTS_S: Final = 2.0
ENDS_S: Final = 0.1  # with a cluster: one ListOffsets for all partitions
COLD_S: Final = 10.0  # with a cluster an old seam is right too, only slower for a stream that is far behind
DISCOVER_S: Final = 5.0  # new topics and partitions


class Watch:
    """The newest view of the partitions a stream reads."""

    def __init__(self, tiers: Tiers, clock: Callable[[], float]) -> None:
        self.tiers = tiers
        self._clock = clock
        self._partitions: list[TopicPartition] = []
        self._cold: dict[TopicPartition, PartitionHistory | None] = {}
        self._states: dict[TopicPartition, PartitionState] = {}
        self._discovered = self._cold_loaded = self._looked = -float("inf")

    def latest(self) -> dict[TopicPartition, PartitionState]:
        """The states of all partitions, looked at again when the last look is too old. Errors: `Tiers`."""
        if self._clock() - self._looked < (ENDS_S if self.tiers.has_cluster else MANIFESTS_S):
            return self._states
        return self._look()

    def look(self) -> dict[TopicPartition, PartitionState]:
        """The same, looked at anew whatever it costs."""
        self._discovered = self._cold_loaded = -float("inf")
        return self._look()

    def rediscover(self) -> dict[TopicPartition, PartitionState]:
        """The same with topics and their ids found anew; manifests too where a topic is another one now."""
        self._discovered = -float("inf")
        return self._look()

    def _look(self) -> dict[TopicPartition, PartitionState]:
        now = self._clock()
        if now - self._discovered >= DISCOVER_S:
            self._partitions = self.tiers.partitions()
            self._discovered = now
        fresh = set(self._partitions) - set(self._cold) or any(map(self._is_of_another_topic, self._partitions))
        if not self.tiers.has_cluster or fresh or now - self._cold_loaded >= COLD_S:
            self._cold = self.tiers.cold(self._partitions)
            self._cold_loaded = now
        self._states = self.tiers.states(self._partitions, self._cold)
        self._looked = self._clock()
        return self._states

    def _is_of_another_topic(self, tp: TopicPartition) -> bool:
        cold = self._cold.get(tp)
        return cold is not None and cold.topic_id != self.tiers.topic_id(tp.topic)
