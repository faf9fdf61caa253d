"""The partitions of a read-only broker, as the images it follows name them.

Owns which there are. Always true: a partition is readable from the moment its topic is in the image until it is deleted
there; a topic that is made again under its name is another one; a partition costs nothing but its name until somebody
asks for it. Must not know the bucket, nor how images come.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol
from uuid import UUID

from broker.metadata.image import Topic
from broker.partition.registry import Registry
from broker.read_only import archived_partition
from broker.read_only.archived_partition import ArchivedPartition


class Roots(archived_partition.Roots, Protocol):
    """Who reads roots (`roots.Roots`)."""

    def forget(self, partition: ArchivedPartition) -> None: ...


class Withdrawn(Protocol):
    """Who is told that a topic is gone: groups."""

    def withdrawn(self, topic: str) -> None: ...


class Archive:
    """`broker.following.publisher.Effects` of a read-only broker, for images that `archive_image` made. `groups` are
    told of deleted topics once there are any."""

    def __init__(self, registry: Registry, roots: Roots) -> None:
        self._registry = registry
        self._roots = roots
        self.partitions: dict[tuple[str, int], ArchivedPartition] = {}
        self.groups: Withdrawn | None = None
        registry.readable = self.partitions

    def lead(self, topic: Topic, indexes: Collection[int]) -> None:
        """They are there, or another leads them."""
        topic_id = UUID(topic.topic_id)
        for index in indexes:
            epoch = topic.rows[index].leader_epoch
            known = self.partitions.get((topic.name, index))
            if known is None:
                made = ArchivedPartition(topic.name, topic_id, index, epoch, self._roots)
                self.partitions[topic.name, index] = made
            else:
                known.leader_epoch = epoch
                known.wake()
        self._registry.topics[topic.name] = topic
        self._registry.changes += 1

    def withdraw(self, topic: Topic) -> None:
        """Serve it no more."""
        self._registry.topics.pop(topic.name, None)
        self._registry.changes += 1
        for index in range(topic.partitions):
            gone = self.partitions.pop((topic.name, index), None)
            if gone is not None:
                self._roots.forget(gone)
                gone.wake()
        if self.groups is not None:
            self.groups.withdrawn(topic.name)

    def drop(self, topic: Topic, indexes: Collection[int], *, is_seen: bool) -> None:
        """Nothing lies here."""

    def resign(self, topic: Topic, indexes: Collection[int]) -> None:
        """Another epoch follows: `lead`."""

    def follow_config(self) -> None:
        """No partition has a config here."""

    def reconfigure(self, topic: Topic) -> None:
        """No partition has a config here."""

    def apply(self, topic: Topic, indexes: Collection[int]) -> None:
        """Replicas are the owner's."""

    def follow(self, topic: Topic, indexes: Collection[int]) -> None:
        """Nothing is copied here."""

    def purge(self, topic: Topic) -> None:
        """The owner removes its objects."""

    async def opened(self, topic_id: str) -> None:
        """At once."""
