"""Fetch: what can be read now, from either tier, or a long poll until there is something.

Always true: nothing at or above the high watermark leaves; hot partitions are answered at once, whatever cold ones
still load (kafka#20045); a cold read that outlives its fetch goes on into the cache, where the next poll finds it.
Record bytes are never read here: the answer names file ranges, which the socket takes by sendfile. Must not know
chunks or objects: `tiering.fetch_router` says which tier, the tier says what; nor the rules of sessions
(`broker.fetch_sessions`): a fetch looks at the targets it is given.

An incremental fetch looks only at what moved since the last one: with nothing new it costs the same over 5 partitions
and over 5 000 (bench/many.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from broker.authorizer import is_from_follower
from broker.context import Context
from broker.error_codes import ErrorCode
from broker.errors import ApiError, code_of
from broker.fetch_sessions import NO_SESSION, Full, Incremental, Target
from broker.net.dispatch import Later, Part
from broker.partition.replica import Partition
from broker.wire.messages import (
    ZERO_UUID,
    FetchRequest,
    FetchRequestPartition,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponsePartition,
    FetchResponseTopic,
)
from broker.wire.scatter import Records
from hotstore.errors import DamagedLog
from logformat.errors import ThermoclineError
from seams.disk import FileRange
from seams.turns import Turns, next_turn
from tiering.fetch_router import Route, route

Finish = Callable[[asyncio.Future["list[Part] | None"], FetchResponse], None]

_READ_COMMITTED: Final = 1
_WAIT_MAX_S: Final = 60.0  # a client may not park a request longer, whatever it asks
_NO_RECORDS: Final = b""
LOOKED_AT_ONCE_MAX: Final = 4_000  # partitions of a full fetch, 4 µs each


class FetchAttempt:
    """One pass over what the request wants: the answers so far, and what they would have to wait for."""

    __slots__ = ("answers", "failed", "is_behind", "loading", "open", "ready", "size", "unknown")

    def __init__(self) -> None:
        self.answers: list[tuple[Target, FetchResponsePartition]] = []
        self.unknown: list[tuple[Target, FetchResponsePartition]] = []  # no such partition: told last
        self.open: list[tuple[Target, Partition]] = []  # what `answers` came from
        self.size = 0
        self.ready = 0  # bytes that count for min_bytes: of a partition with more than it may give, all it may
        self.is_behind = False  # a reader of older segments, or of the bucket: more lies there, however little fits
        self.failed = False
        self.loading: list[asyncio.Future[None]] = []


class Fetch:
    """One request under way: full, of a session, or refused."""

    __slots__ = (
        "_bytes_max",
        "_context",
        "_full",
        "_is_from_follower",
        "_refused",
        "_session",
        "_unknown_count",
        "_version",
        "_watched",
        "request",
    )

    def __init__(self, context: Context, request: FetchRequest, version: int) -> None:
        self.request = request
        self._unknown_count = -1  # of the first attempt; a partition that goes away later is an error to tell at once
        self._watched: list[Partition] = []
        self._context = context
        self._version = version
        self._bytes_max = min(request.max_bytes, context.config.fetch_max_bytes)
        self._is_from_follower = is_from_follower(request)
        self._full: Full | None = None
        self._session: Incremental | None = None
        self._refused = ErrorCode.NONE
        match context.fetch_sessions.begin(request, version, context.registry.names, _now_ms(context)):
            case Full() as full:
                self._full = full
            case Incremental() as session:
                self._session = session
            case ErrorCode() as refused:
                self._refused = refused

    def attempt(self) -> FetchAttempt:
        """Read everything that may have something, once, without waiting."""
        result = FetchAttempt()
        if self._full is not None:
            for target in self._full.targets.values():
                self._answer(target, result)
        elif self._session is not None:
            session = self._session.session
            for target in session.look():
                self._answer(target, result)
            session.due = dict.fromkeys(target for target, _ in (*result.answers, *result.unknown))
        return self._judged(result)

    async def attempt_in_turns(self) -> FetchAttempt:
        """The same, leaving the loop to others in between when there is much to look at. A session holds so little
        (`fetch_sessions.PARTITIONS_MAX`) that it is looked at as one: what moves meanwhile may not get lost."""
        if self._full is None:
            return self.attempt()
        result = FetchAttempt()
        turns = Turns()
        for target in self._full.targets.values():
            self._answer(target, result)
            if turns.over():
                await next_turn()
        return self._judged(result)

    def _judged(self, result: FetchAttempt) -> FetchAttempt:
        if self._unknown_count < 0:
            self._unknown_count = len(result.unknown)
        elif len(result.unknown) > self._unknown_count:
            result.failed = True
        return result

    def _answer(self, target: Target, result: FetchAttempt) -> None:
        """Add the target's answer, unless its session knows it already and nothing is left to read."""
        context, wanted = self._context, target.wanted
        answer = FetchResponsePartition(partition_index=target.index, high_watermark=-1, records=_NO_RECORDS)
        partition = None if target.topic is None else context.registry.partitions.get((target.topic, target.index))
        if partition is None:
            answer.error_code = (
                ErrorCode.UNKNOWN_TOPIC_ID
                if target.topic is None
                else context.registry.refusal(target.topic, target.index)
            )
            context.metrics.failed_fetch_requests += 1
            result.unknown.append((target, answer))
            return
        try:
            if target.topic_id is not ZERO_UUID and target.topic_id != partition.topic_id:
                raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID)
            check_leader_epoch(partition, wanted.current_leader_epoch)
            if self._is_from_follower:
                raise ApiError(_not_a_follower(wanted))
            settled = self._read(partition, wanted, answer, result)
        except (ThermoclineError, OSError) as refused:
            answer.error_code = code_of(refused)
            answer.high_watermark = answer.last_stable_offset = answer.log_start_offset = -1
            answer.aborted_transactions = None
            settled = False
            result.failed = True
            context.metrics.failed_fetch_requests += 1
        if settled and target.session is not None and not target.must_answer(answer):
            target.follow(partition)
            return
        result.open.append((target, partition))
        result.answers.append((target, answer))

    def _read(
        self,
        partition: Partition,
        wanted: FetchRequestPartition,
        answer: FetchResponsePartition,
        result: FetchAttempt,
    ) -> bool:
        """Fill the answer; whether nothing more can be read until the partition moves."""
        context, request = self._context, self.request
        high_watermark = partition.high_watermark
        log_start_offset = partition.log_start_offset
        answer.high_watermark = high_watermark
        answer.last_stable_offset = partition.last_stable_offset
        answer.log_start_offset = log_start_offset
        if request.isolation_level != _READ_COMMITTED:
            answer.aborted_transactions = None
        if wanted.last_fetched_epoch >= 0 and _diverges(partition, wanted, answer):
            result.failed = True
            return False
        offset = wanted.fetch_offset
        # The first partition with data gives at least one batch, whatever the limits (KIP-74).
        bytes_max = min(wanted.partition_max_bytes, self._bytes_max - result.size)
        match route(
            offset,
            log_start_offset=log_start_offset,
            local_log_start_offset=partition.log.local_log_start_offset,
            remote_end_offset=partition.tier.remote_end_offset,
            end_offset=partition.log.log_end_offset,
        ):
            case Route.HOT:
                if offset >= high_watermark:
                    return True
                if bytes_max > 0 or result.size == 0:
                    try:
                        _read_hot(context, partition, offset, bytes_max, answer, result)
                    except DamagedLog:
                        if offset >= partition.tier.remote_end_offset:
                            raise
                        _read_cold(context, partition, offset, bytes_max, answer, result)  # the other tier has it (G11)
            case Route.COLD:
                if bytes_max > 0 or result.size == 0:
                    _read_cold(context, partition, offset, bytes_max, answer, result)
            case Route.CATCHING_UP:
                raise ApiError(ErrorCode.REPLICA_NOT_AVAILABLE)
            case Route.OUT_OF_RANGE:
                raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return False

    def satisfied(self, result: FetchAttempt) -> bool:
        """Whether the answer should leave now: enough bytes, nothing to wait for, or an error the client must see.

        A partition that does not exist ends no wait: a client that asks for it again and again would do so without
        pause. Bytes are counted for min_bytes as Kafka's DelayedFetch does. min_bytes=0 asks for what there is; bytes
        on their way from the bucket are waited for all the same.
        """
        request = self.request
        if result.failed or request.max_wait_ms <= 0 or self._is_over() or len(result.unknown) == self._targets():
            return True
        if result.is_behind:
            return True
        enough = result.ready >= min(request.min_bytes, self._bytes_max)
        return enough and (result.size > 0 or not result.loading)

    def _targets(self) -> int:
        if self._session is not None:
            return len(self._session.session.targets)
        return 0 if self._full is None else len(self._full.targets)

    def _is_over(self) -> bool:
        """Whether another request went on with the session, or it was closed, while this one waited."""
        at = self._session
        return at is not None and (at.session.epoch != at.epoch or at.session.closed)

    def response(self, result: FetchAttempt) -> FetchResponse:
        """The answer, which is final: the session counts it as told."""
        if result.size:
            self._count(result)
        at = self._session
        if at is not None:
            return _incremental(at, result)
        answers = [*result.answers, *result.unknown]
        response = FetchResponse(error_code=self._refused, session_id=NO_SESSION, responses=_by_topic(answers))
        if self._full is not None and self._full.wants_session:
            for target, answer in answers:
                target.answered(answer)
            sessions = self._context.fetch_sessions
            response.session_id = sessions.create(self._full.targets, self._version, _now_ms(self._context))
        return response

    def _count(self, result: FetchAttempt) -> None:
        """Bytes that leave, by partition."""
        partitions = self._context.registry.partitions
        for target, answer in result.answers:
            if answer.records and target.topic is not None:
                partition = partitions.get((target.topic, target.index))
                if partition is not None:
                    partition.fetched_bytes += len(answer.records)
                    partition.fetched_answers += 1

    def park(self, wake: Callable[[], None], result: FetchAttempt) -> None:
        """Have `wake` called whenever the answer may have become another one than `result`; until `leave`."""
        if self._session is not None:
            for target, partition in result.open:
                target.follow(partition)
            self._session.session.park(wake)
        elif not self._watched:
            self._watched = [partition for _, partition in result.open]
            for partition in self._watched:
                partition.watch(wake)

    def has_moved(self, result: FetchAttempt) -> bool:
        """Whether a partition moved or went after `result` looked at it: before `park` nobody was told of it."""
        known = self._context.registry.partitions
        return any(
            partition.high_watermark != answer.high_watermark
            or partition.log_start_offset != answer.log_start_offset
            or known.get((partition.topic, partition.index)) is not partition
            for (_, partition), (_, answer) in zip(result.open, result.answers, strict=True)
        )

    def leave(self, wake: Callable[[], None]) -> None:
        for partition in self._watched:
            partition.unwatch(wake)
        self._watched = []
        if self._session is not None and self._session.session.waiter == wake:
            self._session.session.waiter = None


def _now_ms(context: Context) -> int:
    return int(context.world.clock.monotonic_s() * 1000)


def _incremental(at: Incremental, result: FetchAttempt) -> FetchResponse:
    """What changed since the session was told last; from here on it counts as told."""
    session = at.session
    response = FetchResponse(session_id=session.session_id)
    if session.epoch != at.epoch:
        response.error_code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return response
    told = [(target, answer) for target, answer in (*result.answers, *result.unknown) if target.must_answer(answer)]
    for target, answer in told:
        target.answered(answer)
        if answer.records:
            session.last(target)
    response.responses = _by_topic(told)
    return response


def _by_topic(answers: Iterable[tuple[Target, FetchResponsePartition]]) -> list[FetchResponseTopic]:
    """Neighbours of one topic share its entry, as in Kafka."""
    topics: list[FetchResponseTopic] = []
    last: Target | None = None
    for target, answer in answers:
        if (
            last is None
            or target.topic != last.topic
            or (target.topic_id is not last.topic_id and target.topic_id != last.topic_id)
        ):
            topics.append(FetchResponseTopic(topic=target.topic or "", topic_id=target.topic_id))
            last = target
        topics[-1].partitions.append(answer)
    return topics


async def refused(request: FetchRequest, code: ErrorCode) -> FetchResponse:
    """The answer to a fetch that its peer may not make: every partition named, refused; its session is not touched."""
    response = FetchResponse(error_code=code, session_id=NO_SESSION)
    turns = Turns()
    for wanted in request.topics:
        topic = FetchResponseTopic(topic=wanted.topic, topic_id=wanted.topic_id)
        for partition in wanted.partitions:
            answer = FetchResponsePartition(partition_index=partition.partition, error_code=code, records=_NO_RECORDS)
            answer.high_watermark = answer.last_stable_offset = answer.log_start_offset = -1
            answer.aborted_transactions = None
            topic.partitions.append(answer)
            if turns.over():
                await next_turn()
        response.responses.append(topic)
        if turns.over():
            await next_turn()
    return response


def _not_a_follower(wanted: FetchRequestPartition) -> ErrorCode:
    """To a replica that is none of the partition's: it asks again, when it may have become one. As in Kafka."""
    return ErrorCode.UNKNOWN_LEADER_EPOCH if wanted.current_leader_epoch >= 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER


def check_leader_epoch(partition: Partition, epoch: int) -> None:
    """Refuse a client whose idea of the leader epoch (−1: none) is older or newer than ours (KIP-320)."""
    if epoch in (-1, partition.leader_epoch):
        return
    code = ErrorCode.FENCED_LEADER_EPOCH if epoch < partition.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
    raise ApiError(code)


def _read_hot(
    context: Context,
    partition: Partition,
    offset: int,
    bytes_max: int,
    answer: FetchResponsePartition,
    result: FetchAttempt,
) -> None:
    """Local bytes. What may have to come from the disk first is brought into the page cache by a worker (C25).

    Raises DamagedLog.
    """
    found = partition.read(context.residency, offset, bytes_max, min_one=result.size == 0)
    if isinstance(found, asyncio.Future):
        result.loading.append(found)
        return
    if found is None:
        return
    if found.cut:
        # Whole batches rarely fill a limit to the byte: waiting for the rest would wait for ever.
        result.ready += max(bytes_max - found.length, 0)
    if found.length:
        result.is_behind |= found.sealed
        _take(answer, result, found.length, (FileRange(found.file, found.position, found.length),))


def _read_cold(
    context: Context,
    partition: Partition,
    offset: int,
    bytes_max: int,
    answer: FetchResponsePartition,
    result: FetchAttempt,
) -> None:
    """Bytes of the bucket, at hand or asked for."""
    wanted_bytes = min(bytes_max, context.config.cold_fetch_bytes_max)
    cold = partition.tier.read(offset, wanted_bytes, min_one=result.size == 0)
    if isinstance(cold, asyncio.Future):
        result.loading.append(cold)
    else:
        result.is_behind |= cold.length > 0
        _take(answer, result, cold.length, cold.ranges)


def _take(answer: FetchResponsePartition, result: FetchAttempt, length: int, ranges: tuple[FileRange, ...]) -> None:
    answer.records = Records(length, ranges)
    result.size += length
    result.ready += length


def _diverges(partition: Partition, wanted: FetchRequestPartition, answer: FetchResponsePartition) -> bool:
    """KIP-595: a reader whose last record's epoch ends below its fetch offset here read a log that was truncated.

    An epoch above all that this log knows is divergence too, with nothing to compare: OFFSET_OUT_OF_RANGE, as for a
    reader below the log start, whatever its epoch.
    """
    epoch, end_offset = partition.log.epochs.end_offset_for(wanted.last_fetched_epoch, partition.log.log_end_offset)
    if epoch < 0 or wanted.fetch_offset < partition.log_start_offset:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch == wanted.last_fetched_epoch and end_offset >= wanted.fetch_offset:
        return False
    answer.diverging_epoch = FetchResponseEpochEndOffset(epoch=epoch, end_offset=end_offset)
    return True


async def answer_wide(context: Context, fetch: Fetch) -> FetchResponse:
    """The answer to a fetch of very many partitions: as `LongPoll`, in turns."""
    loop = asyncio.get_running_loop()
    result = await fetch.attempt_in_turns()
    wait_ms = fetch.request.max_wait_ms
    if result.loading:
        wait_ms = max(wait_ms, context.config.cold_fetch_wait_ms_max)
    until_s = loop.time() + min(wait_ms / 1000, _WAIT_MAX_S)
    while not fetch.satisfied(result) and loop.time() < until_s:
        moved = asyncio.Event()
        wake = _Wake(moved)
        fetch.park(wake, result)
        if fetch.has_moved(result):
            wake()
        for loading in result.loading:
            loading.add_done_callback(wake)
        try:
            async with asyncio.timeout_at(until_s):
                await moved.wait()
        except TimeoutError:
            pass  # it is answered with what there is
        finally:
            fetch.leave(wake)
        result = await fetch.attempt_in_turns()
    return fetch.response(result)


class _Wake:
    """Sets an event; called by partitions, which pass nothing, and by futures, which pass themselves."""

    __slots__ = ("_event",)

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    def __call__(self, _: object = None) -> None:
        self._event.set()


class LongPoll:
    """A fetch that waits for new records, for cold chunks, or for its time to run out; then it reads once more."""

    __slots__ = ("_fetch", "_finish", "_scheduled", "_timer", "answer")

    def __init__(self, context: Context, fetch: Fetch, first: FetchAttempt, finish: Finish) -> None:
        loop = asyncio.get_running_loop()
        self._fetch = fetch
        self._finish = finish
        self._scheduled = False
        self.answer = Later(loop.create_future(), blocks=True)
        wait_ms = fetch.request.max_wait_ms
        if first.loading:
            wait_ms = max(wait_ms, context.config.cold_fetch_wait_ms_max)  # remote.fetch.max.wait.ms, as Kafka parks it
        self._timer = loop.call_later(min(wait_ms / 1000, _WAIT_MAX_S), self._expire)
        self._await(first)
        self.answer.future.add_done_callback(self._leave)

    def _await(self, result: FetchAttempt) -> None:
        self._fetch.park(self._wake, result)
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
        result = self._fetch.attempt()
        if self._fetch.satisfied(result):
            self._complete(result)
        else:
            self._await(result)

    def _expire(self) -> None:
        if not self.answer.future.done():
            self._complete(self._fetch.attempt())

    def _complete(self, result: FetchAttempt) -> None:
        self._finish(self.answer.future, self._fetch.response(result))

    def _leave(self, _: object) -> None:
        self._timer.cancel()
        self._fetch.leave(self._wake)
