"""The partitions and the image of a read-only broker, made from the images of the cluster that owns the bucket.

A partition is readable while its topic is in the image. A topic that was deleted and created again is another topic. A
partition without requests costs little memory.
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
    """The `broker.following.publisher.Effects` of a read-only broker, for images that `ArchiveImages` made. If `groups`
    is set, it is told about deleted topics."""

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
        """Does nothing: there is no log to delete."""

    def resign(self, topic: Topic, indexes: Collection[int]) -> None:
        """Does nothing: a call of `lead` with another epoch follows."""

    def follow_config(self) -> None:
        """Does nothing: partitions have no configs here."""

    def reconfigure(self, topic: Topic) -> None:
        """Does nothing: partitions have no configs here."""

    def apply(self, topic: Topic, indexes: Collection[int]) -> None:
        """Does nothing: the cluster that owns the bucket owns the replicas."""

    def follow(self, topic: Topic, indexes: Collection[int]) -> None:
        """Does nothing: no partition follows a leader here."""

    def purge(self, topic: Topic) -> None:
        """Does nothing: the owner of the bucket deletes the objects."""

    async def opened(self, topic_id: str) -> None:
        """Returns at once: there is no log to open."""


class ArchiveImages:
    """The images that broker `node` shows: the owner's topics, ids, configs and leader epochs, with `node` as leader
    and only replica.

    Internal topics are left out, because no object holds their records. Among the cluster-wide configs only the topic
    defaults are kept; the others apply to the owner's processes. An unchanged topic is the same object in successive
    images, so the cost depends only on the changes. Pure.
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
            acls=image.acls,  # valid if this broker authenticates principals as the owner does
        )

    def _shown(self, topic: Topic) -> Topic:
        rows: dict[int, Row] = {}  # by leader epoch; most partitions share one row
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
