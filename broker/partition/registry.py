"""Which partitions this broker leads, by name and by id.

Owns the look-up tables of the request path. Always true: a partition is in `partitions` from the moment it may be
served until it resigns or its topic is deleted; the two indexes agree. Must not know how partitions come to be.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.metadata.image import Topic
from broker.partition.replica import Partition


class Registry:
    """Partitions by (topic name, index); topics by name."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[str, int], Partition] = {}
        """Those led here: what clients may write to and read from."""
        self.resigned: dict[tuple[str, int], Partition] = {}
        """Those that were led in this process and are no more: their logs are open."""
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
            self.resigned.pop((topic.name, partition.index), None)

    def withdraw(self, name: str) -> list[Partition]:
        """Take a topic away from clients; returns its partitions."""
        topic = self.topics.pop(name)
        self.names.pop(UUID(topic.topic_id), None)
        found = (
            of.pop((name, index), None) for of in (self.partitions, self.resigned) for index in range(topic.partitions)
        )
        gone = [partition for partition in found if partition is not None]
        self.touched.difference_update(gone)  # a closed log is never seen clean again: ticks would hold it for ever
        return gone

    def resign(self, partition: Partition) -> None:
        """Take a partition that is led no longer away from clients. Its topic stays, and so do its ticks: what was
        appended has to be synced in time."""
        key = partition.topic, partition.index
        self.resigned[key] = self.partitions.pop(key)

    def refusal(self, name: str, index: int) -> ErrorCode:
        """What a client hears who asks for a partition that is not led here."""
        resigned = (name, index) in self.resigned
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if resigned else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

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
        """All that are open here, led or not."""
        return chain(self.partitions.values(), self.resigned.values())
