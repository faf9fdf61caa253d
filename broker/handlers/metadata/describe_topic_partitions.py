"""DescribeTopicPartitions: topics and their partitions, a page at a time (KIP-966).

A page has at most `PARTITIONS_PER_PAGE_MAX` partitions and unknown topics together, ordered by topic name; a cursor has
the start of the next page.
"""

from __future__ import annotations

import heapq
from typing import Final
from uuid import UUID

from broker.config.topic.topic_config import InvalidTopicName, check_topic_name
from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.handlers.metadata.cluster_view import ClusterView
from broker.metadata.image import Topic
from broker.metadata.records import NO_LEADER
from broker.security.authorizer.access import Unrestricted
from broker.security.authorizer.kinds import Operation, ResourceType
from broker.security.rules.verdict import parted_by
from broker.wire import messages as wire

PARTITIONS_PER_PAGE_MAX: Final = 2_000  # Kafka's default of max.request.partition.size.limit


async def handle_describe_topic_partitions(
    context: Context, request: wire.DescribeTopicPartitionsRequest, call: Call
) -> wire.DescribeTopicPartitionsResponse:
    """One page of the named topics, or of all when none is named."""
    cursor = request.cursor
    first = "" if cursor is None else cursor.topic_name
    named = {topic.name for topic in request.topics}
    if cursor is not None and (cursor.partition_index < 0 or (named and first not in named)):
        # A cursor outside the named topics belongs to another request.
        return wire.DescribeTopicPartitionsResponse(
            topics=[
                wire.DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=name)
                for name in heapq.nsmallest(PARTITIONS_PER_PAGE_MAX, named or {first})
            ]
        )
    room = max(1, min(request.response_partition_limit, PARTITIONS_PER_PAGE_MAX))
    page = wire.DescribeTopicPartitionsResponse()
    # Every topic takes at least one row, so only as many names as rows are sorted, and one for the next page.
    view, known = ClusterView(context, call.peer.listener), context.metadata.topic_named
    names = named or [topic.name for topic in context.metadata.image.topics.values() if view.shows(topic)]
    names, hidden = await _split(call.access, [name for name in names if name >= first], asked=bool(named))
    for name in heapq.nsmallest(room + 1, names):
        if room == 0:
            page.next_cursor = wire.DescribeTopicPartitionsResponseCursor(topic_name=name)
            break
        topic = known(name)
        if topic is None or not view.shows(topic):
            page.topics.append(_unknown(call.access, name))
            room -= 1
            continue
        begin = cursor.partition_index if cursor is not None and name == first else 0
        end = min(topic.partitions, begin + room)
        page.topics.append(_shown(call.access, view, topic, range(begin, end)))
        room -= max(1, end - begin)
        if end < topic.partitions:
            page.next_cursor = wire.DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=end)
            break
    end_name = None if page.next_cursor is None else page.next_cursor.topic_name
    page.topics += [
        wire.DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
        for name in hidden
        if end_name is None or name < end_name
    ]
    return page


async def _split(access: Unrestricted, names: list[str], *, asked: bool) -> tuple[list[str], list[str]]:
    """The names that the client may describe, and the refused names if the request named them."""
    if not access.is_enforced:
        return names, []
    allowed, refused = await parted_by(
        names, lambda name: access.allows(Operation.DESCRIBE, ResourceType.TOPIC, name, audited=asked)
    )
    return allowed, refused if asked else []


def _unknown(access: Unrestricted, name: str) -> wire.DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except InvalidTopicName:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return wire.DescribeTopicPartitionsResponseTopic(
        error_code=code, name=name, topic_authorized_operations=access.operations(ResourceType.TOPIC, name)
    )


def _shown(
    access: Unrestricted, view: ClusterView, topic: Topic, indexes: range
) -> wire.DescribeTopicPartitionsResponseTopic:
    return wire.DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=UUID(topic.topic_id),
        is_internal=topic.internal,
        partitions=[_partition(view, topic, index) for index in indexes],
        topic_authorized_operations=access.operations(ResourceType.TOPIC, topic.name),
    )


def _partition(view: ClusterView, topic: Topic, index: int) -> wire.DescribeTopicPartitionsResponsePartition:
    seen, row = view.partition(topic, index), topic.rows[index]
    error, eligible = seen.error, list[int]()
    if row.leader == NO_LEADER or seen.leader_id != NO_LEADER:
        # In-sync members without a session are Kafka's ELR. A missing leader is not an error in this API.
        eligible = [node_id for node_id in row.in_sync if node_id not in seen.in_sync]
        error = ErrorCode.NONE
    return wire.DescribeTopicPartitionsResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=seen.leader_id,
        leader_epoch=seen.leader_epoch,
        replica_nodes=seen.replicas,
        isr_nodes=seen.in_sync,
        eligible_leader_replicas=eligible,
        last_known_elr=[],
        offline_replicas=seen.offline,
    )
