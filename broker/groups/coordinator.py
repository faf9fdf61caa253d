"""The group coordinator: the shell around the machines.

Owns the shards, the timers and the requests that wait. Always true: between an event and its effects nothing else runs;
a commit is answered, and seen, only once its records are durable; everything a client can grow has a bound in
`GroupConfig`; two background tasks serve all groups (timers, `cleaner`), and one a partition while it has writes. Must
not know the wire (`broker.handlers.groups`), nor how the log is kept (`log.OffsetsLog`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeVar, cast
from uuid import UUID

from broker.config.groups import CLIENT_ID_CHARS_MAX, GroupConfig, is_too_long
from broker.error_codes import ErrorCode
from broker.groups.admin import GroupAdmin
from broker.groups.cleaner import Cleaner
from broker.groups.commits import CommitRow, judge
from broker.groups.events import (
    NO_MEMBER,
    AdmitCommit,
    AdmitReply,
    Effect,
    Event,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    LeftMember,
    Reply,
    Result,
    StartTimer,
    StopTimer,
    Store,
    Stored,
    Sync,
    SyncReply,
    TimedOut,
    Timer,
    Unload,
)
from broker.groups.fate import code_of, fate_of
from broker.groups.lag import EndLookup, Survey, survey
from broker.groups.ledger import Ledger
from broker.groups.log import OffsetsLog
from broker.groups.offsets import (
    Fetched,
    GroupOffsets,
    Wanted,
    any_topic,
)
from broker.groups.records import (
    KeyValue,
    group_record,
    partition_of,
)
from broker.groups.shard import Group, Shard, ShardState, Snapshot
from broker.groups.timers import Timers
from broker.metadata.topic_facts import TopicLookup
from logformat.errors import Corrupt, Fenced, Retryable, StorageFailed, ThermoclineError
from seams.clock import Clock
from seams.rng import Rng
from seams.tasks import Tasks, supervise
from seams.turns import next_turn

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Result)


_TIMERS_AT_ONCE: Final = 200  # before others get a turn: about 5 ms of expiries
_LOAD_BACKOFF_S: Final = 0.5
_LOAD_BACKOFF_MAX_S: Final = 30.0
_RELOAD_S: Final = 5.0  # a partition that comes back does so after some seconds; replaying a damaged one costs reads
_RELOAD_MAX_S: Final = 60.0


def _no_name(_: UUID) -> None:
    """Topics without ids."""


class _TimerKey(NamedTuple):
    partition: int
    group_id: str
    timer: Timer


class GroupCoordinator:
    """One a broker. Methods that answer requests never raise for what a client did: the reply carries the error."""

    def __init__(
        self,
        offsets_log: OffsetsLog,
        clock: Clock,
        rng: Rng,
        config: GroupConfig,
        tasks: Tasks,
        *,
        topics: TopicLookup = any_topic,
        names: Callable[[UUID], str | None] = _no_name,
        leaving: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`topics` knows what may be committed to; without it everything may.

        `names`: of topics by their ids. `leaving`: names of deleted topics that are still being removed.
        """
        self._log = offsets_log
        self._clock = clock
        self._rng = rng
        self._config = config
        self._tasks = tasks
        self._topics = topics
        self.topic_name = names
        self._timers: Timers[_TimerKey] = Timers()
        self._timer_set = asyncio.Event()
        self._loaded = asyncio.Event()
        self._background: list[asyncio.Task[None]] = []
        self._ledger = Ledger(config)
        self._shards = [
            Shard(partition, offsets_log, clock, config, tasks, self._ledger)
            for partition in range(offsets_log.partitions)
        ]
        self._cleaner = Cleaner(self._shards, clock, config, topics, leaving)
        self.admin = GroupAdmin(self._shards, self, config, topics, clock.wall_ms)

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load; until a group's partition is loaded, its requests get COORDINATOR_LOAD_IN_PROGRESS."""
        services = (
            ("groups-load", self._load),
            ("groups-timers", self._run_timers),
            ("groups-cleaner", self._cleaner.run),
        )
        for name, service in services:
            self._background.append(self._tasks.spawn(name, supervise(name, service, self._rng, _report)))

    async def wait_loaded(self) -> None:
        """Until every partition was loaded or given up."""
        await self._loaded.wait()

    async def close(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Answer everyone who waits, refuse what comes, let running appends end (5 s at most).

        Snapshots can still be taken afterwards: state and log do not change any more.
        """
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for shard in self._shards:
            if shard.state is ShardState.READY:
                for group in list(shard.groups.values()):
                    self.unload(shard, group, error)
            shard.state = ShardState.CLOSED
        deadline_s = self._clock.monotonic_s() + self._config.offsets_commit_timeout_ms / 1000
        while any(not shard.writer.is_idle for shard in self._shards) and self._clock.monotonic_s() < deadline_s:
            await asyncio.sleep(0.01)

    def unload(self, shard: Shard, group: Group, error: ErrorCode) -> None:
        """Answer whoever waits for the group with `error`, stop its timers, let nobody in."""
        self._perform(shard, group, group.machine.step(Unload(error), self._clock.wall_ms()))

    async def _load(self) -> None:
        backoff_s = _LOAD_BACKOFF_S
        for shard in self._shards:
            while shard.state is ShardState.LOADING:
                try:
                    await self._load_shard(shard)
                    backoff_s = _LOAD_BACKOFF_S
                except (Retryable, OSError) as failure:
                    log.warning("loading __consumer_offsets-%d: %s; trying again", shard.partition, failure)
                    await asyncio.sleep(backoff_s * self._rng.uniform(0.8, 1.2))
                    backoff_s = min(backoff_s * 2, _LOAD_BACKOFF_MAX_S)
                except (Corrupt, StorageFailed, Fenced) as failure:
                    log.error("__consumer_offsets-%d cannot be read, its groups are off: %s", shard.partition, failure)
                    shard.reset()
                    shard.state = ShardState.FAILED
        self._loaded.set()
        for shard in self._shards:
            await self._cleaner.after_load(shard)
        await self._load_failed()

    async def _load_failed(self) -> None:
        """What could not be read may be whole later: the bucket's answer was, or the partition opened after all."""
        backoff_s = _RELOAD_S
        while failed := [shard for shard in self._shards if shard.state is ShardState.FAILED]:
            await asyncio.sleep(backoff_s * self._rng.uniform(0.8, 1.2))
            backoff_s = min(backoff_s * 2, _RELOAD_MAX_S)
            for shard in failed:
                try:
                    await self._load_shard(shard)
                    log.warning("__consumer_offsets-%d can be read again, its groups are back", shard.partition)
                    await self._cleaner.after_load(shard)
                except (ThermoclineError, OSError) as failure:
                    log.debug("__consumer_offsets-%d still cannot be read: %s", shard.partition, failure)
                    shard.reset()

    async def _load_shard(self, shard: Shard) -> None:
        shard.reset()
        async for batches in self._log.replay(shard.partition):
            shard.replay(batches)
            await next_turn()
        for group, effects in shard.restore():
            self._perform(shard, group, effects)
            shard.settle(group)
        self._cleaner.adopt(shard)
        shard.state = ShardState.READY

    # ---- snapshots (the broker writes them) ------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        return len(self._shards)

    @property
    def held_bytes(self) -> int:
        """Estimate of the memory that groups take."""
        return self._ledger.held_bytes

    @property
    def group_count(self) -> int:
        return self._ledger.group_count

    def state_of(self, partition: int) -> ShardState:
        return self._shards[partition].state

    async def survey(self, ends: EndLookup) -> Survey:
        """How far behind the groups are, for whoever watches."""
        return await survey(self._shards, self._topics, ends)

    def dirty_since(self, partition: int) -> float | None:
        """Clock.monotonic_s since when a lost disk would lose changes of `partition`: the cut of its newest written
        snapshot; −∞ after a start that replayed what nobody knows to be in one. None while nothing changed after that,
        and while the partition is not loaded.

        A snapshot is due when it lies GroupConfig.snapshot_interval_ms back: at once for a change after a quiet time.
        """
        return self._shards[partition].dirty_since_s

    async def snapshot(self, partition: int) -> Snapshot:
        """The durable state of `partition` now; Retryable while it is not loaded. One at a time a partition."""
        return await self._shards[partition].snapshot()

    def snapshot_written(self, partition: int, end_offset: int) -> None:
        """That snapshot is in the bucket, committed. Also to be told once after loading, of the one found there."""
        self._shards[partition].snapshot_written(end_offset)

    # ---- membership requests ---------------------------------------------------------------------------------------

    async def find(self, group_id: str) -> ErrorCode:
        """Make sure that there is somewhere to coordinate `group_id` (FindCoordinator)."""
        if is_too_long(group_id):
            return ErrorCode.INVALID_GROUP_ID
        try:
            await self._log.ensure_created()
        except (ThermoclineError, OSError) as failure:
            log.warning("__consumer_offsets is not there: %s", failure)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    async def join(self, group_id: str, event: Join) -> JoinReply:
        """Answered when the join phase ends: after the rebalance timeout of the slowest member at the latest, and for
        new members after `new_member_join_timeout_ms`. `event`'s token and new member id are filled in here."""
        shard, error = self.shard_of(group_id, empty_is_valid=False)
        if shard is None:
            return JoinReply(error, event.member_id)
        group = shard.groups.get(group_id)
        if group is None and event.member_id != NO_MEMBER:
            return JoinReply(ErrorCode.UNKNOWN_MEMBER_ID, event.member_id)
        metadata_bytes = sum(len(protocol.metadata) for protocol in event.protocols)
        if self._ledger.is_full(metadata_bytes, new_group=group is None):
            return JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED)
        future = self._future(JoinReply)
        prefix = event.client_id[:CLIENT_ID_CHARS_MAX] if event.instance_id is None else event.instance_id
        named = replace(
            event,
            token=future,
            new_member_id=self._new_member_id(prefix, group),
            client_id=event.client_id[:CLIENT_ID_CHARS_MAX],
        )
        self._give(shard, group or shard.create(group_id), named)
        return await future

    def _new_member_id(self, prefix: str, group: Group | None) -> str:
        while True:  # a source of randomness that begins again after a restart must not name two members alike
            member_id = f"{prefix}-{self._rng.uuid()}"
            if group is None or not group.machine.knows(member_id):
                return member_id

    async def sync(self, group_id: str, event: Sync) -> SyncReply:
        """Answered when the leader's assignments are durable, or the rebalance starts over. `event`'s token is filled
        in here."""
        shard, error = self.shard_of(group_id, empty_is_valid=False)
        if shard is None:
            return SyncReply(error)
        group = shard.groups.get(group_id)
        if group is None:
            return SyncReply(ErrorCode.UNKNOWN_MEMBER_ID)
        if self._ledger.is_full(sum(len(assignment) for _, assignment in event.assignments), new_group=False):
            return SyncReply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        future = self._future(SyncReply)
        self._give(shard, group, replace(event, token=future))
        return await future

    async def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        """While the group is being loaded everybody is alive, as in Kafka: an error would only make them rejoin."""
        shard, error = self.shard_of(group_id, empty_is_valid=False)
        if shard is None:
            return ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        future = self._future(HeartbeatReply)
        self._give(shard, group, Heartbeat(future, member_id, generation, instance_id))
        return future.result().error

    async def leave(self, group_id: str, members: Sequence[Leaver]) -> LeaveReply:
        shard, error = self.shard_of(group_id, empty_is_valid=False)
        if shard is None:
            return LeaveReply(error)
        if len(members) > self._config.leavers_max:
            return LeaveReply(ErrorCode.INVALID_REQUEST)
        group = shard.groups.get(group_id)
        if group is None:
            unknown = ErrorCode.UNKNOWN_MEMBER_ID
            return LeaveReply(members=tuple(LeftMember(m.member_id, m.instance_id, unknown) for m in members))
        future = self._future(LeaveReply)
        self._give(shard, group, Leave(future, tuple(members)))
        return future.result()

    # ---- offsets ---------------------------------------------------------------------------------------------------

    async def commit_offsets(
        self,
        group_id: str,
        member: AdmitCommit,
        rows: Sequence[CommitRow],
        *,
        retention_ms: int = -1,
        unknown_group: ErrorCode = ErrorCode.ILLEGAL_GENERATION,
    ) -> list[ErrorCode]:
        """One error a row, in order; those that are NONE are durable. `member`'s token is filled in here.

        `unknown_group` is what a member of no group is told (it depends on the API's version).
        """
        shard, error = self.shard_of(group_id)
        if shard is None:
            return [error] * len(rows)
        if len(rows) > self._config.commit_rows_max:
            return [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * len(rows)
        group = shard.groups.get(group_id)
        if group is None:
            if member.generation >= 0:
                return [unknown_group] * len(rows)
            if self._ledger.is_full(0, new_group=True):
                return [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * len(rows)
            group = shard.create(group_id)
        future = self._future(AdmitReply)
        self._step(shard, group, AdmitCommit(future, member.member_id, member.generation, member.instance_id))
        error = future.result().error
        if error is ErrorCode.NONE:
            is_full = partial(self._ledger.is_full, new_group=False)
            now_ms = self._clock.wall_ms()
            codes, values = judge(
                rows, group.offsets, self._topics, self._config, is_full, now_ms=now_ms, retention_ms=retention_ms
            )
            write = shard.write_positions(group, values) if values else None
        else:
            codes, write = [error] * len(rows), None
        shard.settle(group)
        if write is not None:
            failure = await fate_of(write, self._config.offsets_commit_timeout_ms)
            codes = [failure if code is ErrorCode.NONE else code for code in codes]
        return codes

    async def fetch_offsets(
        self, group_id: str, wanted: Sequence[Wanted] | None
    ) -> tuple[ErrorCode, tuple[Fetched, ...]]:
        """Durable positions; None asks for all. An unknown group has none, which is no error.

        Waits for commits that were accepted before it, so that the next owner of a partition never starts behind what
        its previous owner was allowed to commit. (Kafka waits only when the client asks for stable offsets.)
        """
        shard, error = self.shard_of(group_id)
        if shard is None:
            return error, ()
        if wanted is not None and sum(len(row.partitions) for row in wanted) > self._config.fetch_rows_max:
            return ErrorCode.INVALID_REQUEST, ()
        group = shard.groups.get(group_id)
        if group is not None and not group.writes.is_settled:
            try:
                async with asyncio.timeout(self._config.offsets_commit_timeout_ms / 1000):
                    await group.writes.settled()
            except TimeoutError:
                return ErrorCode.NOT_COORDINATOR, ()  # every client asks again after this one
            group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.NONE, GroupOffsets().fetch(wanted)
        return ErrorCode.NONE, group.offsets.fetch(wanted, self._topics)

    def led(self, _partition: object) -> None:
        """Every shard is loaded once, at the start: nothing follows yet."""

    def resigned(self, topic: str, index: int) -> None:
        """Its commits fail from now on; the shard stays until the process ends."""

    def withdrawn(self, topic: str) -> None:
        """A topic was deleted. Its positions are shown no more from now on, and get tombstones soon."""
        self._cleaner.topic_withdrawn(topic)

    # ---- machines, effects, timers ---------------------------------------------------------------------------------

    def shard_of(self, group_id: str, *, empty_is_valid: bool = True) -> tuple[Shard | None, ErrorCode]:
        """Where the group lives, or why nobody can say now."""
        if is_too_long(group_id) or (not group_id and not empty_is_valid):
            return None, ErrorCode.INVALID_GROUP_ID
        shard = self._shards[partition_of(group_id, len(self._shards))]
        match shard.state:
            case ShardState.READY:
                return shard, ErrorCode.NONE
            case ShardState.LOADING:
                return None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            case ShardState.FAILED:
                return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
            case ShardState.CLOSED:
                return None, ErrorCode.NOT_COORDINATOR

    def _future(self, _: type[R]) -> asyncio.Future[R]:
        return cast("asyncio.Future[R]", asyncio.get_running_loop().create_future())

    def _give(self, shard: Shard, group: Group, event: Event) -> None:
        self._step(shard, group, event)
        shard.settle(group)

    def _step(self, shard: Shard, group: Group, event: Event) -> None:
        self._perform(shard, group, group.machine.step(event, self._clock.wall_ms()))

    def _perform(self, shard: Shard, group: Group, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply(token, result):
                    future = cast("asyncio.Future[Result]", token)
                    if not future.done():  # its connection may be gone
                        future.set_result(result)
                case StartTimer(timer, delay_ms):
                    self._start_timer(_TimerKey(shard.partition, group.group_id, timer), delay_ms)
                case StopTimer(timer):
                    self._timers.stop(_TimerKey(shard.partition, group.group_id, timer))
                case Store(ticket, metadata):
                    self._store(shard, group, ticket, group_record(group.group_id, metadata))

    def _store(self, shard: Shard, group: Group, ticket: int, record: KeyValue) -> None:
        def stored(failure: Exception | None) -> None:
            error = ErrorCode.NONE if failure is None else code_of(failure, ErrorCode.UNKNOWN_SERVER_ERROR)
            self._step(shard, group, Stored(ticket, error))

        shard.write_group(group, record, stored)

    def _start_timer(self, key: _TimerKey, delay_ms: int) -> None:
        before = self._timers.next_s()
        self._timers.start(key, self._clock.monotonic_s() + delay_ms / 1000)
        after = self._timers.next_s()
        if after is not None and (before is None or after < before):
            self._timer_set.set()

    async def _run_timers(self) -> None:
        while True:
            self._timer_set.clear()
            next_s = self._timers.next_s()
            wait_s = None if next_s is None else max(next_s - self._clock.monotonic_s(), 0)
            try:
                async with asyncio.timeout(wait_s):
                    await self._timer_set.wait()
            except TimeoutError:
                self._fire_timers()
                await next_turn()

    def _fire_timers(self) -> None:
        for key in self._timers.due(self._clock.monotonic_s(), _TIMERS_AT_ONCE):
            shard = self._shards[key.partition]
            group = shard.groups.get(key.group_id)
            if group is not None and shard.state is ShardState.READY:
                self._give(shard, group, TimedOut(key.timer))


def _report(name: str, failure: BaseException) -> None:
    log.error("%s failed and is started again: %s", name, failure, exc_info=failure)
