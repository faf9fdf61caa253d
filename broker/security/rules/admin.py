"""Authorization of topics and configs: CreateTopics, DeleteTopics, CreatePartitions, DescribeConfigs, AlterConfigs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias
from uuid import UUID

from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.security.authorizer.access import Unrestricted
from broker.security.authorizer.kinds import CLUSTER_NAME, Operation, ResourceType
from broker.security.rules.verdict import (
    ALLOWED,
    CLUSTER,
    GROUP,
    MESSAGES,
    TOPIC,
    KnownTopics,
    Split,
    Verdict,
    parted_by,
    refused_whole,
    rest,
)
from broker.wire import messages as wire
from broker.wire.message import Message
from broker.wire.row_counts import deletion_counts, resource_counts, topic_counts

# Kafka's ConfigResource.Type
_OF_TOPIC: Final = 2
_OF_BROKER: Final = 4
_OF_BROKER_LOGGER: Final = 8
_OF_CLIENT_METRICS: Final = 16
_OF_GROUP: Final = 32
_OF_CLUSTER: Final = frozenset({_OF_BROKER, _OF_BROKER_LOGGER, _OF_CLIENT_METRICS})

_ConfigResource: TypeAlias = (
    wire.AlterConfigsRequestResource | wire.IncrementalAlterConfigsRequestResource | wire.DescribeConfigsRequestResource
)


async def create_topics(
    access: Unrestricted, request: wire.CreateTopicsRequest, version: int, topics: KnownTopics
) -> Verdict:
    """CREATE on the cluster or on each topic. The response shows the configs of a new topic only to a client with
    DESCRIBE_CONFIGS on it. A duplicate name is not checked, because the handler refuses it."""
    names = topic_counts(request)
    creates_all = access.allows_cluster(Operation.CREATE, audited=False)
    allowed, refused = await parted_by(
        request.topics,
        lambda topic: (
            creates_all or names[topic.name] > 1 or access.allows(Operation.CREATE, ResourceType.TOPIC, topic.name)
        ),
    )
    rows = [
        wire.CreateTopicsResponseTopic(name=topic.name, error_code=TOPIC, error_message="Authorization failed.")
        for topic in refused
    ]

    async def merge(response: wire.CreateTopicsResponse) -> None:
        for made in response.topics:
            if made.error_code == ErrorCode.NONE and not access.allows(
                Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, made.name, audited=False
            ):
                made.topic_config_error_code = TOPIC
                made.num_partitions = made.replication_factor = -1
                made.configs = []
        response.topics = [*response.topics, *rows]

    if not allowed and rows:
        return refused_whole(wire.CreateTopicsResponse(topics=rows))
    return Verdict(request=replace(request, topics=allowed), merge=merge)


async def create_partitions(
    access: Unrestricted, request: wire.CreatePartitionsRequest, version: int, topics: KnownTopics
) -> Verdict:
    """ALTER on each topic. A duplicate name is not checked, because the handler refuses it."""
    names = topic_counts(request)
    allowed, refused = await parted_by(
        request.topics,
        lambda topic: names[topic.name] > 1 or access.allows(Operation.ALTER, ResourceType.TOPIC, topic.name),
    )
    if not refused:
        return ALLOWED
    rows = [
        wire.CreatePartitionsResponseTopic(name=topic.name, error_code=TOPIC, error_message=None) for topic in refused
    ]
    if not allowed:
        return refused_whole(wire.CreatePartitionsResponse(results=rows))
    return rest(request, rows, "results", topics=allowed)


async def delete_topics(
    access: Unrestricted, request: wire.DeleteTopicsRequest, version: int, topics: KnownTopics
) -> Verdict:
    """DELETE on the cluster or on each topic. A client without DESCRIBE on a topic does not learn whether the topic
    exists, or which name belongs to an id. A duplicate name or id is not checked, because the handler refuses it."""
    if access.allows_cluster(Operation.DELETE, audited=False):
        return ALLOWED
    named = deletion_counts(request)
    rows: list[wire.DeleteTopicsResponseTopic] = []

    def refused(name: str | None, topic_id: UUID, code: ErrorCode, message: str) -> bool:
        rows.append(
            wire.DeleteTopicsResponseTopic(name=name, topic_id=topic_id, error_code=code, error_message=message)
        )
        return False

    def may(name: str | None, topic_id: UUID) -> bool:
        if (name is not None and topic_id != wire.ZERO_UUID) or (name is None and topic_id == wire.ZERO_UUID):
            return True  # the handler refuses it for every client
        if named[name, topic_id.bytes] > 1:
            return True
        known = topics.name_of(topic_id) if name is None else name
        if known is None:
            # The handler must not get the row: the image may have the topic before the handler reads it.
            return refused(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
        describes = access.allows(Operation.DESCRIBE, ResourceType.TOPIC, known)
        is_missing = describes and name is not None and topics.facts(name) is None
        if access.allows(Operation.DELETE, ResourceType.TOPIC, known, audited=not is_missing):
            return True
        if is_missing:
            # The handler must not get the row: a topic of the name may be created before the controller decides.
            return refused(name, topic_id, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        shown = name if name is not None else (known if describes else None)
        return refused(shown, topic_id, TOPIC, MESSAGES[TOPIC])

    allowed, _ = await parted_by(request.topics, lambda topic: may(topic.name, topic.topic_id))
    names, _ = await parted_by(request.topic_names, lambda name: may(name, wire.ZERO_UUID))
    if not rows:
        return ALLOWED
    if not allowed and not names:
        return refused_whole(wire.DeleteTopicsResponse(responses=rows))
    return rest(request, rows, "responses", topics=allowed, topic_names=names)


def _needed_of(resource: _ConfigResource) -> tuple[ResourceType, str, ErrorCode] | None:
    """The resource to authorize and the error of its denial. None for a kind without configs, which the handler
    refuses."""
    kind = resource.resource_type
    if kind == _OF_TOPIC:
        return ResourceType.TOPIC, resource.resource_name, TOPIC
    if kind == _OF_GROUP:
        return ResourceType.GROUP, resource.resource_name, GROUP
    if kind in _OF_CLUSTER:
        return ResourceType.CLUSTER, CLUSTER_NAME, CLUSTER
    return None


def alter_configs(row: Callable[..., Message]) -> Split:
    """ALTER_CONFIGS on each topic or group, and on the cluster for configs of brokers. A duplicate resource is not
    checked, because the handler refuses it. `row` is the class of a response's row."""

    async def split(access: Unrestricted, request: Any, version: int, topics: KnownTopics) -> Verdict:
        named = resource_counts(request.resources)
        allowed, refused = await parted_by(
            request.resources,
            lambda resource: (
                named[resource.resource_type, resource.resource_name] > 1
                or _may(access, Operation.ALTER_CONFIGS, resource)
            ),
        )
        if not refused:
            return ALLOWED
        rows = [_config_row(row, resource) for resource in refused]
        return rest(request, rows, "responses", resources=allowed)

    return split


def _may(access: Unrestricted, operation: Operation, resource: _ConfigResource) -> bool:
    needed = _needed_of(resource)
    return needed is None or access.allows(operation, needed[0], needed[1])


def _config_row(row: Callable[..., Message], resource: _ConfigResource) -> Message:
    needed = _needed_of(resource)
    assert needed is not None
    return row(
        error_code=needed[2],
        error_message=MESSAGES[needed[2]],
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


async def describe_configs(
    access: Unrestricted, request: wire.DescribeConfigsRequest, version: int, topics: KnownTopics
) -> Verdict:
    """DESCRIBE_CONFIGS on each topic or group, and on the cluster for configs of brokers."""
    allowed, refused = await parted_by(
        request.resources, lambda resource: _may(access, Operation.DESCRIBE_CONFIGS, resource)
    )
    if not refused:
        return ALLOWED
    rows = [_config_row(wire.DescribeConfigsResponseResult, resource) for resource in refused]
    return rest(request, rows, "results", resources=allowed)
