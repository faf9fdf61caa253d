"""Produce: check the batch, append it, acknowledge as asked.

Always true: nothing is written before the batch passed every check of its header; an ack leaves only after what `acks`
demands (design 7); batches of one connection are appended in the order they came, because the append happens while the
request is dispatched and only the waiting overlaps. Must not parse records, except with `thermocline.validate.records`.

Hot path: one dictionary look-up, one header check with CRC, one write a batch; the answer is built when it is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from broker.context import Call, Context
from broker.errors import ApiError, code_of
from broker.net.dispatch import Later, Part
from broker.partition.partition import Partition
from broker.wire.errors import ErrorCode
from broker.wire.messages import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from logformat.errors import ThermoclineError
from logformat.record_batch import NO_TIMESTAMP, BatchHeader, Codec, check_batch
from logformat.records import validate_records

Finish = Callable[[asyncio.Future["list[Part] | None"], ProduceResponse], None]

_ACKS = (-1, 0, 1)
_ZSTD_SINCE = 7  # KIP-110: older clients cannot read it back
_TIMEOUT_MAX_S = 120.0  # what a client may make a request wait for its ack


class Pending(NamedTuple):
    """A partition whose answer waits until its batch is committed."""

    answer: ProduceResponsePartition
    committed: asyncio.Future[None]


def append_all(context: Context, call: Call, request: ProduceRequest) -> tuple[ProduceResponse, list[Pending]]:
    """Append every batch of the request now; what has to wait for its commit is listed beside the response."""
    response = ProduceResponse()
    pending: list[Pending] = []
    if request.acks not in _ACKS:
        failure = ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}; known are -1 (all), 0 and 1")
    elif request.transactional_id is not None:
        failure = ApiError(ErrorCode.INVALID_TXN_STATE, "transactions are not served; produce without transactional.id")
    else:
        failure = None
    now_ms = context.world.clock.wall_ms()
    for topic in request.topic_data:
        answers = []
        for data in topic.partition_data:
            answer = ProduceResponsePartition(index=data.index, base_offset=-1)
            try:
                if failure is not None:
                    raise failure
                _append(context, call, request.acks, topic.name, data, answer, pending, now_ms)
            except (ThermoclineError, OSError) as refused:
                answer.error_code = code_of(refused)
                answer.error_message = str(refused)
                context.metrics.produce_failed(topic.name)
            answers.append(answer)
        response.responses.append(ProduceResponseTopic(name=topic.name, partition_responses=answers))
    return response, pending


def _append(
    context: Context,
    call: Call,
    acks: int,
    topic: str,
    data: ProduceRequestPartition,
    answer: ProduceResponsePartition,
    pending: list[Pending],
    now_ms: int,
) -> None:
    partition = context.registry.partitions.get((topic, data.index))
    if partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"this broker does not lead {topic}-{data.index}")
    batch = data.records
    header = _checked(partition, call, batch, now_ms)
    assert batch is not None
    if acks == -1 and partition.config.min_insync_replicas > 1:
        raise ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{topic} asks for min.insync.replicas={partition.config.min_insync_replicas}, 1 replica is in sync",
        )
    if context.config.validate_records:
        validate_records(batch)
    appended = partition.append(batch, header, now_ms)
    answer.base_offset = appended.base_offset
    answer.log_append_time_ms = appended.log_append_time_ms
    answer.log_start_offset = partition.log_start_offset
    context.metrics.produced(len(batch), header.record_count)
    context.throttle.appended(partition)
    if acks == -1:
        committed = partition.visible(appended.last_offset + 1)
        if committed is not None:
            pending.append(Pending(answer, committed))


def _checked(partition: Partition, call: Call, batch: memoryview | None, now_ms: int) -> BatchHeader:
    if batch is None or not len(batch):
        raise ApiError(ErrorCode.INVALID_RECORD, "a produce request must carry one record batch a partition")
    config = partition.config
    header = check_batch(
        batch,
        0,
        len(batch),
        bytes_max=config.max_message_bytes,
        timestamp_min=max(now_ms - config.message_timestamp_before_max_ms, NO_TIMESTAMP),
        timestamp_max=now_ms + config.message_timestamp_after_max_ms,
    )
    if header.size != len(batch):
        raise ApiError(ErrorCode.INVALID_RECORD, "more than one record batch for a partition in one produce request")
    if call.version < _ZSTD_SINCE and header.codec is Codec.ZSTD:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or above (KIP-110)")
    return header


def unsupported_version(request: ProduceRequest) -> ProduceResponse:
    """What Produce 0–2 get: they are advertised for librdkafka's sake (KAFKA-18659), their message formats are gone."""
    return ProduceResponse(
        responses=[
            ProduceResponseTopic(
                name=topic.name,
                partition_responses=[
                    ProduceResponsePartition(index=data.index, error_code=ErrorCode.UNSUPPORTED_VERSION, base_offset=-1)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def later(request: ProduceRequest, response: ProduceResponse, pending: list[Pending], finish: Finish) -> Later:
    """The answer that leaves when every pending batch is committed, or the request's timeout ran out."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[list[Part] | None] = loop.create_future()
    waiting = [len(pending)]

    def settled(_: asyncio.Future[None]) -> None:
        waiting[0] -= 1
        if waiting[0] == 0:
            timer.cancel()
            answer()

    def answer() -> None:
        if done.done():
            return
        for item in pending:
            _settle(item)
        finish(done, response)

    timeout_s = min(max(request.timeout_ms, 0) / 1000, _TIMEOUT_MAX_S)
    timer = loop.call_later(timeout_s, answer)
    for item in pending:
        item.committed.add_done_callback(settled)
    return Later(done, blocks=False)


def _settle(item: Pending) -> None:
    if not item.committed.done():
        item.answer.error_code = ErrorCode.REQUEST_TIMED_OUT
        item.answer.error_message = "appended, but not committed within the request's timeout; it may still be"
        item.answer.base_offset = -1
        return
    failure = item.committed.exception()
    if failure is not None:
        assert isinstance(failure, Exception)
        item.answer.error_code = code_of(failure)
        item.answer.error_message = str(failure)
        item.answer.base_offset = -1
