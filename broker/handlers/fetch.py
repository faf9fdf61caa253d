"""Fetch: what can be read now, from either tier, or a long poll until there is something.

Always true: nothing at or above the high watermark leaves; hot partitions are answered at once, whatever cold ones
still load (kafka#20045); a cold read that outlives its fetch goes on into the cache, where the next poll finds it.
Record bytes are never read here: the answer names file ranges, which the socket takes by sendfile. Must not know
chunks or objects: `tiering.fetch_router` says which tier, the tier says what.

Sessions are not served yet: every answer is a full fetch (KIP-227, session id 0).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from broker.context import Context
from broker.errors import ApiError, code_of
from broker.net.dispatch import Later, Part
from broker.partition.partition import Partition
from broker.wire.errors import ErrorCode
from broker.wire.messages import (
    FetchRequest,
    FetchRequestPartition,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponsePartition,
    FetchResponseTopic,
)
from broker.wire.scatter import Records
from logformat.errors import ThermoclineError
from seams.disk import FileRange
from tiering.fetch_router import Route, route

Finish = Callable[[asyncio.Future["list[Part] | None"], FetchResponse], None]

_READ_COMMITTED: Final = 1
_CONSUMERS: Final = (-1, -2)  # replica ids of ordinary and debugging consumers; a client may not pose as a replica
_FINAL_EPOCH: Final = -1  # session epochs of KIP-227 that mean a full fetch
_INITIAL_EPOCH: Final = 0
_WAIT_MAX_S: Final = 60.0  # a client may not park a request longer, whatever it asks
_NO_RECORDS: Final = b""


class FetchAttempt:
    """One pass over the request: the response so far, and what it would have to wait for."""

    __slots__ = ("failed", "loading", "response", "size")

    def __init__(self) -> None:
        self.response = FetchResponse()
        self.size = 0
        self.failed = False
        self.loading: list[asyncio.Future[None]] = []


def attempt(context: Context, request: FetchRequest) -> FetchAttempt:
    """Read every partition of the request once, without waiting."""
    result = FetchAttempt()
    if request.session_epoch not in (_FINAL_EPOCH, _INITIAL_EPOCH):
        result.response.error_code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        result.failed = True
        return result
    budget = min(request.max_bytes, context.config.fetch_max_bytes)
    for topic in request.topics:
        answers = []
        for wanted in topic.partitions:
            answer = FetchResponsePartition(partition_index=wanted.partition, records=_NO_RECORDS)
            answer.aborted_transactions = [] if request.isolation_level == _READ_COMMITTED else None
            try:
                partition = _partition(context, request, topic.topic, wanted)
                _read(context, partition, wanted, min(wanted.partition_max_bytes, budget - result.size), answer, result)
            except (ThermoclineError, OSError) as refused:
                answer.error_code = code_of(refused)
                result.failed = True
                context.metrics.failed_fetch_requests += 1
            answers.append(answer)
        result.response.responses.append(FetchResponseTopic(topic=topic.topic, partitions=answers))
    return result


def _partition(context: Context, request: FetchRequest, topic: str, wanted: FetchRequestPartition) -> Partition:
    if request.replica_id not in _CONSUMERS:
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "a client fetches with replica id -1")
    partition = context.registry.partitions.get((topic, wanted.partition))
    if partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    check_leader_epoch(partition, wanted.current_leader_epoch)
    return partition


def check_leader_epoch(partition: Partition, epoch: int) -> None:
    """Refuse a client whose idea of the leader epoch (−1: none) is older or newer than ours (KIP-320)."""
    if epoch in (-1, partition.leader_epoch):
        return
    code = ErrorCode.FENCED_LEADER_EPOCH if epoch < partition.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
    raise ApiError(code)


def _read(
    context: Context,
    partition: Partition,
    wanted: FetchRequestPartition,
    bytes_max: int,
    answer: FetchResponsePartition,
    result: FetchAttempt,
) -> None:
    high_watermark = partition.high_watermark
    log_start_offset = partition.log_start_offset
    answer.high_watermark = high_watermark
    answer.last_stable_offset = partition.last_stable_offset
    answer.log_start_offset = log_start_offset
    if wanted.last_fetched_epoch >= 0 and _diverges(partition, wanted, answer):
        result.failed = True
        return
    offset = wanted.fetch_offset
    match route(
        offset,
        log_start_offset=log_start_offset,
        local_log_start_offset=partition.log.local_log_start_offset,
        remote_end_offset=partition.tier.remote_end_offset,
        end_offset=partition.log.log_end_offset,
    ):
        case Route.HOT:
            # The first partition with data gives at least one batch, whatever the limits (KIP-74).
            if offset < high_watermark and (bytes_max > 0 or result.size == 0):
                _read_hot(context, partition, offset, bytes_max, answer, result)
        case Route.COLD:
            if bytes_max <= 0 and result.size > 0:
                return
            wanted_bytes = min(bytes_max, context.config.cold_fetch_bytes_max)
            cold = partition.tier.read(offset, wanted_bytes, min_one=result.size == 0)
            if isinstance(cold, asyncio.Future):
                result.loading.append(cold)
            else:
                _take(answer, result, cold.length, cold.ranges)
        case Route.CATCHING_UP:
            raise ApiError(ErrorCode.REPLICA_NOT_AVAILABLE)
        case Route.OUT_OF_RANGE:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)


def _read_hot(
    context: Context,
    partition: Partition,
    offset: int,
    bytes_max: int,
    answer: FetchResponsePartition,
    result: FetchAttempt,
) -> None:
    """Local bytes. What may have to come from the disk first is brought into the page cache by a worker (C25)."""
    if partition.needs_index(offset):
        loading = context.tasks.spawn("load index", partition.load_index(context.world.workers, offset))
        result.loading.append(loading)
        return
    found = partition.log.read(offset, bytes_max, partition.high_watermark, min_one=result.size == 0)
    if found is None or found.length == 0:
        return
    # The end of the log was written a moment ago; an old segment was not.
    resident = context.residency.ready(found.file, found.position, found.length) if found.sealed else None
    if resident is None:
        _take(answer, result, found.length, (FileRange(found.file, found.position, found.length),))
    else:
        result.loading.append(resident)


def _take(answer: FetchResponsePartition, result: FetchAttempt, length: int, ranges: tuple[FileRange, ...]) -> None:
    answer.records = Records(length, ranges)
    result.size += length


def _diverges(partition: Partition, wanted: FetchRequestPartition, answer: FetchResponsePartition) -> bool:
    """KIP-595: a reader whose last record's epoch ends below its fetch offset here read a log that was truncated."""
    epoch, end_offset = partition.log.epochs.end_offset_for(wanted.last_fetched_epoch, partition.log.log_end_offset)
    if epoch < 0 or (epoch == wanted.last_fetched_epoch and end_offset >= wanted.fetch_offset):
        return False
    answer.diverging_epoch = FetchResponseEpochEndOffset(epoch=epoch, end_offset=end_offset)
    return True


def satisfied(request: FetchRequest, result: FetchAttempt) -> bool:
    """Whether the answer should leave now: enough bytes, nothing to wait for, or an error the client must see.

    min_bytes=0 asks for what there is; bytes on their way from the bucket are waited for all the same.
    """
    if result.failed or request.max_wait_ms <= 0 or not request.topics:
        return True
    return result.size >= request.min_bytes and (result.size > 0 or not result.loading)


class LongPoll:
    """A fetch that waits for new records, for cold chunks, or for its time to run out; then it reads once more."""

    __slots__ = ("_context", "_finish", "_partitions", "_request", "_scheduled", "_timer", "answer")

    def __init__(self, context: Context, request: FetchRequest, first: FetchAttempt, finish: Finish) -> None:
        loop = asyncio.get_running_loop()
        self._context = context
        self._request = request
        self._finish = finish
        self._scheduled = False
        self.answer = Later(loop.create_future(), blocks=True)
        found = (
            context.registry.partitions.get((topic.topic, wanted.partition))
            for topic in request.topics
            for wanted in topic.partitions
        )
        self._partitions = [partition for partition in found if partition is not None]
        wait_ms = request.max_wait_ms
        if first.loading:
            wait_ms = max(wait_ms, context.config.cold_fetch_wait_ms_max)  # remote.fetch.max.wait.ms, as Kafka parks it
        self._timer = loop.call_later(min(wait_ms / 1000, _WAIT_MAX_S), self._expire)
        for partition in self._partitions:
            partition.watch(self._wake)
        self._await(first)
        self.answer.future.add_done_callback(self._leave)

    def _await(self, result: FetchAttempt) -> None:
        for loading in result.loading:
            loading.add_done_callback(self._wake)

    def _wake(self, _: object = None) -> None:
        # Several partitions may move in one turn of the loop: look once, after all of them.
        if not self._scheduled and not self.answer.future.done():
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._scheduled = False
        if self.answer.future.done():
            return
        result = attempt(self._context, self._request)
        if satisfied(self._request, result):
            self._complete(result)
        else:
            self._await(result)

    def _expire(self) -> None:
        if not self.answer.future.done():
            self._complete(attempt(self._context, self._request))

    def _complete(self, result: FetchAttempt) -> None:
        self._finish(self.answer.future, result.response)

    def _leave(self, _: object) -> None:
        self._timer.cancel()
        for partition in self._partitions:
            partition.unwatch(self._wake)
