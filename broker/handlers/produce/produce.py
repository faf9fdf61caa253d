"""Produce: checks a batch, appends it, and acknowledges it as `acks` demands (design 7).

A batch is written only after every check of its header passed. Batches of one connection are appended in the order of
arrival, because the append happens during dispatch; only waits overlap.

Hot path: most requests come as runs (`fast_path`). Other requests are appended by the same `append_checked`, with one
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
from broker.handlers.produce.batch_checks import (
    RECORDS_BYTES_MAX,
    BatchChecks,
    Inspection,
    KeylessRecords,
    LoopBudget,
    inspect_records,
    inspects_on_loop,
    must_inspect,
)
from broker.handlers.produce.recompression import Recompressed
from broker.handlers.produce.verification import Verification, not_verified
from broker.handlers.request_limits import deadline_s
from broker.net.dispatch import Later
from broker.partition.leading.leader_replica import LeaderReplica
from broker.wire.messages import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseRecordError,
    ProduceResponseTopic,
)
from hotstore.errors import TransactionNotVerified
from logformat.errors import ThermoclineError
from logformat.record_batch import ATTRIBUTES, HEADER_SIZE, TRANSACTIONAL_BIT, read_header
from seams.loop.slots import Slots
from seams.loop.workers import Lane

Finish = Callable[[Later, ProduceResponse], None]

ACKS: Final = (-1, 0, 1)
_COUNT_BELIEVED_MAX: Final = 1 << 20
"""Most records of an unchecked batch for which offsets are reserved ahead. A batch with more is refused once; its
append asks for the offsets, so the producer's retry succeeds.
"""


class PendingAcks:
    """Batches of a response that are not committed yet."""

    __slots__ = ("_done", "_waiting")

    def __init__(self) -> None:
        self._waiting = 0
        self._done: Callable[[], None] | None = None

    def __bool__(self) -> bool:
        return self._waiting > 0

    def wait(
        self, partition: LeaderReplica, end_offset: int, until_s: float, fail: Callable[[Exception], None]
    ) -> None:
        """Wait unless everything below `end_offset` is committed. `fail` is called with the reason when the commit
        fails."""
        if not partition.when_visible(end_offset, until_s, partial(self._acked, fail)):
            self._waiting += 1

    def when_done(self, done: Callable[[], None]) -> None:
        """Call `done` when no batch is pending. At least one is pending now."""
        self._done = done

    def _acked(self, fail: Callable[[Exception], None], failure: Exception | None) -> None:
        if failure is not None:
            fail(failure)
        self._waiting -= 1
        if self._waiting == 0 and self._done is not None:
            self._done()


Inspections = Mapping[int, Inspection]
"""Results of the workers, by `id` of the request's `ProduceRequestPartition`."""

Uninspected = list[tuple[ProduceRequestPartition, int, bool]]
"""Batches to inspect, each with the most bytes it may have decompressed, and whether its topic is compacted."""

RECORD_ERRORS_MAX: Final = 1_000
"""Most refused records in one response, 0.3 KB each; Kafka lists all. The error message has the count."""

Recompressions = Mapping[int, Recompressed]
"""Batches recompressed to their topic's codec, by the same ids."""

NO_RECOMPRESSIONS: Final[Recompressions] = {}


def uninspected(context: Context, request: ProduceRequest) -> Uninspected:
    """The batches of the request whose records a worker has to inspect."""
    found = []
    budget = LoopBudget()
    for topic in request.topic_data:
        for data in topic.partition_data:
            partition = context.registry.partitions.get((topic.name, data.index))
            if partition is None or data.records is None or len(data.records) < HEADER_SIZE:
                continue
            config, header = partition.config, read_header(data.records)
            checks = context.config.validate_records or config.compacts
            if not must_inspect(header, checks=checks, stamps=config.log_append_time):
                continue
            # The loop would read the batch in its stored form, which is compressed if the topic has a codec.
            if config.compression is None and inspects_on_loop(header, budget, checks=checks):
                continue
            if header.size == len(data.records) <= config.max_message_bytes:  # otherwise the append refuses it
                found.append((data, max(RECORDS_BYTES_MAX, config.max_message_bytes), checks))
    return found


async def inspect_in_worker(
    context: Context, batches: Uninspected, slots: Slots, owner: str, until_s: float
) -> Inspections:
    """Inspect these batches in a worker, one after the other, each in a slot: each may take its size in memory. Batches
    that have no slot by the loop's time `until_s` are left out, and the append refuses them (`NeedsWorker`)."""
    inspections: dict[int, Inspection] = {}
    for data, bytes_max, checks in batches:
        assert data.records is not None
        one = partial(inspect_records, data.records, bytes_max, checks=checks)
        try:
            await slots.take(1, until_s, owner)
        except TimeoutError:
            break
        try:
            inspections[id(data)] = await context.world.workers.run(one, lane=Lane.RECORDS)
        finally:
            slots.give_back(1, owner)
    return inspections


def append_all(
    context: Context,
    call: Call,
    request: ProduceRequest,
    pending: PendingAcks,
    inspections: Inspections,
    verification: Verification | None,
    recompressions: Recompressions = NO_RECOMPRESSIONS,
) -> ProduceResponse:
    """Append every batch of the request now; `pending` counts the batches for whose commit the response has to wait.
    `verification`: the coordinators' answers in this turn of the event loop."""
    refusal = None
    if request.acks not in ACKS:
        refusal = ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks} is not valid; write -1 (all), 0 or 1")
    elif request.transactional_id is not None and context.verifier is None:
        refusal = ApiError(ErrorCode.INVALID_TXN_STATE, "transactions are not served; produce without transactional.id")
    response = ProduceResponse()
    now_ms, budget = context.world.clock.wall_ms(), LoopBudget()
    names_left = RECORD_ERRORS_MAX
    for topic in request.topic_data:
        answers = []
        for data in topic.partition_data:
            answer = ProduceResponsePartition(index=data.index, base_offset=-1)
            try:
                if refusal is not None:
                    raise refusal
                seen, made = inspections.get(id(data)), recompressions.get(id(data))
                clues = seen, made, verification
                _append(context, call, request, topic.name, data, answer, pending, now_ms, budget, *clues)
            except (ThermoclineError, OSError) as refused:
                refuse(answer, refused)
                if isinstance(refused, KeylessRecords):
                    names_left -= _name_records(answer, refused, names_left)
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
    budget: LoopBudget,
    seen: Inspection | None,
    made: Recompressed | None,
    verification: Verification | None,
) -> None:
    """Check and append one batch, and fill `answer`. Raises ThermoclineError or OSError when nothing was written."""
    partition = context.registry.partitions.get((topic, data.index))
    if partition is None:
        # A message that names the topic could make the response a thousand times as long as the request.
        raise ApiError(context.registry.refusal(topic, data.index), "this broker does not lead the partition")
    if data.records is None or not len(data.records):
        raise ApiError(ErrorCode.INVALID_RECORD, "a produce request must carry one record batch a partition")
    batch = data.records if made is None else made.batch_for(partition)
    checks = BatchChecks(context, partition, call.version, request.acks, now_ms, budget)
    header = checks.check(
        batch,
        0,
        len(batch),
        seen,
        recompressed=made is not None,
        allow_transactional=request.transactional_id is not None,
    )
    if header[ATTRIBUTES] & TRANSACTIONAL_BIT:
        guard = None if verification is None else verification.guard(data)
        try:
            appended = append_checked(context, partition, (batch,), (header,), now_ms, in_transaction=True, guard=guard)
        except TransactionNotVerified as refused:
            raise not_verified(call.version, str(refused)) from refused
    else:
        appended = append_checked(context, partition, (batch,), (header,), now_ms)
    answer.base_offset = appended.base_offset
    answer.log_append_time_ms = appended.log_append_time_ms
    answer.log_start_offset = partition.log_start_offset
    if request.acks == -1:
        until_s = deadline_s(request.timeout_ms)
        pending.wait(partition, appended.last_offset + 1, until_s, partial(refuse, answer))


def short_of_offsets(context: Context, request: ProduceRequest) -> dict[LeaderReplica, int]:
    """Partitions whose offset reservation is too short for the request's batches, with the end offsets of these
    batches.

    Batches are not checked yet; the append refuses batches that cannot be read here.
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
            if end_offset > partition.log.assignable_end_offset:
                ends[partition] = end_offset
    return ends


async def more_offsets(short: Mapping[LeaderReplica, int], wait_s: float) -> None:
    """Wait until each partition may assign offsets up to its end; `wait_s` is the limit for all of them together."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_s
    for partition, end_offset in short.items():
        partition.tier.reserve_soon(end_offset)
    for partition, end_offset in short.items():
        await partition.more_offsets(end_offset, until_s - loop.time())


def refuse(answer: ProduceResponsePartition, refused: Exception) -> None:
    """Put the error into `answer` and clear its offsets."""
    answer.error_code = code_of(refused)
    answer.error_message = str(refused)
    answer.base_offset = answer.log_append_time_ms = -1


def _name_records(answer: ProduceResponsePartition, refused: KeylessRecords, count_max: int) -> int:
    """Add up to `count_max` of the records because of which a batch is refused. Returns the number of added records."""
    answer.log_start_offset = refused.log_start_offset
    named = refused.indexes[:count_max]
    answer.record_errors = [
        ProduceResponseRecordError(batch_index=index, batch_index_error_message=refused.reason) for index in named
    ]
    return len(named)


def unsupported_version(request: ProduceRequest) -> ProduceResponse:
    """The response to Produce 0–2. These versions are advertised for librdkafka (KAFKA-18659), but their message
    formats are not served."""
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
    """The response that is sent when every pending batch is committed, failed, or past the request's timeout."""
    answer = Later(blocks=False)
    pending.when_done(partial(finish, answer, response))
    return answer
