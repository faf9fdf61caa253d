"""DescribeProducers: the idempotent producers that a partition remembers (KIP-664).

A response has at most `PRODUCERS_MAX` producers and `PARTITIONS_MAX` partitions; a partition that does not fit is
refused as a whole.
"""

from __future__ import annotations

from typing import Final

from broker.config.topic.topic_config import InvalidTopicName, check_topic_name
from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.wire import messages as wire
from logformat.producer_snapshot import ProducerEntry

PRODUCERS_MAX: Final = 10_000  # most producers of one answer: 2 µs each on the loop
PARTITIONS_MAX: Final = 10_000


async def handle_describe_producers(
    context: Context, request: wire.DescribeProducersRequest, call: Call
) -> wire.DescribeProducersResponse:
    """Id, epoch and last sequence of each producer; its last timestamp is the time at which the broker appended its
    last batch."""
    answering = _Answering(context)
    named = sum(max(1, len(topic.partition_indexes)) for topic in request.topics)
    if named > PARTITIONS_MAX:
        flood = wire.DescribeProducersResponsePartition(
            partition_index=-1,
            error_code=ErrorCode.POLICY_VIOLATION,
            error_message=f"the request names {named} partitions; at most {PARTITIONS_MAX} are allowed",
        )
        return wire.DescribeProducersResponse(
            topics=[wire.DescribeProducersResponseTopic(name=request.topics[0].name, partitions=[flood])]
        )
    return wire.DescribeProducersResponse(
        topics=[
            wire.DescribeProducersResponseTopic(
                name=topic.name,
                partitions=[answering.partition(topic.name, index) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


class _Answering:
    """One response, and the number of producers that it may still contain."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._room = PRODUCERS_MAX

    def partition(self, topic: str, index: int) -> wire.DescribeProducersResponsePartition:
        answer = wire.DescribeProducersResponsePartition(partition_index=index)
        partition = self._context.registry.partitions.get((topic, index))
        if partition is None:
            answer.error_code, answer.error_message = self._unknown(topic, index)
            return answer
        producers = partition.log.producers
        if len(producers) > self._room:
            answer.error_code = ErrorCode.POLICY_VIOLATION
            answer.error_message = (
                f"{topic}-{index} remembers {len(producers)} producers; one answer carries at most {PRODUCERS_MAX}: "
                "ask for fewer partitions at a time"
            )
            return answer
        self._room -= len(producers)
        answer.active_producers = [_shown(entry) for entry in producers.at(0).state().producers]
        return answer

    def _unknown(self, topic: str, index: int) -> tuple[ErrorCode, str | None]:
        try:
            check_topic_name(topic)
        except InvalidTopicName as refused:
            return ErrorCode.INVALID_TOPIC_EXCEPTION, str(refused)
        registry = self._context.registry
        if registry.led_elsewhere(topic, index) is not None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
        if topic in registry.topics:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."


def _shown(entry: ProducerEntry) -> wire.DescribeProducersResponseProducer:
    return wire.DescribeProducersResponseProducer(
        producer_id=entry.producer_id,
        producer_epoch=entry.epoch,
        last_sequence=entry.batches[-1].last_sequence if entry.batches else -1,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.current_txn_first_offset,
    )
