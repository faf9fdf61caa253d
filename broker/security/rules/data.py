"""Authorization of records and offsets: Produce, ListOffsets, OffsetForLeaderEpoch, DeleteRecords,
DescribeProducers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec.structs import replace

from broker.config.topic.topic_config import InvalidTopicName, check_topic_name
from broker.error_codes import ErrorCode
from broker.security.authorizer.access import Unrestricted
from broker.security.authorizer.kinds import Operation, ResourceType
from broker.security.rules.verdict import (
    ALLOWED,
    MESSAGES,
    TOPIC,
    TRANSACTION,
    KnownTopics,
    Split,
    Verdict,
    parted,
    parted_by,
    rest,
)
from broker.wire import messages as wire

_TRANSACTIONAL: Final = 1 << 4
_ATTRIBUTES: Final = 21  # position of the attributes in a batch header: two bytes, the low one last


def produce_at_once(access: Unrestricted, request: wire.ProduceRequest) -> Verdict:
    """The same rule as `produce`, for a request of few partitions. Hot path: one look-up for a request of one topic."""
    transacts = request.transactional_id is not None or has_transactional_records(request.topic_data)
    if transacts and not _may_transact(access, request):
        return _transaction_refused(request)
    refused = [
        topic for topic in request.topic_data if not access.allows(Operation.WRITE, ResourceType.TOPIC, topic.name)
    ]
    if not refused:
        return ALLOWED
    names = {topic.name for topic in refused}
    return _topics_refused(request, [topic for topic in request.topic_data if topic.name not in names], refused)


async def produce(access: Unrestricted, request: wire.ProduceRequest, version: int, topics: KnownTopics) -> Verdict:
    """WRITE on each topic, and for transactional records WRITE on the transactional id."""
    transactional, _ = await parted_by(request.topic_data, lambda topic: has_transactional_records((topic,)))
    if (transactional or request.transactional_id is not None) and not _may_transact(access, request):
        return _transaction_refused(request)
    allowed, refused = await parted(
        access, Operation.WRITE, ResourceType.TOPIC, request.topic_data, lambda topic: topic.name
    )
    return _topics_refused(request, allowed, refused) if refused else ALLOWED


def _may_transact(access: Unrestricted, request: wire.ProduceRequest) -> bool:
    transactional_id = request.transactional_id
    return transactional_id is not None and access.allows(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )


def _transaction_refused(request: wire.ProduceRequest) -> Verdict:
    rows = tuple(produce_row(topic, TRANSACTION) for topic in request.topic_data)
    return Verdict(request=replace(request, topic_data=[]), refused=rows)


def _topics_refused(
    request: wire.ProduceRequest, allowed: list[wire.ProduceRequestTopic], refused: list[wire.ProduceRequestTopic]
) -> Verdict:
    return Verdict(
        request=replace(request, topic_data=allowed), refused=tuple(produce_row(topic, TOPIC) for topic in refused)
    )


def produce_row(topic: wire.ProduceRequestTopic, code: ErrorCode, why: str | None = None) -> wire.ProduceResponseTopic:
    return wire.ProduceResponseTopic(
        name=topic.name,
        partition_responses=[
            wire.ProduceResponsePartition(index=data.index, error_code=code, base_offset=-1, error_message=why)
            for data in topic.partition_data
        ],
    )


def has_transactional_records(topics: Iterable[wire.ProduceRequestTopic]) -> bool:
    """Whether the first batch of some partition is transactional, as in Kafka."""
    return any(
        data.records is not None
        and len(data.records) > _ATTRIBUTES + 1
        and data.records[_ATTRIBUTES + 1] & _TRANSACTIONAL
        for topic in topics
        for data in topic.partition_data
    )


def on_topics(operation: Operation, refused_row: Callable[[Any], Any]) -> Split:
    """`operation` on each topic. `refused_row` makes the response's row of a refused topic."""

    async def split(access: Unrestricted, request: Any, version: int, topics: KnownTopics) -> Verdict:
        allowed, refused = await parted(access, operation, ResourceType.TOPIC, request.topics, lambda topic: topic.name)
        return rest(request, list(map(refused_row, refused)), topics=allowed) if refused else ALLOWED

    return split


def offsets_refused(topic: wire.ListOffsetsRequestTopic) -> wire.ListOffsetsResponseTopic:
    return wire.ListOffsetsResponseTopic(
        name=topic.name,
        partitions=[
            wire.ListOffsetsResponsePartition(partition_index=row.partition_index, error_code=TOPIC)
            for row in topic.partitions
        ],
    )


def deletion_refused(topic: wire.DeleteRecordsRequestTopic, code: ErrorCode = TOPIC) -> wire.DeleteRecordsResponseTopic:
    return wire.DeleteRecordsResponseTopic(
        name=topic.name,
        partitions=[
            wire.DeleteRecordsResponsePartition(partition_index=row.partition_index, low_watermark=-1, error_code=code)
            for row in topic.partitions
        ],
    )


async def offset_for_leader_epoch(
    access: Unrestricted, request: wire.OffsetForLeaderEpochRequest, version: int, topics: KnownTopics
) -> Verdict:
    """CLUSTER_ACTION on the cluster, or DESCRIBE on each topic."""
    if access.allows_cluster(Operation.CLUSTER_ACTION, audited=False):
        return ALLOWED
    allowed, refused = await parted(
        access, Operation.DESCRIBE, ResourceType.TOPIC, request.topics, lambda topic: topic.topic
    )
    if not refused:
        return ALLOWED
    rows = [
        wire.OffsetForLeaderEpochResponseTopic(
            topic=topic.topic,
            partitions=[
                wire.OffsetForLeaderEpochResponsePartition(partition=row.partition, error_code=TOPIC)
                for row in topic.partitions
            ],
        )
        for topic in refused
    ]
    return rest(request, rows, topics=allowed)


async def describe_producers(
    access: Unrestricted, request: wire.DescribeProducersRequest, version: int, topics: KnownTopics
) -> Verdict:
    """READ on each topic. An invalid name gets the same error for every client."""
    allowed, refused = await parted_by(
        request.topics,
        lambda topic: not _is_valid(topic.name) or access.allows(Operation.READ, ResourceType.TOPIC, topic.name),
    )
    if not refused:
        return ALLOWED
    rows = [
        wire.DescribeProducersResponseTopic(
            name=topic.name,
            partitions=[
                wire.DescribeProducersResponsePartition(
                    partition_index=index, error_code=TOPIC, error_message=MESSAGES[TOPIC]
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in refused
    ]
    return rest(request, rows, topics=allowed)


def _is_valid(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicName:
        return False
    return True
