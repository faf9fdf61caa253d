"""Applies one image after another to this broker (design, concept 3).

The order is: resign, withdraw, swap the metadata cache, drop, apply configs, apply rows, lead, follow, purge. The first
image at start is published as a change from the empty image, so logs are opened and removed in one way only. Publishing
never waits.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from broker.config.live import LiveConfig
from broker.following.changes import changes
from broker.following.metadata_cache import MetadataCache
from broker.metadata.cluster_content import ControllerAt
from broker.metadata.image import ClusterImage, Topic


class Effects(Protocol):
    """The operations of `ReplicaManager` for an image. No call waits or fails. A call starts work in the background,
    which continues until a later call replaces it. Calls for one topic take effect in order."""

    def resign(self, topic: Topic, indexes: Collection[int]) -> None:
        """Stop leading or following these partitions. Waiters of a led partition fail with NOT_LEADER_OR_FOLLOWER at
        once. Logs stay open."""

    def withdraw(self, topic: Topic) -> None:
        """The topic was deleted: stop serving at once, then close its logs. Nothing is removed yet."""

    def drop(self, topic: Topic, indexes: Collection[int], *, is_seen: bool) -> None:
        """Remove the logs of these partitions. Their roles ended, because other brokers hold the partitions now.
        `is_seen`: rows of one session of this process show the change. If they do not, nothing is removed."""

    def follow_config(self) -> None:
        """Apply the broker's current configuration to every partition."""

    def reconfigure(self, topic: Topic) -> None:
        """Apply the topic's configs to its partitions. A partition that is being opened gets them when it is open."""

    def lead(self, topic: Topic, indexes: Collection[int]) -> None:
        """Lead these partitions in the leader epochs of the image. A closed log is opened. A partition that never
        changed since its creation has no log anywhere."""

    def apply(self, topic: Topic, indexes: Collection[int]) -> None:
        """The local leaders of these partitions apply another row, minimum or replica session (`applied_row` of the
        image), in the same leader epoch."""

    def follow(self, topic: Topic, indexes: Collection[int]) -> None:
        """Follow the leaders of these partitions in the leader epochs of the image; without a leader, wait for the next
        epoch. A closed log is opened, and a missing log is created."""

    def purge(self, topic: Topic) -> None:
        """Remove a deleted topic's files. The controller's broker also removes its objects and then forgets the topic.
        Called again for all deleted topics when this broker becomes the controller."""

    async def opened(self, topic_id: str) -> None:
        """Wait until each partition of the topic that is led here serves or stays offline. The wait also ends when the
        topic is withdrawn. Raises Retryable when the broker stops first.
        """


class Publisher:
    def __init__(self, effects: Effects, metadata: MetadataCache, config: LiveConfig, node_id: int) -> None:
        self._effects = effects
        self._metadata = metadata
        self._config = config
        self._node_id = node_id

    @property
    def image(self) -> ClusterImage:
        return self._metadata.image

    def publish(self, after: ClusterImage, controller: ControllerAt | None = None) -> None:
        """Apply the image `after`, which is newer than the last image. `controller`: the controller in that image."""
        found = changes(self.image, after, self._node_id)
        effects, metadata = self._effects, self._metadata
        has_decided = metadata.is_decided_by(self._node_id)
        for share in found.resign:
            effects.resign(share.topic, share.indexes)
        for topic in found.withdraw:
            effects.withdraw(topic)
        self._metadata.swap(after, controller)
        for share in found.drop:
            effects.drop(share.topic, share.indexes, is_seen=found.is_seen)
        if found.follow_config and self._config.apply(*after.configs_of(self._node_id)):
            effects.follow_config()
        for topic in found.reconfigure:
            effects.reconfigure(topic)
        for share in found.apply:
            effects.apply(share.topic, share.indexes)
        for share in found.lead:
            effects.lead(share.topic, share.indexes)
        for share in found.follow:
            effects.follow(share.topic, share.indexes)
        takes_office = not has_decided and metadata.is_decided_by(self._node_id)
        for topic in after.deleted.values() if takes_office else found.purge:
            effects.purge(topic)
