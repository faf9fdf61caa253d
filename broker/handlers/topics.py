"""Metadata, and creating, growing, trimming and deleting topics.

Always true: only topics whose partitions serve are shown; a request that names too much is refused before work begins.
Must not know how a change is committed. Source: KIP-4, KIP-195, KIP-107, KIP-516.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar, cast
from uuid import UUID

from broker.config.describe import describe_topic
from broker.config.topics import InvalidTopicName, check_topic_name
from broker.context import Call, Context
from broker.errors import ApiError, code_of
from broker.metadata.image import Topic
from broker.partition.partition import Partition
from broker.wire.errors import ErrorCode
from broker.wire.messages import (
    ZERO_UUID,
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
    CreatePartitionsResponse,
    CreatePartitionsResponseTopic,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
    CreateTopicsResponseConfig,
    CreateTopicsResponseTopic,
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsResponse,
    DeleteRecordsResponsePartition,
    DeleteRecordsResponseTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DeleteTopicsResponse,
    DeleteTopicsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from logformat.errors import ThermoclineError

_NULL_TOPICS_MEAN_ALL_SINCE: Final = 1  # in v0 an empty list means all
_NULL_NAMES_SINCE: Final = 12
_DELETION_DISABLED_SINCE: Final = 3
_AUTO_CREATED_PER_REQUEST_MAX: Final = 100  # topics a Metadata request may name and still create what is missing
_TOPICS_PER_REQUEST_MAX: Final = 1_000  # changes a single admin request may ask for
_AUTO_CREATION_S: Final = 5.0  # how long a Metadata request waits for the topics it makes, all together
_TIMEOUT_MAX_S: Final = 120.0
_DEFAULT: Final = -1  # partitions or replication factor "as the broker thinks" (KIP-464)

R = TypeVar("R")


async def handle_metadata(context: Context, request: MetadataRequest, call: Call) -> MetadataResponse:
    """Brokers, and the topics asked for; a missing one is created when both sides allow it."""
    host, port = context.advertised
    node_id = context.config.node_id
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=context.config.rack)],
        cluster_id=context.controller.cluster_id,
        controller_id=node_id,
    )
    everything = request.topics is None or (call.version < _NULL_TOPICS_MEAN_ALL_SINCE and not request.topics)
    if everything:
        response.topics = [_shown(context, topic) for topic in context.registry.topics.values()]
    else:
        assert request.topics is not None
        may_create = context.config.auto_create_topics_enable and request.allow_auto_topic_creation
        may_create = may_create and len(request.topics) <= _AUTO_CREATED_PER_REQUEST_MAX
        create_until_s = asyncio.get_running_loop().time() + _AUTO_CREATION_S if may_create else 0.0
        for wanted in request.topics:
            response.topics.append(await _one(context, wanted, call.version, create_until_s))
    return response


async def _one(
    context: Context, wanted: MetadataRequestTopic, version: int, create_until_s: float
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
        return _shown(context, topic)
    try:
        check_topic_name(name)
    except InvalidTopicName:
        # Final: "not available" would make a client ask for ever.
        return MetadataResponseTopic(error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, name=name)
    left_s = create_until_s - asyncio.get_running_loop().time()
    try:
        if left_s <= 0 or context.controller.image.topic_named(name) is not None:
            # In the image but not in the registry: its partitions are still being opened.
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
        await within(context, int(left_s * 1000), lambda: _made(context, name))
        return _shown(context, context.registry.topics[name])
    except ApiError as refused:
        return MetadataResponseTopic(error_code=refused.code, name=name)
    except (ThermoclineError, TimeoutError):
        return MetadataResponseTopic(error_code=ErrorCode.LEADER_NOT_AVAILABLE, name=name)


async def _made(context: Context, name: str) -> None:
    """Make a topic of default shape and wait until it serves; another client's request may have come first."""
    controller = context.controller
    try:
        await controller.create_topic(name, context.config.num_partitions, {})
    except ApiError as refused:
        if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
        await controller.opened(controller.topic(name))


def _shown(context: Context, topic: Topic) -> MetadataResponseTopic:
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
        name=topic.name, topic_id=UUID(topic.topic_id), is_internal=topic.internal, partitions=partitions
    )


async def within(context: Context, timeout_ms: int, change: Callable[[], Awaitable[R]]) -> R:
    """Run an admin change within the request's timeout; the change itself goes on, only the wait ends (as in Kafka).

    Cancelled in the middle, it would leave the bucket's word and ours apart. Raises TimeoutError and as `change`.
    """
    changing = change()

    async def outcome() -> tuple[R | None, Exception | None]:
        try:
            return await changing, None
        except (ThermoclineError, OSError) as failure:  # the answer's business, not a failed task's
            return None, failure

    task = context.tasks.spawn("admin change", outcome())
    async with asyncio.timeout(min(max(timeout_ms, 0) / 1000, _TIMEOUT_MAX_S)):
        result, failure = await asyncio.shield(task)
    if failure is not None:
        raise failure
    return cast(R, result)


def refuse_flood(items: Sequence[object]) -> None:
    """Too many changes in one request: refused before the first is made."""
    if len(items) > _TOPICS_PER_REQUEST_MAX:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION, f"{len(items)} changes in one request, at most {_TOPICS_PER_REQUEST_MAX}"
        )


async def handle_create_topics(context: Context, request: CreateTopicsRequest, call: Call) -> CreateTopicsResponse:
    """Create each topic or say why not; names given twice are refused."""
    names = Counter(wanted.name for wanted in request.topics)
    response = CreateTopicsResponse()
    for wanted in request.topics:
        answer = CreateTopicsResponseTopic(name=wanted.name, error_message=None)
        try:
            refuse_flood(request.topics)
            if names[wanted.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"topic {wanted.name!r} is named twice")
            await _create(context, request, wanted, answer)
        except (ThermoclineError, TimeoutError) as refused:
            answer.error_code = code_of(refused)
            answer.error_message = str(refused) or answer.error_code.name
        response.topics.append(answer)
    return response


async def _create(
    context: Context, request: CreateTopicsRequest, wanted: CreateTopicsRequestTopic, answer: CreateTopicsResponseTopic
) -> None:
    partitions = _partition_count(context, wanted)
    configs = {config.name: config.value for config in wanted.configs}
    topic = await within(
        context,
        request.timeout_ms,
        lambda: context.controller.create_topic(wanted.name, partitions, configs, validate_only=request.validate_only),
    )
    answer.topic_id = UUID(topic.topic_id)
    answer.num_partitions = partitions
    answer.replication_factor = 1
    answer.configs = [
        CreateTopicsResponseConfig(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.sensitive,
        )
        for entry in describe_topic(context.config, topic.configs)
    ]


def _partition_count(context: Context, wanted: CreateTopicsRequestTopic) -> int:
    if wanted.assignments:
        if wanted.num_partitions != _DEFAULT or wanted.replication_factor != _DEFAULT:
            raise ApiError(ErrorCode.INVALID_REQUEST, "give either an assignment or counts, not both")
        indexes = sorted(assignment.partition_index for assignment in wanted.assignments)
        replicas = [assignment.broker_ids for assignment in wanted.assignments]
        if indexes != list(range(len(indexes))) or any(ids != [context.config.node_id] for ids in replicas):
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"every replica is node {context.config.node_id}")
        return len(indexes)
    replication_factor = wanted.replication_factor
    if replication_factor == _DEFAULT:
        replication_factor = context.config.default_replication_factor
    if replication_factor != 1:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor}, but 1 broker is available; use 1",
        )
    return context.config.num_partitions if wanted.num_partitions == _DEFAULT else wanted.num_partitions


async def handle_delete_topics(context: Context, request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    """Free each name; what the topic left is removed in the background."""
    wanted = request.topics or [DeleteTopicsRequestTopic(name=name) for name in request.topic_names]
    response = DeleteTopicsResponse()
    for topic in wanted:
        name = topic.name
        answer = DeleteTopicsResponseTopic(name=name, topic_id=topic.topic_id)
        try:
            refuse_flood(wanted)
            if not context.config.delete_topics:
                known = call.version >= _DELETION_DISABLED_SINCE
                raise ApiError(
                    ErrorCode.TOPIC_DELETION_DISABLED if known else ErrorCode.INVALID_REQUEST,
                    "this broker runs with delete.topic.enable=false",
                )
            if name is None:
                name = context.registry.names.get(topic.topic_id)
                if name is None:
                    raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic.topic_id}")
            chosen = name
            deleted = await within(
                context,
                request.timeout_ms,
                lambda: context.controller.delete_topic(chosen),  # noqa: B023
            )
            answer.name, answer.topic_id = name, UUID(deleted.topic_id)
        except (ThermoclineError, TimeoutError) as refused:
            answer.error_code = code_of(refused)
            answer.error_message = str(refused)
        response.responses.append(answer)
    return response


async def handle_create_partitions(
    context: Context, request: CreatePartitionsRequest, call: Call
) -> CreatePartitionsResponse:
    """Grow topics; every topic asked for is answered."""
    names = Counter(wanted.name for wanted in request.topics)
    response = CreatePartitionsResponse()
    for wanted in request.topics:
        answer = CreatePartitionsResponseTopic(name=wanted.name)
        try:
            refuse_flood(request.topics)
            if names[wanted.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"topic {wanted.name!r} is named twice")
            await _grow(context, request, wanted)
        except (ThermoclineError, TimeoutError) as refused:
            answer.error_code = code_of(refused)
            answer.error_message = str(refused)
        response.results.append(answer)
    return response


async def _grow(context: Context, request: CreatePartitionsRequest, wanted: CreatePartitionsRequestTopic) -> None:
    topic = context.controller.topic(wanted.name)
    if wanted.assignments is not None:
        added = wanted.count - topic.partitions
        if len(wanted.assignments) != added or any(
            assignment.broker_ids != [context.config.node_id] for assignment in wanted.assignments
        ):
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"every replica is node {context.config.node_id}")
    await within(
        context,
        request.timeout_ms,
        lambda: context.controller.add_partitions(wanted.name, wanted.count, validate_only=request.validate_only),
    )


async def handle_delete_records(context: Context, request: DeleteRecordsRequest, call: Call) -> DeleteRecordsResponse:
    """Move log starts; on a tiered partition the root holds the new start before the answer leaves (C26)."""
    response = DeleteRecordsResponse()
    for topic in request.topics:
        answers = []
        for wanted in topic.partitions:
            answer = DeleteRecordsResponsePartition(partition_index=wanted.partition_index, low_watermark=-1)
            try:
                answer.low_watermark = await within(
                    context,
                    request.timeout_ms,
                    lambda: _delete_records(context, topic.name, wanted),  # noqa: B023
                )
            except (ThermoclineError, TimeoutError) as refused:
                answer.error_code = code_of(refused)
            answers.append(answer)
        response.topics.append(DeleteRecordsResponseTopic(name=topic.name, partitions=answers))
    return response


async def _delete_records(context: Context, topic: str, wanted: DeleteRecordsRequestPartition) -> int:
    partition: Partition | None = context.registry.partitions.get((topic, wanted.partition_index))
    if partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if "delete" not in partition.config.cleanup_policy:
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"{topic} has no delete in its cleanup.policy")
    offset = partition.high_watermark if wanted.offset == -1 else wanted.offset
    if not 0 <= offset <= partition.high_watermark:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if offset > partition.log_start_offset:
        await partition.tier.delete_records(offset)
    return partition.log_start_offset
