"""Metadata cache: the applied image, by topic id and name, for every request.

The publisher replaces the image in one step, so two reads agree if no await is between them. A topic appears here when
it is committed. Its partitions serve once they are open (`broker.partition.registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.cluster_content import ControllerAt
from broker.metadata.image import ClusterImage, Topic, TopicFacts
from broker.metadata.records import NO_EPOCH, Node


class TopicNames:
    """Names of topics by id, of one image. Found ids are cached, because a fetch without a session asks for the same
    ids each time."""

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self._topics = topics
        self._found: dict[UUID, str] = {}

    def get(self, topic_id: UUID) -> str | None:
        name = self._found.get(topic_id)
        if name is None and (topic := self._topics.get(str(topic_id))) is not None:
            name = self._found[topic_id] = topic.name
        return name


class MetadataCache:
    """The applied image. It is swapped a few times a minute and read by every admin request."""

    def __init__(self, cluster_id: str, monotonic_s: Callable[[], float] = lambda: 0.0) -> None:
        self.cluster_id = cluster_id
        self._monotonic_s = monotonic_s
        self.image = ClusterImage()
        self.controller: ControllerAt | None = None
        """The controller of this image; None before the first image, and while the root has format 1."""
        self.controller_since_s = 0.0  # time of the last change, by the monotonic clock
        self.swaps = 0  # number of swaps; values read from the image are valid until it changes
        self.names = TopicNames({})
        self._by_name: dict[str, Topic] = {}

    def swap(self, image: ClusterImage, controller: ControllerAt | None = None) -> None:
        """Use another image; 0.3 ms for 5 000 topics."""
        if controller != self.controller:
            self.controller_since_s = self._monotonic_s()
        self.swaps += 1
        self.image, self.controller = image, controller
        self.names = TopicNames(image.topics)
        self._by_name = {topic.name: topic for topic in image.topics.values()}

    def is_decided_by(self, node_id: int) -> bool:
        return self.decided_elsewhere(node_id) is None

    def decided_elsewhere(self, node_id: int) -> ControllerAt | None:
        """The controller, if it is another node."""
        return None if self.controller is None or self.controller.node_id == node_id else self.controller

    def broker_epoch(self, node_id: int) -> int:
        """Broker epoch of the node's last session in this image; NO_EPOCH: the node never had a session."""
        node = self.image.nodes.get(node_id)
        return NO_EPOCH if node is None else node.broker_epoch

    def active_node(self, node_id: int) -> Node | None:
        """The node, if it has a session in this image."""
        node = self.image.nodes.get(node_id)
        return node if node is not None and node.active else None

    def topic_named(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def topic(self, name: str) -> Topic:
        """The topic of this name. Raises ApiError UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self._by_name.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return topic

    def facts(self, name: str) -> TopicFacts | None:
        """The facts about a topic that groups need; None: the topic is deleted, or was never created. The image that
        moves a group to another broker is newer than the images of the group's commits. The new coordinator thus knows
        every topic of the committed positions, or knows that the topic is deleted.
        """
        topic = self._by_name.get(name)
        return None if topic is None else TopicFacts(UUID(topic.topic_id), topic.partitions)

    def is_deleted(self, topic_id: UUID) -> bool:
        """Whether the image records the topic of this id as deleted. The record disappears once no file or object of
        the topic remains."""
        return str(topic_id) in self.image.deleted

    def name_of(self, topic_id: UUID) -> str | None:
        return self.names.get(topic_id)

    def leaving(self) -> list[str]:
        """Names of deleted topics that still have files or objects."""
        return [topic.name for topic in self.image.deleted.values()]
