"""DeleteRecords: moves log starts. On a tiered partition the root holds the new start before the response leaves (C26).

An invalid request gets its error at once, whatever its time-out. REQUEST_TIMED_OUT means that the deletion is in
progress, or that a possible next leader does not know the new start yet (R7). Records of internal topics cannot be
deleted. Source: KIP-107, KIP-204.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.errors import ApiError, code_of
from broker.handlers.request_limits import deadline_s
from broker.partition.leading.leader_replica import LeaderReplica, all_visible
from broker.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResponsePartition,
    DeleteRecordsResponseTopic,
)
from logformat.errors import ThermoclineError
from seams.loop.turns import Turns, next_turn

_SETTLE_WAIT_S: Final = 1.0  # as in ListOffsets, so that acknowledged records can be deleted
_WAIT_MIN_S: Final = 1.0
"""A deletion is a write to the bucket. Kafka moves its log start before it checks the time-out, so even a client with a
time-out of 0 sees its deletion. This wait gives clients of this broker the same."""
_AT_ONCE_MAX: Final = 16  # partitions of one request whose roots are written at the same time
_HIGH_WATERMARK: Final = -1

_Deletion = tuple[LeaderReplica, int, DeleteRecordsResponsePartition]


async def handle_delete_records(context: Context, request: DeleteRecordsRequest, call: Call) -> DeleteRecordsResponse:
    """Answer each partition once. If a partition is named several times, the last offset counts, as in Kafka."""
    until_s = max(deadline_s(request.timeout_ms), asyncio.get_running_loop().time() + _WAIT_MIN_S)
    offsets: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        named = offsets.setdefault(topic.name, {})
        named.update((wanted.partition_index, wanted.offset) for wanted in topic.partitions)
    known = context.registry.partitions
    await all_visible(
        [known[name, index] for name, named in offsets.items() for index in named if (name, index) in known],
        _SETTLE_WAIT_S,
    )
    response = DeleteRecordsResponse()
    deletions: list[_Deletion] = []
    turns = Turns()
    for name, named in offsets.items():
        answers = []
        for index, wanted_offset in named.items():
            answer = DeleteRecordsResponsePartition(partition_index=index, low_watermark=-1)
            answers.append(answer)
            try:
                partition, offset = _checked(context, name, index, wanted_offset)
            except ThermoclineError as refused:
                answer.error_code = code_of(refused)
            else:
                answer.error_code = ErrorCode.REQUEST_TIMED_OUT  # unless the deletion ends in time
                deletions.append((partition, offset, answer))
            if turns.over():
                await next_turn()
        response.topics.append(DeleteRecordsResponseTopic(name=name, partitions=answers))
    if deletions:
        await _delete(context, deletions, until_s)
    return response


def _checked(context: Context, topic: str, index: int, offset: int) -> tuple[LeaderReplica, int]:
    """The partition, and the offset below which records are deleted. Raises ApiError, in Kafka's order."""
    partition = context.registry.partitions.get((topic, index))
    if partition is None:
        raise ApiError(context.registry.refusal(topic, index))
    if partition.config.internal:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is internal: only the broker deletes its records")
    if partition.config.compacts and not partition.config.deletes:
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"cleanup.policy of {topic} does not contain delete")
    high_watermark = partition.high_watermark
    if offset == _HIGH_WATERMARK:
        offset = high_watermark
    if not 0 <= offset <= high_watermark:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return partition, offset


async def _delete(context: Context, deletions: list[_Deletion], until_s: float) -> None:
    """Move the log starts, a few at a time. Wait, at most until the event loop's time `until_s`, for the moves, and
    until all replicas know the new starts. Unfinished moves continue in the background."""
    loop = asyncio.get_running_loop()
    left, to_know = iter(deletions), dict[asyncio.Future[None], _Deletion]()
    workers = [
        context.tasks.spawn("delete records", _work_off(left, to_know))
        for _ in range(min(_AT_ONCE_MAX, len(deletions)))
    ]
    await asyncio.wait(workers, timeout=until_s - loop.time())
    if to_know:
        await asyncio.wait(to_know, timeout=max(until_s - loop.time(), 0.0))
    for known, (partition, _, answer) in to_know.items():
        if not known.done():
            known.cancel()
        elif isinstance(failure := known.exception(), Exception):
            answer.error_code = code_of(failure)
        else:
            _done(partition, answer)


async def _work_off(left: Iterator[_Deletion], to_know: dict[asyncio.Future[None], _Deletion]) -> None:
    for deletion in left:
        partition, offset, answer = deletion
        try:
            await partition.tier.delete_records(offset)
            known = partition.start_known(offset)
        except (ThermoclineError, OSError) as refused:
            answer.error_code = code_of(refused)
        else:
            if known is None:
                _done(partition, answer)
            else:
                to_know[known] = deletion


def _done(partition: LeaderReplica, answer: DeleteRecordsResponsePartition) -> None:
    answer.error_code = ErrorCode.NONE
    answer.low_watermark = partition.log_start_offset
