"""ListOffsets and OffsetForLeaderEpoch: log start and end, and offsets by timestamp or epoch.

A response covers one log over both tiers; consumers see offsets up to the high watermark. With
isolation.level=read_committed they see offsets up to the last stable offset. Source: KIP-79, KIP-320, KIP-405,
KIP-1005, KIP-1023; docs/design/kafka.md.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.errors import ApiError, code_of
from broker.handlers.fetch.attempt import check_leader_epoch
from broker.partition.following.follower_fetch import FollowerFetch
from broker.partition.leading import unclean_candidates
from broker.partition.leading.leader_replica import all_visible
from broker.partition.readable import Readable
from broker.wire import messages as wire
from logformat.errors import Retryable, ThermoclineError
from seams.loop.turns import Turns, next_turn

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

_READ_COMMITTED: Final = 1
_DEBUGGING: Final = -2  # replica id of debugging clients (Kafka)
_SETTLE_WAIT_S: Final = 1.0  # wait of a whole request: a sync takes milliseconds, unless the disk hangs
_SEAM_LOOKS: Final = 5  # few, because local expiry runs every few minutes and a search takes less than a second

# The first version whose clients know a sentinel.
_SINCE: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


async def handle_list_offsets(
    context: Context, request: wire.ListOffsetsRequest, call: Call
) -> wire.ListOffsetsResponse:
    """Answer each partition by sentinel or by timestamp; a partition named twice is INVALID_REQUEST, as in Kafka."""
    named: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in request.topics:
        for wanted in topic.partitions:
            key = topic.name, wanted.partition_index
            (twice if key in named else named).add(key)
    await all_visible(_moving(context, request), _SETTLE_WAIT_S)
    response = wire.ListOffsetsResponse()
    turns = Turns()
    for topic in request.topics:
        answers = []
        for wanted in topic.partitions:
            answer = wire.ListOffsetsResponsePartition(partition_index=wanted.partition_index)
            try:
                if (topic.name, wanted.partition_index) in twice:
                    raise ApiError(ErrorCode.INVALID_REQUEST)
                partition = _asked(context, topic.name, wanted.partition_index, request.replica_id)
                is_committed = request.isolation_level == _READ_COMMITTED
                await _list(context, partition, wanted, call, answer, is_committed=is_committed)
                if wanted.timestamp == LATEST and isinstance(partition, FollowerFetch):
                    answer.offset = partition.log.log_end_offset  # the end of the replica's log, committed or not
            except (ThermoclineError, OSError, TimeoutError) as refused:
                answer.error_code = code_of(refused)
            answers.append(answer)
            if turns.over():
                await next_turn()
        response.topics.append(wire.ListOffsetsResponseTopic(name=topic.name, partitions=answers))
    return response


def _moving(context: Context, request: wire.ListOffsetsRequest) -> list[Readable]:
    """The partitions whose answer depends on their high watermark."""
    found: dict[Readable, None] = {}
    for topic in request.topics:
        for wanted in topic.partitions:
            if wanted.timestamp >= 0 or wanted.timestamp in (LATEST, MAX_TIMESTAMP):
                partition = context.registry.readable.get((topic.name, wanted.partition_index))
                if partition is not None:
                    found[partition] = None
    return list(found)


def _asked(context: Context, topic: str, index: int, replica_id: int) -> Readable:
    """The partition led here, or any replica here for a debugging client, as in Kafka. Raises ApiError."""
    found: Readable | None = context.registry.readable.get((topic, index))
    if found is None and replica_id == _DEBUGGING:
        found = context.registry.copy(topic, index)
    if found is None:
        raise ApiError(context.registry.refusal(topic, index))
    return found


async def _list(
    context: Context,
    partition: Readable,
    wanted: wire.ListOffsetsRequestPartition,
    call: Call,
    answer: wire.ListOffsetsResponsePartition,
    *,
    is_committed: bool,
) -> None:
    check_leader_epoch(partition, wanted.current_leader_epoch)
    timestamp = wanted.timestamp
    if timestamp < 0 and call.version < _SINCE.get(timestamp, call.version + 1):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    if timestamp == LATEST:
        _check_end(partition, call)
    if timestamp >= 0:
        await _by_time(context, partition, timestamp, answer, is_committed=is_committed)
    elif timestamp == MAX_TIMESTAMP:
        await _newest(context, partition, answer, is_committed=is_committed)
    else:
        answer.offset, answer.leader_epoch = _sentinel(partition, timestamp, is_committed=is_committed)
        return
    if answer.offset < 0:
        _check_end(partition, call)  # the previous leader may have shown this record


def _check_end(partition: Readable, call: Call) -> None:
    """Refuse while a new leader's high watermark is below its predecessor's: records would seem lost (KIP-207)."""
    if not partition.is_end_known:
        code = ErrorCode.OFFSET_NOT_AVAILABLE if call.version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
        raise ApiError(code, f"{partition.topic}-{partition.index}: the new leader has not committed its log yet")


def _end(partition: Readable, *, is_committed: bool) -> int:
    """The end of the offsets that the client may see."""
    return partition.last_stable_offset if is_committed else partition.high_watermark


async def _newest(
    context: Context, partition: Readable, answer: wire.ListOffsetsResponsePartition, *, is_committed: bool
) -> None:
    """The first record with the greatest timestamp, in either tier (Kafka searches local segments only)."""
    local = await partition.local.max_timestamp()
    cold_timestamp = partition.tier.max_timestamp_ms
    if cold_timestamp >= 0 and (local is None or cold_timestamp >= local.timestamp):
        await _by_time(context, partition, cold_timestamp, answer, is_committed=is_committed)
    # Compaction may have emptied the batch with the greatest timestamp in the bucket.
    if answer.offset < 0 and local is not None and local.offset < _end(partition, is_committed=is_committed):
        answer.timestamp, answer.offset, answer.leader_epoch = local


def _sentinel(partition: Readable, timestamp: int, *, is_committed: bool) -> tuple[int, int]:
    """(offset, leader epoch) of a sentinel that needs no search."""
    match timestamp:
        case -1:
            latest = partition.log.epochs.latest
            return _end(partition, is_committed=is_committed), -1 if latest is None else latest.epoch
        case -2:
            start = partition.log_start_offset
            return start, _epoch_at(partition, start)
        case -4:
            start = max(partition.log.local_log_start_offset, partition.log_start_offset)
            return start, _epoch_at(partition, start)
        case -6:
            if not partition.tier.enabled:
                return -1, -1
            pending = max(partition.tier.remote_end_offset, partition.log_start_offset)
            return pending, _epoch_at(partition, pending)
        case _:
            last = partition.tier.remote_end_offset - 1
            if last < partition.log_start_offset:
                return -1, -1  # also if tiering was switched off and the objects were deleted (ADR 26)
            return last, _epoch_at(partition, last)


def _epoch_at(partition: Readable, offset: int) -> int:
    """The leader epoch of the record at `offset`, −1 when nothing was written there yet."""
    epoch = partition.log.epochs.epoch_for(offset)
    return -1 if epoch is None else epoch


async def _by_time(
    context: Context,
    partition: Readable,
    timestamp: int,
    answer: wire.ListOffsetsResponsePartition,
    *,
    is_committed: bool,
) -> None:
    """The first record with the requested timestamp or a later timestamp. The older tier is searched first."""
    for _ in range(_SEAM_LOOKS):
        seam = partition.log.local_log_start_offset
        found = None
        if seam > partition.log_start_offset:
            async with asyncio.timeout(context.config.list_offsets_wait_ms_max / 1000):
                found = await partition.tier.offset_for_timestamp(timestamp, seam)
        if found is None:
            local = await partition.local.offset_for_timestamp(timestamp)
            found = None if local is None else (local.timestamp, local.offset)
        is_gone = found is not None and found[1] < partition.log_start_offset  # the log start moved during the search
        if partition.log.local_log_start_offset == seam and not is_gone:
            break  # otherwise segments left the local log during the search, and neither search saw them
    else:
        raise Retryable(
            f"{partition.topic}-{partition.index}: records are deleted faster than they can be searched; ask again"
        )
    if found is not None and found[1] < _end(partition, is_committed=is_committed):
        answer.timestamp, answer.offset = found
        answer.leader_epoch = _epoch_at(partition, answer.offset)


async def handle_offset_for_leader_epoch(
    context: Context, request: wire.OffsetForLeaderEpochRequest, call: Call
) -> wire.OffsetForLeaderEpochResponse:
    """The end offset of each epoch, including epochs with records only in the bucket. A request of the controller about
    candidates for an unclean election is answered with the state of their logs.
    """
    if request.of_candidates:
        return unclean_candidates.answer(context.registry, request)
    response = wire.OffsetForLeaderEpochResponse()
    turns = Turns()
    for topic in request.topics:
        answers = []
        for wanted in topic.partitions:
            answers.append(_epoch_end(context, topic.topic, wanted))
            if turns.over():
                await next_turn()
        response.topics.append(wire.OffsetForLeaderEpochResponseTopic(topic=topic.topic, partitions=answers))
    return response


async def refused(request: wire.OffsetForLeaderEpochRequest, error: ErrorCode) -> wire.OffsetForLeaderEpochResponse:
    """A response with this error for every partition; the response has no top-level error field."""
    response = wire.OffsetForLeaderEpochResponse()
    for topic in request.topics:
        answers = [
            wire.OffsetForLeaderEpochResponsePartition(partition=of.partition, error_code=error)
            for of in topic.partitions
        ]
        response.topics.append(wire.OffsetForLeaderEpochResponseTopic(topic=topic.topic, partitions=answers))
    return response


def _epoch_end(
    context: Context, topic: str, wanted: wire.OffsetForLeaderEpochRequestPartition
) -> wire.OffsetForLeaderEpochResponsePartition:
    answer = wire.OffsetForLeaderEpochResponsePartition(partition=wanted.partition)
    try:
        partition = context.registry.readable.get((topic, wanted.partition))
        if partition is None:
            raise ApiError(context.registry.refusal(topic, wanted.partition))
        check_leader_epoch(partition, wanted.current_leader_epoch)
        answer.leader_epoch, answer.end_offset = partition.epoch_end(wanted.leader_epoch)
    except ThermoclineError as refused:
        answer.error_code = code_of(refused)
    return answer
