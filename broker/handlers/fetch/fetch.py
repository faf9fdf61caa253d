"""Fetch: chooses the partitions that a request reads and the time of its response.

Hot partitions are answered at once, even while cold partitions load (kafka#20045). A cold read that outlives its fetch
continues into the cache, where the next poll finds it. An incremental fetch reads only the partitions that moved since
the last fetch. Without new records, it costs the same for 5 and for 5 000 partitions (bench/many.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.errors import ApiError, code_of
from broker.fetch_sessions.cache import NO_SESSION, Full, Incremental
from broker.fetch_sessions.session import Target
from broker.fetch_sessions.waiting_rows import PAUSE_MS, rows_of
from broker.handlers.fetch import replica_fetch
from broker.handlers.fetch.attempt import FetchAttempt, check_leader_epoch
from broker.handlers.fetch.quota import fetch_quota
from broker.handlers.fetch.responses import (
    NO_RECORDS,
    by_topic,
    incremental,
    leaders_of,
    refuse_partition,
    send_to_nearest,
    throttled,
)
from broker.partition.following.follower_fetch import FollowerFetch
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.readable import NotKnownYet, Readable
from broker.security.authorizer.kinds import Operation, ResourceType
from broker.wire.apis import ApiKey
from broker.wire.messages import ZERO_UUID, FetchRequest, FetchResponse, FetchResponsePartition
from logformat.errors import ThermoclineError
from seams.loop.turns import Turns, next_turn

_REPORT_DELAY_S: Final = 0.01  # a new high watermark waits this long for records of the same response
_FROM_FOLLOWERS: Final = 11  # the first version whose clients read from followers (KIP-392)
READ_AT_ONCE_MAX: Final = 4_000  # partitions of a full fetch, 4 µs each


class Fetch:
    """One fetch in progress: full, incremental, or refused."""

    __slots__ = (
        "_access",
        "_bytes_max",
        "_context",
        "_full",
        "_is_counted",
        "_known",
        "_may_redirect",
        "_peer",
        "_quota",
        "_refused",
        "_replica",
        "_report_delay_s_max",
        "_reports_all",
        "_rows",
        "_session",
        "_unknown_count",
        "_version",
        "_watched",
        "request",
    )

    def __init__(self, context: Context, request: FetchRequest, call: Call) -> None:
        self.request = request
        self._peer = call.peer
        self._access = call.access if call.access.is_enforced else None
        self._unknown_count = -1  # count in the first attempt; if a partition disappears later, the wait ends
        self._watched: list[Readable] = []
        self._rows = -1  # as `context.waiting_rows` counts them; -1: not known yet
        self._is_counted = False
        self._context = context
        self._version = call.version
        self._bytes_max = min(request.max_bytes, context.config.fetch_max_bytes)
        self._replica = replica_fetch.follower_session(request, context.metadata.image.nodes)
        self._may_redirect = request.rack_id and context.config.selects_by_rack  # to a replica in the client's rack
        registry = context.registry  # only the leader serves a replica
        self._known: Mapping[tuple[str, int], Readable] = (
            registry.readable if self._replica is None else registry.partitions
        )
        # If consumers read from followers, a follower gets a new high watermark at once (KAFKA-9731).
        self._report_delay_s_max = 0.0 if context.config.selects_by_rack else _REPORT_DELAY_S
        self._reports_all = self._replica is None  # also partitions in which only the high watermark is new
        self._quota = fetch_quota(context, call, is_of_replica=self._replica is not None)
        if self._quota is not None:
            self._bytes_max = self._quota.cap(self._bytes_max)
        self._full: Full | None = None
        self._session: Incremental | None = None
        self._refused = ErrorCode.NONE
        match context.fetch_sessions.begin(request, call.version, context.metadata.names, _now_ms(context)):
            case Full() as full:
                self._full = full
            case Incremental() as session:
                self._session = session
            case ErrorCode() as refused:
                self._refused = refused

    @property
    def is_of_replica(self) -> bool:
        """Whether a follower fetches, not a consumer."""
        return self._replica is not None

    def due(self) -> int:
        """Number of partitions that the next attempt reads in a session."""
        return 0 if self._session is None else len(self._session.session.due)

    def attempt(self) -> FetchAttempt:
        """Read every partition that may have records, once, without waiting."""
        return self._attempt() if self._quota is None else self._quota.timed(self._attempt)

    def _attempt(self) -> FetchAttempt:
        result = FetchAttempt(self._context, self.request, self._bytes_max)
        if self._full is not None:
            for target in self._full.targets.values():
                self._answer(target, result)
        elif self._session is not None:
            session = self._session.session
            if self._access is not None:
                session.check_again(self._access.version)
            self._reports_all = self._replica is None or self.report_delay_s() == 0.0
            if self._reports_all:
                session.read_unreported()
            for target in session.due_in_turn():
                self._answer(target, result)
            session.due = dict.fromkeys(target for target, _ in (*result.answers, *result.unknown))
        return self._ending_wait(result)

    async def attempt_in_turns(self) -> FetchAttempt:
        """As `attempt`, but yields to the event loop when a full fetch has many partitions. A session is read without
        yielding, so that no move is lost; `fetch_sessions.PARTITIONS_MAX` bounds its size."""
        if self._full is None:
            return self.attempt()
        result = FetchAttempt(self._context, self.request, self._bytes_max)
        turns = Turns()
        for target in self._full.targets.values():
            self._answer(target, result)
            if turns.over():
                await next_turn()
        return self._ending_wait(result)

    def report_delay_s(self) -> float | None:
        """Seconds until new high watermarks must be sent to a follower even without records; None: there are no new
        high watermarks."""
        if self._session is None or not self._session.session.unreported:
            return None
        return self._session.session.report_delay_s(self._context.world.clock.monotonic_s(), self._report_delay_s_max)

    def _ending_wait(self, result: FetchAttempt) -> FetchAttempt:
        if self._unknown_count < 0:
            self._unknown_count = len(result.unknown)
        elif len(result.unknown) > self._unknown_count:
            result.failed = True
        return result

    def _answer(self, target: Target, result: FetchAttempt) -> None:
        """Add the target's response, unless the session already has it and no records can be read."""
        context, wanted = self._context, target.wanted
        answer = FetchResponsePartition(partition_index=target.index, high_watermark=-1, records=NO_RECORDS)
        partition: Readable | None = None
        if target.topic is not None:
            if self._access is not None and not self._access.allows(Operation.READ, ResourceType.TOPIC, target.topic):
                answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                result.unknown.append((target, answer))
                return
            partition = self._known.get((target.topic, target.index)) or self._followed(target.topic, target.index)
        if partition is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            if target.topic is not None and refuse_partition(context.registry, target.topic, answer):
                result.failed = True  # the client has to ask another broker: do not wait
            context.metrics.failed_fetch_requests += 1
            result.unknown.append((target, answer))
            return
        try:
            if target.topic_id is not ZERO_UUID and target.topic_id != partition.topic_id:
                raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID)
            check_leader_epoch(partition, wanted.current_leader_epoch)
            if self._replica is not None:
                target.is_at_tail = True
                assert isinstance(partition, LeaderReplica)  # in this case `_known` has only led partitions
                skip_bytes = context.config.follower_skip_bytes
                is_read_up = replica_fetch.read(result, self._replica, partition, wanted, answer, skip_bytes)
            elif self._may_redirect and send_to_nearest(context, self._peer, self.request, partition, wanted, answer):
                is_read_up = False
                result.failed = True  # the client has to ask the other broker: do not wait
            else:
                is_read_up = result.read(partition, wanted, answer)
        except NotKnownYet as loading:
            # The client sees this error only if the fetch's time runs out before the load ends.
            answer.error_code = ErrorCode.REPLICA_NOT_AVAILABLE
            result.loading.append(loading.known)
            is_read_up = False
        except (ThermoclineError, OSError) as refused:
            answer.error_code = code_of(refused)
            answer.high_watermark = answer.last_stable_offset = -1
            if self._replica is None:
                answer.log_start_offset = -1
            answer.aborted_transactions = None
            is_read_up = False
            result.failed = True
            context.metrics.failed_fetch_requests += 1
        if is_read_up and target.session is not None:
            if not target.must_answer(answer):
                target.subscribe(partition)
                return
            if not self._reports_all and target.only_high_watermark_is_new(answer):
                target.session.unreported[target] = None
                target.subscribe(partition)
                return
        result.open.append((target, partition))
        result.answers.append((target, answer))

    def _followed(self, topic: str, index: int) -> Readable | None:
        """The partition as a follower serves it, for consumers only."""
        if self._replica is not None or self._version < _FROM_FOLLOWERS:
            return None
        return self._context.registry.copy(topic, index)

    def satisfied(self, result: FetchAttempt) -> bool:
        """Whether the response should leave now: enough bytes, nothing to wait for, or an error the client must see.

        An unknown partition does not end the wait, because a client that asks for it in a loop would then loop without
        a pause. Bytes count for min_bytes as in Kafka's DelayedFetch. With min_bytes=0 the fetch still waits for bytes
        that are loading from the bucket.
        """
        request = self.request
        if result.failed or request.max_wait_ms <= 0 or self._is_over() or len(result.unknown) == self._targets():
            return True
        if result.is_behind:
            return True
        is_of_replicas_session = self._replica is not None and self._session is not None
        if is_of_replicas_session and any(target.must_answer(answer) for target, answer in result.answers):
            return True  # a replica's fetch is answered for a new high watermark
        enough = result.ready >= min(request.min_bytes, self._bytes_max)
        return enough and (result.size > 0 or not result.loading)

    def _targets(self) -> int:
        if self._session is not None:
            return len(self._session.session.targets)
        return 0 if self._full is None else len(self._full.targets)

    def _is_over(self) -> bool:
        """Whether the session was closed or used by another request while this request waited."""
        at = self._session
        return at is not None and (at.session.epoch != at.epoch or at.session.closed)

    def response(self, result: FetchAttempt) -> FetchResponse:
        """The final response. The session counts it as sent. A throttled response has no records and leaves the session
        as it is.
        """
        throttle_ms = 0
        if self._quota is not None and not self._refused:
            throttle_ms, is_served = self._quota.throttle(result)
            if not is_served:
                return throttled(self._session, throttle_ms)
        if result.size and self._replica is None:
            self._count(result)
        response = self._response(result)
        response.throttle_time_ms = throttle_ms
        if self._replica is not None:
            context = self._context
            now_s = context.world.clock.monotonic_s()
            response.quiet_ms = context.quiet.ms(context.metrics.requests[ApiKey.PRODUCE], now_s)
        return response

    def _response(self, result: FetchAttempt) -> FetchResponse:
        at = self._session
        if at is not None:
            response = incremental(at, result)
            if result.unknown:
                response.node_endpoints = leaders_of(self._context, self._peer.listener, result.unknown)
            return response
        answers = [*result.answers, *result.unknown]
        response = FetchResponse(error_code=self._refused, session_id=NO_SESSION, responses=by_topic(answers))
        if result.unknown:
            response.node_endpoints = leaders_of(self._context, self._peer.listener, result.unknown)
        if self._full is not None and self._full.wants_session:
            for target, answer in answers:
                target.answered(answer)
            sessions = self._context.fetch_sessions
            response.session_id = sessions.create(self._full.targets, self._version, _now_ms(self._context))
        return response

    def _count(self, result: FetchAttempt) -> None:
        for (_, partition), (_, answer) in zip(result.open, result.answers, strict=True):
            if answer.records:
                partition.fetched_bytes += len(answer.records)
                partition.fetched_answers += 1
                if isinstance(partition, FollowerFetch):
                    self._context.metrics.followed_fetch_bytes += len(answer.records)

    def is_due(self, result: FetchAttempt) -> bool:
        """Whether to answer now: because of `satisfied`, or because the fetches that wait leave no room for this one
        (`waiting_rows`). In the latter case the client has to pause, because it would otherwise fetch in a loop."""
        if self.satisfied(result):
            return True
        if self._rows < 0:
            self._rows = 0 if self._replica is not None else rows_of(self.request)
        if self._context.waiting_rows.has_room(self._rows):
            return False
        if self._peer.throttle is not None:
            self._peer.throttle(min(self.request.max_wait_ms, PAUSE_MS))
        return True

    def park(self, wake: Callable[[], None], result: FetchAttempt) -> None:
        """Until `leave`, call `wake` each time the response may differ from `result`, which was not due."""
        if not self._is_counted:
            self._context.waiting_rows.take(self._rows)
            self._is_counted = True
        if self._session is not None:
            for target, partition in result.open:
                target.subscribe(partition)
            self._session.session.park(wake)
        elif not self._watched:
            self._watched = [partition for _, partition in result.open]
            for partition in self._watched:
                partition.watch(wake, at_tail=self._replica is not None)

    def has_moved(self, result: FetchAttempt) -> bool:
        """Whether a partition moved or disappeared between `result` and `park`."""
        registry = self._context.registry
        reads_tail = self._replica is not None and not result.loading
        return any(
            partition.high_watermark != answer.high_watermark
            or partition.log_start_offset != answer.log_start_offset
            or not registry.serves(partition)
            or (reads_tail and partition.log.log_end_offset > target.wanted.fetch_offset)
            for (target, partition), (_, answer) in zip(result.open, result.answers, strict=True)
        )

    def leave(self, wake: Callable[[], None]) -> None:
        if self._is_counted:
            self._context.waiting_rows.give(self._rows)
            self._is_counted = False
        for partition in self._watched:
            partition.unwatch(wake)
        self._watched = []
        if self._session is not None and self._session.session.waiter == wake:
            self._session.session.waiter = None


def _now_ms(context: Context) -> int:
    return int(context.world.clock.monotonic_s() * 1000)
