"""The group coordinator: the shell around the machines.

Owns which shard answers a request, and what becomes of requests at the limits. Always true: a commit is answered, and
seen, only once its records are durable; everything a client can grow has a bound in `GroupConfig`; two background tasks
serve all groups (timers, `cleaner`), and one a partition while it is loaded or written to. Must not know the wire
(`broker.handlers.groups`), nor how the log is kept (`broker.internal_topics`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar, cast
from uuid import UUID

from broker.config.groups import CLIENT_ID_CHARS_MAX, GroupConfig, is_too_long
from broker.error_codes import ErrorCode
from broker.groups.admin import GroupAdmin
from broker.groups.cleaner import Cleaner
from broker.groups.events import (
    NO_MEMBER,
    Effect,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    LeftMember,
    Result,
    Sync,
    SyncReply,
    Unload,
)
from broker.groups.fate import patience
from broker.groups.lag import EndLookup, Survey, survey
from broker.groups.memory_usage import MemoryUsage
from broker.groups.offset_requests import OffsetRequests
from broker.groups.offsets import any_topic
from broker.groups.performer import Performer
from broker.groups.records import partition_of
from broker.groups.shard import Group, GroupShard
from broker.groups.topic import OFFSETS_TOPIC, OffsetsTopic
from broker.internal_topics.internal_log import InternalLog
from broker.internal_topics.led_shard import Shard
from broker.internal_topics.partition_door import LogLimits
from broker.internal_topics.shard_life import ShardState
from broker.metadata.topic_facts import TopicLookup
from logformat.errors import ThermoclineError
from seams.clock import Clock
from seams.rng import Rng
from seams.tasks import Tasks, supervise

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Result)


def _no_name(_: UUID) -> None:
    """Topics without ids."""


class GroupCoordinator:
    """One a broker. Methods that answer requests never raise for what a client did: the reply carries the error."""

    def __init__(
        self,
        topic: OffsetsTopic,
        clock: Clock,
        rng: Rng,
        config: GroupConfig,
        tasks: Tasks,
        *,
        topics: TopicLookup = any_topic,
        names: Callable[[UUID], str | None] = _no_name,
        leaving: Callable[[], Collection[str]] = tuple,
        keep_objects: Callable[[], None] = lambda: None,
        in_session: Callable[[], bool] = lambda: True,
    ) -> None:
        """`topics` knows what may be committed to; without it everything may. `in_session`: whether nobody else can
        coordinate by now what this broker does (R25).

        `names`: of topics by their ids. `leaving`: names of deleted topics that are still being removed.
        `keep_objects`: as in `seams.world`.
        """
        self._topic = topic
        self._clock = clock
        self._rng = rng
        self._config = config
        self._tasks = tasks
        self._topics = topics
        self.topic_name = names
        self._in_session = in_session
        self._performer = Performer(clock, config)
        self._memory = MemoryUsage(config)
        self._background: list[asyncio.Task[None]] = []
        self._cleaner = Cleaner(lambda: self.log.all_ready(), clock, config, topics, leaving)
        self.log: InternalLog[GroupShard] = InternalLog(
            OFFSETS_TOPIC,
            clock,
            rng,
            _limits_of(config),
            tasks,
            _report,
            self._make_shard,
            self._cleaner.shard_loaded,
            keep_objects,
        )
        self.offsets = OffsetRequests(self.shard_of, self._performer, self._memory, clock, config, topics)
        self.admin = GroupAdmin(self.log, self, config, topics, clock.wall_ms)

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve: the groups of every partition that `log` is told to lead."""
        for name, service in (("groups-timers", self._performer.run_timers), ("groups-cleaner", self._cleaner.run)):
            self._background.append(self._tasks.spawn(name, supervise(name, service, self._rng, _report)))

    async def close(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Answer everyone who waits, refuse what comes, let running appends end (offsets.commit.timeout.ms at most).

        Snapshots can still be taken afterwards: state and log do not change any more.
        """
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for shard in self.log.all_ready():
            self._unload_all(shard, error)
        await self.log.close()

    def _make_shard(self, shard: Shard) -> GroupShard:
        return GroupShard(shard, self._clock, self._config, self._memory, self)

    def restored(self, shard: GroupShard, group: Group, effects: Sequence[Effect]) -> None:
        self._cleaner.adopt(group)
        self._performer.perform(shard, group, effects)

    def unloaded(self, shard: GroupShard) -> None:
        self._unload_all(shard, ErrorCode.NOT_COORDINATOR)

    def _unload_all(self, shard: GroupShard, error: ErrorCode) -> None:
        for group in list(shard.groups.values()):
            self.unload(shard, group, error)

    def unload(self, shard: GroupShard, group: Group, error: ErrorCode) -> None:
        """Answer whoever waits for the group with `error`, stop its timers, let nobody in."""
        self._performer.step(shard, group, Unload(error))

    def led(self, _partition: object) -> None:
        """Its shard is the log's business."""

    def resigned(self, _topic: str, _index: int) -> None:
        """Its shard is the log's business."""

    def withdrawn(self, topic: str) -> None:
        """A topic was deleted. Its positions are shown no more from now on, and get tombstones soon."""
        self._cleaner.topic_withdrawn(topic)

    # ---- for whoever watches ---------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Estimate of the memory that groups take."""
        return self._memory.bytes

    @property
    def group_count(self) -> int:
        return self._memory.group_count

    async def survey(self, ends: EndLookup) -> Survey:
        """How far behind the groups are."""
        return await survey(self.log.all_ready(), self._topics, ends)

    # ---- membership requests ---------------------------------------------------------------------------------------

    async def find(self, group_id: str) -> ErrorCode:
        """Make sure that there is somewhere to coordinate `group_id` (FindCoordinator)."""
        if is_too_long(group_id):
            return ErrorCode.INVALID_GROUP_ID
        index = self._index_of(group_id)
        was_absent = self.log.state_of(index) is ShardState.ABSENT
        try:
            await self._topic.ensure_created()
        except (ThermoclineError, OSError) as failure:
            log.warning("__consumer_offsets is not there: %s", failure)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self.log.ready(index) is not None and not self._in_session():
            return ErrorCode.COORDINATOR_NOT_AVAILABLE  # whoever asks another broker may be told of a newer one
        if was_absent and self.log.state_of(index) is ShardState.LOADING:
            with suppress(TimeoutError):  # it is new, and empty: a moment here spares the client one of its back-offs
                async with asyncio.timeout(self._config.offsets_commit_timeout_ms / 1000):
                    await self.log.wait_loaded()
        return ErrorCode.NONE

    def patience(self) -> float:
        """Until when, in the loop's time, a request that begins now may wait for the log, for all that it asks for."""
        return patience(self._config)

    def node_of(self, group_id: str) -> int:
        """The broker that coordinates the group (NO_LEADER: none), as this one knows."""
        return self._topic.leader(self._index_of(group_id))

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
        if self._memory.is_full(metadata_bytes, new_group=group is None):
            return JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED)
        future = self._future(JoinReply)
        prefix = event.client_id[:CLIENT_ID_CHARS_MAX] if event.instance_id is None else event.instance_id
        named = replace(
            event,
            token=future,
            new_member_id=self._new_member_id(prefix, group),
            client_id=event.client_id[:CLIENT_ID_CHARS_MAX],
        )
        self._performer.give(shard, group or shard.create(group_id), named)
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
        if self._memory.is_full(sum(len(assignment) for _, assignment in event.assignments), new_group=False):
            return SyncReply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        future = self._future(SyncReply)
        self._performer.give(shard, group, replace(event, token=future))
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
        self._performer.give(shard, group, Heartbeat(future, member_id, generation, instance_id))
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
        self._performer.give(shard, group, Leave(future, tuple(members)))
        return future.result()

    # ---- shards ----------------------------------------------------------------------------------------------------

    def shard_of(self, group_id: str, *, empty_is_valid: bool = True) -> tuple[GroupShard | None, ErrorCode]:
        """Where the group lives, or why nobody can say now."""
        if is_too_long(group_id) or (not group_id and not empty_is_valid):
            return None, ErrorCode.INVALID_GROUP_ID
        index = self._index_of(group_id)
        shard = self.log.ready(index)
        if shard is not None:
            # Another may coordinate them by now, and have taken commits: what is known here would set readers back.
            return (shard, ErrorCode.NONE) if self._in_session() else (None, ErrorCode.NOT_COORDINATOR)
        match self.log.state_of(index):
            case ShardState.LOADING:
                return None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            case ShardState.FAILED:
                return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
            case ShardState.ABSENT if self._topic.is_offline(index):
                return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
        return None, ErrorCode.NOT_COORDINATOR

    def _index_of(self, group_id: str) -> int:
        return partition_of(group_id, self._topic.partitions)

    def _future(self, _: type[R]) -> asyncio.Future[R]:
        return cast("asyncio.Future[R]", asyncio.get_running_loop().create_future())


def _limits_of(config: GroupConfig) -> LogLimits:
    return LogLimits(
        append_batch_bytes_max=config.append_batch_bytes_max,
        append_queue_max=config.append_queue_max,
        append_queue_bytes_max=config.append_queue_bytes_max,
        snapshot_interval_ms=config.snapshot_interval_ms,
        close_timeout_ms=config.offsets_commit_timeout_ms,
    )


def _report(name: str, failure: BaseException) -> None:
    log.error("%s failed and is started again: %s", name, failure, exc_info=failure)
