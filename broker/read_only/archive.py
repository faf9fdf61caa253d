"""The partitions and the image of a read-only broker, made from the images of the cluster that owns the bucket.

A partition is readable while its topic is in the image; a topic created again under its name is another one. An unread
partition costs only its name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final
from uuid import UUID

from broker.config.definitions import TOPIC_SYNONYMS
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import Node, Row
from broker.partition.registry import Registry
from broker.read_only.archived_partition import ArchivedPartition

if TYPE_CHECKING:
    from broker.groups.coordinator import GroupCoordinator
    from broker.read_only.root_cache import RootCache

_TOPIC_DEFAULTS: Final = frozenset(synonym.name for of in TOPIC_SYNONYMS.values() for synonym in of)


class Archive:
    """`broker.following.publisher.Effects` of a read-only broker, for images that `ArchiveImages` made. `groups` learn
    of deleted topics once set."""

    def __init__(self, registry: Registry, roots: RootCache) -> None:
        self._registry = registry
        self._roots = roots
        self.partitions: dict[tuple[str, int], ArchivedPartition] = {}
        self.groups: GroupCoordinator | None = None
        registry.readable = self.partitions

    def lead(self, topic: Topic, indexes: Collection[int]) -> None:
        """Serve these partitions, which are new or have another leader epoch."""
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
        """Stop serving the topic."""
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
        """Nothing to delete."""

    def resign(self, topic: Topic, indexes: Collection[int]) -> None:
        """`lead` follows with another epoch."""

    def follow_config(self) -> None:
        """Partitions have no config here."""

    def reconfigure(self, topic: Topic) -> None:
        """Partitions have no config here."""

    def apply(self, topic: Topic, indexes: Collection[int]) -> None:
        """Replicas belong to the owner of the bucket."""

    def follow(self, topic: Topic, indexes: Collection[int]) -> None:
        """Nothing is copied here."""

    def purge(self, topic: Topic) -> None:
        """The owner deletes its objects."""

    async def opened(self, topic_id: str) -> None:
        """Returns at once: there is nothing to open."""


class ArchiveImages:
    """The image that broker `node` shows: its owner's topics, ids, configs and leader epochs, with itself as leader and
    only replica.

    Internal topics are left out, because no object holds their records. Of configs for all brokers only topic defaults
    remain; others apply to the owner's processes. An unchanged topic is the same object in successive images, so the
    cost depends only on the changes. Pure.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._made: dict[str, tuple[Topic, Topic]] = {}

    def of(self, image: ClusterImage) -> ClusterImage:
        """The image to show for `image`."""
        before, made = self._made, dict[str, tuple[Topic, Topic]]()
        for topic_id, topic in image.topics.items():
            if not topic.internal:
                known = before.get(topic_id)
                made[topic_id] = known if known is not None and known[0] is topic else (topic, self._shown(topic))
        self._made = made
        return ClusterImage(
            topics={topic_id: shown for topic_id, (_, shown) in made.items()},
            deleted={topic_id: topic for topic_id, topic in image.deleted.items() if not topic.internal},
            nodes={self._node.node_id: self._node},
            cluster_configs={name: text for name, text in image.cluster_configs.items() if name in _TOPIC_DEFAULTS},
            acls=image.acls,  # they apply to the same principals, if this broker authenticates them in the same way
        )

    def _shown(self, topic: Topic) -> Topic:
        rows: dict[int, Row] = {}  # by leader epoch: most partitions share one
        return Topic(
            topic.topic_id,
            topic.name,
            tuple(rows.setdefault(row.leader_epoch, self._row(row.leader_epoch)) for row in topic.rows),
            topic.configs,
            topic.internal,
        )

    def _row(self, leader_epoch: int) -> Row:
        alone = (self._node.node_id,)
        return Row(alone, self._node.node_id, leader_epoch, 0, alone, leader_epoch)
