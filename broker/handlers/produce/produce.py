"""Produce: check the batch, append it, acknowledge as asked.

Always true: nothing is written before the batch passed every check of its header; an ack leaves only after what `acks`
demands (design 7); batches of one connection are appended in the order they came, because the append happens while the
request is dispatched and only the waiting overlaps. Must not parse records: `records` says when somebody
has to.

Hot path: most requests come as runs (fast_path); what comes here is appended by the same `append_checked`, one
write a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.errors import ApiError, code_of
from broker.handlers.produce.append import append_checked
from broker.handlers.produce.batch_checks import BatchChecks
from broker.handlers.produce.records import RECORDS_BYTES_MAX, Look, is_cheap, look, must_look
from broker.handlers.request_deadline import deadline_s
from broker.net.dispatch import Later
from broker.partition.leading.leader_replica import LeaderReplica
from broker.wire.messages import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from logformat.errors import ThermoclineError
from logformat.record_batch import HEADER_SIZE, read_header
from seams.workers import Lane

Finish = Callable[[Later, ProduceResponse], None]

ACKS: Final = (-1, 0, 1)
_COUNT_BELIEVED_MAX: Final = 1 << 20
"""Records of a batch nobody checked yet. One of more is refused once, asked for by the append, and fits the retry."""


class PendingAcks:
    """What of an answer waits until its batches are committed."""

    __slots__ = ("_done", "_waiting")

    def __init__(self) -> None:
        self._waiting = 0
        self._done: Callable[[], None] | None = None

    def __bool__(self) -> bool:
        return self._waiting > 0

    def wait(
        self, partition: LeaderReplica, end_offset: int, until_s: float, fail: Callable[[Exception], None]
    ) -> None:
        """Wait unless everything below `end_offset` is committed; `fail` hears why where that fails."""
        if not partition.when_visible(end_offset, until_s, partial(self._acked, fail)):
            self._waiting += 1

    def when_done(self, done: Callable[[], None]) -> None:
        """Call `done` once none of them waits, which one does now."""
        self._done = done

    def _acked(self, fail: Callable[[Exception], None], failure: Exception | None) -> None:
        if failure is not None:
            fail(failure)
        self._waiting -= 1
        if self._waiting == 0 and self._done is not None:
            self._done()


Looks = Mapping[int, Look]
"""What workers found, by `id` of the request's `ProduceRequestPartition`."""

Unseen = list[tuple[ProduceRequestPartition, int]]
"""Batches to look into, each with how large it may be decompressed."""

NO_LOOKS: Final[Looks] = {}


def unseen(context: Context, request: ProduceRequest) -> Unseen:
    """What of the request a worker has to look into."""
    found = []
    validates = context.config.validate_records
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is None or len(data.records) < HEADER_SIZE:
                continue
            header = read_header(data.records)
            if not (validates or header.lacks_max_timestamp) or is_cheap(header, validates=validates):
                continue
            partition = context.registry.partitions.get((topic.name, data.index))
            if (
                partition is None
                or header.size != len(data.records)
                or header.size > partition.config.max_message_bytes
            ):
                continue  # refused without a look
            if must_look(header, validates=validates, stamps=partition.config.log_append_time):
                found.append((data, max(RECORDS_BYTES_MAX, partition.config.max_message_bytes)))
    return found


async def look_into(context: Context, batches: Unseen) -> Looks:
    """Have a worker look into these batches, one after the other: each may take its whole size in memory."""
    validates = context.config.validate_records
    looks: dict[int, Look] = {}
    for data, bytes_max in batches:
        assert data.records is not None
        one = partial(look, data.records, bytes_max, validates=validates)
        looks[id(data)] = await context.world.workers.run(one, lane=Lane.FILES)
    return looks


def append_all(
    context: Context, call: Call, request: ProduceRequest, pending: PendingAcks, looks: Looks = NO_LOOKS
) -> ProduceResponse:
    """Append every batch of the request now; `pending` counts what of the response has to wait for its commit."""
    refusal = None
    if request.acks not in ACKS:
        refusal = ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}; known are -1 (all), 0 and 1")
    elif request.transactional_id is not None:
        refusal = ApiError(ErrorCode.INVALID_TXN_STATE, "transactions are not served; produce without transactional.id")
    response = ProduceResponse()
    now_ms = context.world.clock.wall_ms()
    for topic in request.topic_data:
        answers = []
        for data in topic.partition_data:
            answer = ProduceResponsePartition(index=data.index, base_offset=-1)
            try:
                if refusal is not None:
                    raise refusal
                _append(context, call, request, topic.name, data, answer, pending, now_ms, looks.get(id(data)))
            except (ThermoclineError, OSError) as refused:
                refuse(answer, refused)
                context.metrics.failed_produce_requests += 1
            answers.append(answer)
        response.responses.append(ProduceResponseTopic(name=topic.name, partition_responses=answers))
    return response


def _append(
    context: Context,
    call: Call,
    request: ProduceRequest,
    topic: str,
    data: ProduceRequestPartition,
    answer: ProduceResponsePartition,
    pending: PendingAcks,
    now_ms: int,
    seen: Look | None,
) -> None:
    """Check and append one batch, and say so in `answer`. Raises ThermoclineError, OSError: nothing written."""
    partition = context.registry.partitions.get((topic, data.index))
    if partition is None:
        refusal = context.registry.refusal(topic, data.index)
        raise ApiError(refusal, f"this broker does not lead {topic}-{data.index}")
    if data.records is None or not len(data.records):
        raise ApiError(ErrorCode.INVALID_RECORD, "a produce request must carry one record batch a partition")
    batch = data.records
    header = BatchChecks(context, partition, call.version, request.acks, now_ms).check(batch, 0, len(batch), seen)
    appended = append_checked(context, partition, (batch,), (header,), now_ms)
    answer.base_offset = appended.base_offset
    answer.log_append_time_ms = appended.log_append_time_ms
    answer.log_start_offset = partition.log_start_offset
    if request.acks == -1:
        until_s = deadline_s(request.timeout_ms)
        pending.wait(partition, appended.last_offset + 1, until_s, partial(refuse, answer))


def short_of_offsets(context: Context, request: ProduceRequest) -> dict[LeaderReplica, int]:
    """Partitions whose offset reservation ends before what the request brings them, and where that ends.

    Batches are not checked yet: what cannot be read here is refused by the append.
    """
    ends: dict[LeaderReplica, int] = {}
    for topic in request.topic_data:
        for data in topic.partition_data:
            partition = context.registry.partitions.get((topic.name, data.index))
            if partition is None or data.records is None or len(data.records) < HEADER_SIZE:
                continue
            header = read_header(data.records)
            count = header.last_offset_delta + 1
            if count != header.record_count or count > _COUNT_BELIEVED_MAX:
                continue
            end_offset = ends.get(partition, partition.log.log_end_offset) + count
            if end_offset > partition.log.reserved_end:
                ends[partition] = end_offset
    return ends


async def more_offsets(short: Mapping[LeaderReplica, int], wait_s: float) -> None:
    """Wait until these partitions may give offsets up to these ends, `wait_s` at most for all of them together."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_s
    for partition, end_offset in short.items():
        partition.tier.reserve_soon(end_offset)
    for partition, end_offset in short.items():
        await partition.more_offsets(end_offset, until_s - loop.time())


def refuse(answer: ProduceResponsePartition, refused: Exception) -> None:
    """Make `answer` say why; no offset of it counts."""
    answer.error_code = code_of(refused)
    answer.error_message = str(refused)
    answer.base_offset = answer.log_append_time_ms = -1


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


def later(response: ProduceResponse, pending: PendingAcks, finish: Finish) -> Later:
    """The answer that leaves when every pending batch is committed, failed, or past the request's timeout."""
    answer = Later(blocks=False)
    pending.when_done(partial(finish, answer, response))
    return answer
