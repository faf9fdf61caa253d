"""Topics as decisions: made, grown, deleted, forgotten.

Pure. Owns what makes a topic acceptable. Always true: a name has one topic, and none that differs from it in '.' and
'_' only; a deleted topic's name is free at once, and its id is remembered until its bytes are gone (C9). Must not know
who asks, or how a partition comes to serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.config.resolve import BrokerConfig
from broker.config.topic_changes import configs_at_creation
from broker.config.topics import check_topic_name
from broker.controller.decision import Decision, check_room
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import PartitionsAdded, TopicCreated, TopicDeleted, TopicPurged

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
PARTITIONS_PER_TOPIC_MAX: Final = 10_000  # one request must not make the broker create files for hours


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that could be, where nothing is in its way. `topic_id`: a UUID never used before."""

    topic_id: str
    name: str
    partitions: int
    configs: dict[str, str]
    internal: bool


def new_topic(
    topic_id: str,
    name: str,
    partitions: int,
    configs: Mapping[str, str | None],
    broker: BrokerConfig,
    *,
    internal: bool = False,
) -> NewTopic:
    """What a request asks for, judged by itself. Raises ApiError, InvalidTopicName, InvalidConfig."""
    check_topic_name(name)
    if name in INTERNAL_TOPICS and not internal:
        # A client's ordinary topic of that name would be tiered, deletable, and where groups write.
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal: the broker makes it when a group needs it"
        )
    if partitions < 1:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    if partitions > PARTITIONS_PER_TOPIC_MAX:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions; between 1 and {PARTITIONS_PER_TOPIC_MAX}"
        )
    kept = configs_at_creation(broker, configs, internal=internal)
    return NewTopic(topic_id, name, partitions, kept, internal)


def create(image: ClusterImage, wanted: NewTopic, image_bytes: int) -> Decision[Topic]:
    """The topic exists, and its partitions are to be led."""
    _check_free(image, wanted.name)
    check_room(image_bytes)
    topic = Topic(wanted.topic_id, wanted.name, wanted.partitions, wanted.configs, wanted.internal)
    created = TopicCreated(wanted.topic_id, wanted.name, wanted.partitions, wanted.configs, wanted.internal)
    return Decision((created,), topic)


def _check_free(image: ClusterImage, name: str) -> None:
    for topic in image.topics.values():
        if topic.name == name:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        # Kafka refuses these because its metric names map both to one; so do our directory-independent tools.
        if topic.name.replace(".", "_") == name.replace(".", "_"):
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {topic.name}"
            )


def add_partitions(image: ClusterImage, name: str, count: int) -> Decision[Topic]:
    """The topic has `count` partitions in all. The answer is the topic as it was."""
    topic = _named(image, name)
    if count <= topic.partitions:
        has = topic.partitions
        same, fewer = f"Topic already has {has} partition(s).", f"; {count} would not be an increase."
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            same if count == has else f"The topic {name} currently has {has} partition(s){fewer}",
        )
    if count > PARTITIONS_PER_TOPIC_MAX:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"at most {PARTITIONS_PER_TOPIC_MAX} partitions a topic")
    return Decision((PartitionsAdded(topic.topic_id, count),), topic)


def delete(image: ClusterImage, name: str, topic_id: str | None = None) -> Decision[Topic]:
    """The name is free. `topic_id`: only the topic of this id, whoever has the name now (KIP-516)."""
    if topic_id is not None and topic_id not in image.topics:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
    topic = _named(image, name)
    if topic.internal:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{name} is internal and cannot be deleted")
    return Decision((TopicDeleted(topic.topic_id),), topic)


def forget(image: ClusterImage, topic_id: str) -> Decision[None]:
    """Nothing of a deleted topic is left, on disk or in the bucket."""
    return Decision((TopicPurged(topic_id),) if topic_id in image.deleted else (), None)


def _named(image: ClusterImage, name: str) -> Topic:
    topic = image.topic_named(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    return topic
