"""The group coordinator: the shell around the machines.

Owns which shard answers a request, and what becomes of requests at the limits. Always true: a commit is answered, and
seen, only once its records are durable; everything a client can grow has a bound in `GroupConfig`; two background tasks
serve all groups (timers, `cleaner`), and one a partition while it is loaded or written to. Must not know the wire
(`broker.handlers.groups.members`), nor how the log is kept (`broker.internal_topics`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from uuid import UUID

from broker.config.groups import GroupConfig, is_too_long
from broker.error_codes import ErrorCode
from broker.groups.admin import GroupAdmin
from broker.groups.cleaner import Cleaner
from broker.groups.commit_outcome import patience
from broker.groups.group_effects import GroupEffects
from broker.groups.lag import EndLookup, Survey, survey
from broker.groups.machine.events import (
    Effect,
    Unload,
)
from broker.groups.member_requests import MemberRequests
from broker.groups.memory_usage import MemoryUsage
from broker.groups.offset_requests import OffsetRequests
from broker.groups.offsets import any_topic
from broker.groups.records import partition_of
from broker.groups.shard import Group, GroupShard
from broker.groups.topic import OFFSETS_TOPIC, OffsetsTopic
from broker.internal_topics.internal_log import InternalLog
from broker.internal_topics.led_shard import Shard
from broker.internal_topics.partition_door import LogLimits
from broker.internal_topics.shard_life import ShardState
from broker.metadata.topic_facts import TopicLookup
from broker.wire.primitives import ZERO_UUID
from logformat.errors import ThermoclineError
from seams.clock import Clock
from seams.rng import Rng
from seams.tasks import Tasks, supervise

log = logging.getLogger(__name__)


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
        self._performer = GroupEffects(clock, config)
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
        self.members = MemberRequests(self.shard_of, self._performer, self._memory, rng, config)
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

    def topic_id(self, name: str) -> UUID:
        """Of the topic that has the name now; zero: of none."""
        facts = self._topics(name)
        return ZERO_UUID if facts is None else facts.topic_id

    # ---- where a group is ---------------------------------------------------------------------------------------

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
