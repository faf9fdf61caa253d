"""Which partitions this broker leads, by name and by id.

Owns the look-up tables of the request path. Always true: a partition is in them from the moment it may be served until
the moment its topic is deleted; the two indexes agree. Must not know how partitions come to be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from uuid import UUID

from broker.metadata.image import Topic
from broker.metadata.topic_facts import TopicFacts
from broker.partition.partition import Partition


class Registry:
    """Partitions by (topic name, index); topics by name."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.topics: dict[str, Topic] = {}
        self.names: dict[UUID, str] = {}
        self.touched: set[Partition] = set()
        """Partitions appended to since they were last seen clean: what a tick looks at, never all of them."""

    def publish(self, topic: Topic, partitions: list[Partition]) -> None:
        """Make a topic and (more of) its partitions visible to clients."""
        self.topics[topic.name] = topic
        self.names[UUID(topic.topic_id)] = topic.name
        for partition in partitions:
            self.partitions[topic.name, partition.index] = partition

    def withdraw(self, name: str) -> list[Partition]:
        """Take a topic away from clients; returns its partitions."""
        topic = self.topics.pop(name)
        self.names.pop(UUID(topic.topic_id), None)
        gone = [
            self.partitions.pop((name, index)) for index in range(topic.partitions) if (name, index) in self.partitions
        ]
        self.touched.difference_update(gone)  # a closed log is never seen clean again: ticks would hold it for ever
        return gone

    def resign(self, name: str, indexes: Collection[int]) -> list[Partition]:
        """Take partitions that are led no longer away from clients; returns them. The topic stays."""
        found = (self.partitions.pop((name, index), None) for index in indexes)
        gone = [partition for partition in found if partition is not None]
        self.touched.difference_update(gone)
        return gone

    def facts(self, name: str) -> TopicFacts | None:
        """What groups ask of a topic that serves."""
        topic = self.topics.get(name)
        return None if topic is None else TopicFacts(UUID(topic.topic_id), topic.partitions)

    def high_watermark(self, name: str, index: int) -> int | None:
        """Of a partition that serves."""
        partition = self.partitions.get((name, index))
        return None if partition is None else partition.high_watermark

    def of_topic(self, name: str) -> list[Partition]:
        """The led partitions of a topic, by index."""
        topic = self.topics.get(name)
        if topic is None:
            return []
        found = (self.partitions.get((name, index)) for index in range(topic.partitions))
        return [partition for partition in found if partition is not None]

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.partitions.values())
