"""Decides the creation, growth, deletion and removal of topics. Pure.

Names are unique; '.' and '_' count as equal. A deleted topic's name is free at once; its id is recorded until its files
and objects are deleted (C9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from broker.config.broker_config import BrokerConfig
from broker.config.topic.changes import configs_at_creation
from broker.config.topic.topic_config import check_topic_name
from broker.controller.decisions import placement
from broker.controller.decisions.decision import Decision, check_room
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import RowsSet, TopicCreated, TopicDeleted, TopicPurged
from broker.metadata.rows import new_rows

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
Assignments: TypeAlias = Sequence[tuple[int, Sequence[int]]]
PARTITIONS_PER_TOPIC_MAX: Final = 10_000  # one request must not make the broker create files for hours


class NewTopic(msgspec.Struct, frozen=True):
    """A requested topic. `topic_id`: a UUID never used before. `assignments`: (partition, replicas) pairs, instead of
    `partitions` and `replication_factor`. Empty: the controller chooses the replicas."""

    topic_id: str
    name: str
    partitions: int
    configs: Mapping[str, str | None]
    replication_factor: int = 1
    assignments: Assignments = ()
    internal: bool = False


def create(image: ClusterImage, wanted: NewTopic, broker: BrokerConfig, image_bytes: int) -> Decision[Topic]:
    """Create the topic. Refused in Kafka's order: name, configs, partitions. Raises ApiError, InvalidTopicName,
    InvalidConfig. `broker`: the defaults for the topic's configs."""
    check_topic_name(wanted.name)
    if not wanted.internal:
        refuse_internal(wanted.name)
    _check_free(image, wanted.name)
    configs = configs_at_creation(broker, wanted.configs, internal=wanted.internal)
    rows = new_rows(image, _replicas(image, wanted))
    check_room(image_bytes)
    topic = Topic(wanted.topic_id, wanted.name, rows, configs, wanted.internal)
    created = TopicCreated(wanted.topic_id, wanted.name, rows, configs, wanted.internal)
    return Decision((created,), topic)


def refuse_internal(name: str) -> None:
    """Raise ApiError for the name of an internal topic. A client would create an ordinary topic of that name: tiered
    and deletable, although groups write to it."""
    if name in INTERNAL_TOPICS:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal: the broker creates it when a group needs it"
        )


def _replicas(image: ClusterImage, wanted: NewTopic) -> list[placement.Replicas]:
    if wanted.assignments:
        _check_count(len(wanted.assignments))
        return placement.assigned(image, wanted.assignments)
    if wanted.replication_factor < 1:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if wanted.partitions < 1:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    _check_count(wanted.partitions)
    factor = wanted.replication_factor
    if wanted.internal:  # fewer replicas, so that groups do not wait for brokers that may join later
        factor = min(factor, len(placement.registered(image)))
    return placement.spread(image, wanted.partitions, factor)


def _check_count(partitions: int) -> None:
    if partitions > PARTITIONS_PER_TOPIC_MAX:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"a topic may have at most {PARTITIONS_PER_TOPIC_MAX} partitions, not {partitions}",
        )


def _check_free(image: ClusterImage, name: str) -> None:
    for topic in image.topics.values():
        if topic.name == name:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        # As in Kafka, where both topics would have the same metric names.
        if topic.name.replace(".", "_") == name.replace(".", "_"):
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {topic.name}"
            )


def add_partitions(
    image: ClusterImage, name: str, count: int, assignments: Sequence[Sequence[int]] | None = None
) -> Decision[Topic]:
    """Grow the topic to `count` partitions; returns the topic before the change. `assignments`: replicas of each new
    partition. None: the controller chooses the replicas."""
    topic = _named(image, name)
    if topic.internal:
        # Kafka accepts more partitions, and then searches groups in partitions that do not hold them.
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{name} is internal: with another number of partitions every group would lose what it stored",
        )
    if count <= topic.partitions:
        has = topic.partitions
        same, fewer = f"Topic already has {has} partition(s).", f"; {count} would not be an increase."
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            same if count == has else f"The topic {name} currently has {has} partition(s){fewer}",
        )
    _check_count(count)
    lacking = count - topic.partitions
    if assignments is None:
        factor = len(topic.rows[0].target or topic.rows[0].replicas)
        replicas = placement.spread(image, lacking, factor, topic.rows)
    else:
        replicas = placement.added(image, assignments, lacking, topic.rows)
    added = tuple(enumerate(new_rows(image, replicas), start=topic.partitions))
    return Decision((RowsSet(topic.topic_id, added),), topic)


def delete(image: ClusterImage, name: str, topic_id: str | None = None) -> Decision[Topic]:
    """Free the name. `topic_id`: the topic of this id, even if another topic has the name now (KIP-516)."""
    if topic_id is not None and topic_id not in image.topics:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
    topic = _named(image, name)
    if topic.internal:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{name} is internal and cannot be deleted")
    return Decision((TopicDeleted(topic.topic_id),), topic)


def purged(image: ClusterImage, topic_id: str) -> Decision[None]:
    """Remove the record of a deleted topic after its files and objects are deleted."""
    return Decision((TopicPurged(topic_id),) if topic_id in image.deleted else (), None)


def _named(image: ClusterImage, name: str) -> Topic:
    topic = image.topic_named(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    return topic
