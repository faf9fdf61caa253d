"""The group coordinator: routes requests to shards and enforces limits.

A commit is answered and visible only once its records are durable. All memory that a client can grow has a bound in
`GroupConfig`. Two background tasks serve all groups (timers, `cleaner`), and one task per partition runs while the
partition loads or is written to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, MutableMapping, Sequence
from typing import Final
from uuid import UUID

from broker.config.groups import GroupConfig, is_too_long
from broker.error_codes import ErrorCode
from broker.groups.admin import GroupAdmin
from broker.groups.cleaner import Cleaner
from broker.groups.commit_outcome import deadline
from broker.groups.group_effects import GroupEffects
from broker.groups.lag import EndLookup, Survey, survey
from broker.groups.machine.events import (
    Effect,
    Unload,
)
from broker.groups.member_requests import MemberRequests
from broker.groups.offset_requests import OffsetRequests
from broker.groups.shard import Group, GroupShard, MemoryUsage
from broker.internal_topics.interfaces import InternalTopic, LogLimits
from broker.internal_topics.internal_log import InternalLog
from broker.internal_topics.led_shard import Shard
from broker.internal_topics.shard_lookup import ShardLookup
from broker.metadata.image import TopicLookup
from broker.wire.primitives import ZERO_UUID
from seams.clock import Clock
from seams.loop.tasks import Tasks, supervise
from seams.rng import Rng

OFFSETS_TOPIC: Final = "__consumer_offsets"


OffsetsTopic = InternalTopic


log = logging.getLogger(__name__)


class GroupCoordinator:
    """The coordinator on one broker. Methods that answer requests never raise for a client's mistake: the response
    carries the error."""

    def __init__(
        self,
        topic: OffsetsTopic,
        clock: Clock,
        rng: Rng,
        config: GroupConfig,
        tasks: Tasks,
        *,
        topics: TopicLookup,
        names: Callable[[UUID], str | None],
        in_session: Callable[[], bool],
        is_complete: Callable[[], bool],
        leaving: Callable[[], Collection[str]] = tuple,
        keep_objects: Callable[[], None] = lambda: None,
    ) -> None:
        """`topics`: the topics that allow commits. `names`: topic names by id. `leaving`: names of deleted topics that
        are still being removed. `keep_objects`: see `World.keep_objects`. `in_session`: whether this broker's session
        excludes another coordinator (R25). `is_complete`: whether all topics are known (R29)."""
        self._clock = clock
        self._rng = rng
        self._config = config
        self._tasks = tasks
        self._topics = topics
        self.topic_name = names
        self._effects = GroupEffects(clock, config)
        self._memory = MemoryUsage(config)
        self._background: list[asyncio.Task[None]] = []
        self._cleaner = Cleaner(lambda: self.log.all_ready(), clock, config, topics, leaving, is_complete)
        self.log: InternalLog[GroupShard] = InternalLog(
            OFFSETS_TOPIC,
            clock,
            rng,
            LogLimits.of(config, config.offsets_commit_timeout_ms),
            tasks,
            _report,
            self._make_shard,
            self._cleaner.shard_loaded,
            keep_objects,
        )
        wait_s = config.offsets_commit_timeout_ms / 1000
        self._lookup = ShardLookup(OFFSETS_TOPIC, self.log, topic, in_session, wait_s)
        self.members = MemberRequests(self.shard_of, self._effects, self._memory, rng, config)
        self.offsets = OffsetRequests(self.shard_of, self._effects, self._memory, clock, config, topics)
        self.admin = GroupAdmin(self.log, self, config, topics, clock.wall_ms)

    def undecided(self, topic: str, index: int) -> MutableMapping[int, int] | None:
        """Producers and their epochs whose offsets in that partition wait for a marker that may be lost. None while the
        offsets are being loaded.
        """
        if topic != OFFSETS_TOPIC:
            return {}
        shard = self.log.ready(index)
        return None if shard is None else shard.undecided

    # ---- start and stop --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve the groups of every partition that `log` leads."""
        for name, service in (("groups-timers", self._effects.run_timers), ("groups-cleaner", self._cleaner.run)):
            self._background.append(self._tasks.spawn(name, supervise(name, service, self._rng, _report)))

    async def close(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Answer waiting requests, refuse new requests, and let running appends end (offsets.commit.timeout.ms at
        most). Snapshots can still be taken afterwards: state and log do not change any more."""
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
        self._effects.perform(shard, group, effects)

    def unloaded(self, shard: GroupShard) -> None:
        self._unload_all(shard, ErrorCode.NOT_COORDINATOR)

    def _unload_all(self, shard: GroupShard, error: ErrorCode) -> None:
        for group in list(shard.groups.values()):
            self.unload(shard, group, error)

    def unload(self, shard: GroupShard, group: Group, error: ErrorCode) -> None:
        """Answer the group's waiting requests with `error`, stop its timers, refuse new requests."""
        self._effects.step(shard, group, Unload(error))

    def led(self, _partition: object) -> None:
        """Do nothing: the internal log watches leadership itself."""

    def resigned(self, _topic: str, _index: int) -> None:
        """Do nothing: the internal log watches leadership itself."""

    def withdrawn(self, topic: str) -> None:
        """A topic was deleted: its positions are hidden from now on, and get tombstones soon."""
        self._cleaner.topic_withdrawn(topic)

    # ---- metrics ---------------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        return self._memory.bytes

    @property
    def group_count(self) -> int:
        return self._memory.group_count

    async def survey(self, ends: EndLookup) -> Survey:
        return await survey(self.log.all_ready(), self._topics, ends)

    def topic_id(self, name: str) -> UUID:
        """Id of the topic that has this name now; the zero id if there is none."""
        facts = self._topics(name)
        return ZERO_UUID if facts is None else facts.topic_id

    # ---- lookup ----------------------------------------------------------------------------------------------------

    async def find(self, group_id: str) -> ErrorCode:
        """Ensure that `group_id` has a coordinator (FindCoordinator)."""
        if is_too_long(group_id):
            return ErrorCode.INVALID_GROUP_ID
        return await self._lookup.find(group_id)

    def deadline(self) -> float:
        """The deadline (loop time) for all waits of a request that begins now."""
        return deadline(self._config)

    def node_of(self, group_id: str) -> int:
        """The broker that coordinates the group (NO_LEADER: none), by this broker's image."""
        return self._lookup.node_of(group_id)

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that has the group."""
        return self._lookup.index_of(group_id)

    # ---- shards ----------------------------------------------------------------------------------------------------

    def shard_of(self, group_id: str) -> tuple[GroupShard | None, ErrorCode]:
        """The shard of the group, or why it is not available now."""
        if is_too_long(group_id):
            return None, ErrorCode.INVALID_GROUP_ID
        return self._lookup.shard_of(group_id)


def _report(name: str, failure: BaseException) -> None:
    log.error("%s failed and is started again: %s", name, failure, exc_info=failure)
