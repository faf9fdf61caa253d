"""Metadata: which broker leads what, and topics that are made because somebody asked for them.

Always true: only topics whose partitions serve are shown, each once however often it is named. Must not know how a
topic is made. Source: KIP-4, KIP-430, KIP-516.
"""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import UUID

from broker.config.topics import InvalidTopicName, check_topic_name
from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.handlers.authorized import Operations, authorized_operations
from broker.handlers.changes import within
from broker.metadata.image import Topic
from broker.wire.messages import (
    ZERO_UUID,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from logformat.errors import ThermoclineError
from seams.turns import Turns, next_turn

_NULL_TOPICS_MEAN_ALL_SINCE: Final = 1  # in v0 an empty list means all
_NULL_NAMES_SINCE: Final = 12
_AUTO_CREATED_PER_REQUEST_MAX: Final = 100  # topics a Metadata request may name and still create what is missing
_AUTO_CREATION_S: Final = 5.0  # how long a Metadata request waits for the topics it makes, all together


async def handle_metadata(context: Context, request: MetadataRequest, call: Call) -> MetadataResponse:
    """Brokers, and the topics asked for; a missing one is created when both sides allow it."""
    host, port = context.advertised[call.peer.listener]
    node_id = context.config.node_id
    authorized = authorized_operations(Operations.TOPIC, asked=request.include_topic_authorized_operations)
    turns = Turns()
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=context.config.rack)],
        cluster_id=context.metadata.cluster_id,
        controller_id=node_id,
        cluster_authorized_operations=authorized_operations(
            Operations.CLUSTER, asked=request.include_cluster_authorized_operations
        ),
    )
    everything = request.topics is None or (call.version < _NULL_TOPICS_MEAN_ALL_SINCE and not request.topics)
    if everything:
        for known in tuple(context.registry.topics.values()):
            response.topics.append(_shown(context, known, authorized))
            if turns.over(known.partitions):
                await next_turn()
    else:
        assert request.topics is not None
        # A set, as in Kafka: a name repeated 12 000 times is one topic.
        named = {
            (wanted.topic_id, "" if wanted.topic_id != ZERO_UUID else wanted.name): wanted for wanted in request.topics
        }
        may_create = context.config.auto_create_topics_enable and request.allow_auto_topic_creation
        may_create = may_create and len(named) <= _AUTO_CREATED_PER_REQUEST_MAX
        create_until_s = asyncio.get_running_loop().time() + _AUTO_CREATION_S if may_create else 0.0
        for wanted in named.values():
            found = await _one(context, wanted, call.version, create_until_s, authorized)
            response.topics.append(found)
            if turns.over(1 + len(found.partitions)):
                await next_turn()
    return response


async def _one(
    context: Context, wanted: MetadataRequestTopic, version: int, create_until_s: float, authorized: int
) -> MetadataResponseTopic:
    """`create_until_s`: the loop's time up to which a missing topic is made and waited for."""
    name = wanted.name
    if wanted.topic_id != ZERO_UUID:
        name = context.registry.names.get(wanted.topic_id)
        if name is None:
            unknown = wanted.name if version >= _NULL_NAMES_SINCE else wanted.name or ""
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=unknown, topic_id=wanted.topic_id)
    name = name or ""
    topic = context.registry.topics.get(name)
    if topic is not None:
        return _shown(context, topic, authorized)
    missing = MetadataResponseTopic(name=name, topic_authorized_operations=authorized)
    try:
        check_topic_name(name)
    except InvalidTopicName:
        # Final: "not available" would make a client ask for ever.
        missing.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
        return missing
    now_s = asyncio.get_running_loop().time()
    if create_until_s <= now_s or context.metadata.topic_named(name) is not None:
        # In the image but not in the registry: its partitions are still being opened.
        missing.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return missing
    try:
        partitions = context.config.num_partitions
        await within(create_until_s, lambda: context.controller.create_if_missing(name, partitions, {}))
        made = context.registry.topics.get(name)
        if made is not None:
            return _shown(context, made, authorized)
        missing.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # deleted in the moment it was open
    except ApiError as refused:
        missing.error_code = refused.code
    except (ThermoclineError, TimeoutError):
        missing.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    return missing


def _shown(context: Context, topic: Topic, authorized: int) -> MetadataResponseTopic:
    node_id = context.config.node_id
    partitions = []
    for index in range(topic.partitions):
        partition = context.registry.partitions.get((topic.name, index))
        if partition is None:
            partitions.append(
                MetadataResponsePartition(
                    error_code=ErrorCode.LEADER_NOT_AVAILABLE,
                    partition_index=index,
                    leader_id=-1,
                    replica_nodes=[node_id],
                    offline_replicas=[node_id],
                )
            )
        else:
            partitions.append(
                MetadataResponsePartition(
                    partition_index=index,
                    leader_id=node_id,
                    leader_epoch=partition.leader_epoch,
                    replica_nodes=[node_id],
                    isr_nodes=[node_id],
                )
            )
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=UUID(topic.topic_id),
        is_internal=topic.internal,
        partitions=partitions,
        topic_authorized_operations=authorized,
    )
