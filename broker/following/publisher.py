"""The only way from an image to its effects (design, concept 3).

Owns the order in which a broker moves from one image to the next: resign, withdraw, swap what requests are told, drop,
obey other configs, count anew, lead, follow, purge. Always true: every broker follows it, the controller's own too; the
start publishes after the empty image, so nothing is opened or removed by another way; publishing never waits. Must not
know where images come from, nor what an effect takes.
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
    """Who turns what the image says of this broker into logs that serve, and back.

    No call waits or fails: each begins what it names, and goes on with it, however long disk or bucket let it wait,
    until a later call says otherwise. Calls about one topic are obeyed in the order in which they came.
    """

    def resign(self, topic: Topic, indexes: Collection[int]) -> None:
        """Lead these partitions no more, or follow them: who waits for one that was led fails NOT_LEADER_OR_FOLLOWER at
        once; logs stay open."""
        ...

    def withdraw(self, topic: Topic) -> None:
        """The topic was deleted: stop serving at once, then close its logs. Nothing is removed yet."""
        ...

    def drop(self, topic: Topic, indexes: Collection[int], *, is_seen: bool) -> None:
        """These partitions, of which every role is over, are other brokers' now: their logs here go. `is_seen`: rows
        said so to this process, in one session; else nothing is removed."""
        ...

    def follow_config(self) -> None:
        """Let every partition obey the broker's configuration as it is now."""
        ...

    def reconfigure(self, topic: Topic) -> None:
        """Let the topic's partitions obey its configs: those that are being opened, when they are open."""
        ...

    def lead(self, topic: Topic, indexes: Collection[int]) -> None:
        """Lead these partitions in the leader epochs the image has for them.

        A log that is not open is opened; a partition that was never changed since it was made has no log anywhere yet.
        """
        ...

    def apply(self, topic: Topic, indexes: Collection[int]) -> None:
        """Their leaders here count by another row, minimum or session of a replica from now on (`applied_row` of the
        image), in the same leader epoch."""
        ...

    def follow(self, topic: Topic, indexes: Collection[int]) -> None:
        """Copy these partitions from whoever leads them in the leader epochs the image has; where nobody does, wait
        for the next epoch. A log that is not open is opened, one that is not there made."""
        ...

    def purge(self, topic: Topic) -> None:
        """Remove a deleted topic's files; the controller's broker removes its objects too, and then has it forgotten.
        Said again of all that remain to a broker that becomes the controller's."""
        ...

    async def opened(self, topic_id: str) -> None:
        """Wait until all partitions of the topic that are to be led serve, or stay offline; at once when none are.

        Ends too when the topic is withdrawn meanwhile. Raises Retryable when the broker stops first.
        """
        ...


class Publisher:
    """One broker's."""

    def __init__(self, effects: Effects, metadata: MetadataCache, config: LiveConfig, node_id: int) -> None:
        self._effects = effects
        self._metadata = metadata
        self._config = config
        self._node_id = node_id

    @property
    def image(self) -> ClusterImage:
        """What this broker obeys; the empty one, before the first is published."""
        return self._metadata.image

    def publish(self, after: ClusterImage, controller: ControllerAt | None = None) -> None:
        """Obey `after`, which is newer than what was published before. `controller`: who decides."""
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
