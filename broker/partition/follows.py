"""The partitions that this broker copies, and from whom: begun, moved to the next leader, ended.

Owns which partitions are followed in which leader epoch; `fetchers` has who copies them from each leader. Always true:
a log has one role at a time, the next begins when the last one's work on it is over; before the first question its tail
is flushed (D65), and no reservation of an earlier leadership lies beside it, but where nobody else is assigned it, or
nobody leads and nobody else holds it yet; an opening that fails is tried again while its role lasts, and told where the
disk refused it. Must not know how bytes are copied (`followed`), nor what leading takes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Final
from uuid import UUID

from broker.config.live import LiveConfig
from broker.config.topics import TopicConfig, log_config_of
from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import Topic
from broker.metadata.records import NO_LEADER, Node, Row
from broker.metadata.row_steps import holds_alone, is_alone
from broker.partition.cold_state import ColdState
from broker.partition.fetchers import Connection, Fetchers
from broker.partition.followed import Followed
from broker.partition.follower_retention import expire_all
from broker.partition.registry import Registry
from broker.replication.asking import Key, key_of
from broker.replication.rate import is_throttled
from hotstore.errors import DamagedLog, ForeignLog, may_pass
from hotstore.log_host import LogHost, OpenLog
from logformat.errors import StorageFailed
from logformat.values import TopicPartition
from seams.tasks import FailureReport, Tasks, supervise
from seams.workers import run_to_end
from seams.world import World
from tiering.log_starts import lacks_segments
from tiering.reservation import remove_reservation

log = logging.getLogger(__name__)

_OPENING_MAX: Final = 16


class _Role:
    """One partition in one leader epoch."""

    def __init__(self, topic: Topic, index: int, row: Row) -> None:
        self.topic = topic
        self.index = index
        self.row = row
        self.followed: Followed | None = None
        self.has_asked = False
        self.task: asyncio.Task[None] | None = None


class Follows:
    """Of one broker. `to`: the connection to a node's session, for a purpose (ConnectionError where there is none).
    `free` waits until a partition's log is in nobody's hands; `make_way` moves a log that is another topic's
    aside, once it is closed. `opened` is told of those that are open; `topic_config`:
    how a topic's logs are to be."""

    def __init__(
        self,
        config: LiveConfig,
        world: World,
        logs: LogHost,
        registry: Registry,
        metadata: MetadataCache,
        cold: ColdState,
        to: Callable[[Node, str], Connection],
        tasks: Tasks,
        report: FailureReport,
        free: Callable[[Topic, int], Awaitable[None]],
        make_way: Callable[[TopicPartition], Awaitable[None]],
        opened: Callable[[Iterable[Followed]], None],
        topic_config: Callable[[Topic], TopicConfig],
    ) -> None:
        self._live = config
        self._world = world
        self._logs = logs
        self._registry = registry
        self._cold = cold
        self._tasks = tasks
        self._report = report
        self._free = free
        self._make_way = make_way
        self._opened = opened
        self._topic_config = topic_config
        self._node_id = config.now.node_id
        self._roles: dict[Key, _Role] = {}
        self._ending: dict[Key, asyncio.Task[None]] = {}
        self._fetchers = Fetchers(config, world.rng, metadata, to, tasks, report)
        self._slots = asyncio.Semaphore(_OPENING_MAX)

    @property
    def all(self) -> list[Followed]:
        """Those whose logs are open."""
        return [role.followed for role in self._roles.values() if role.followed is not None]

    @property
    def are_open(self) -> bool:
        """Whether every log that is to be followed is."""
        return all(role.followed is not None and not role.followed.failure for role in self._roles.values())

    # ── roles ────────────────────────────────────────────────────────────────────────────────────────────────────
    def follow(self, topic: Topic, index: int) -> None:
        """Begin, in the leader epoch of the row."""
        key = key_of(UUID(topic.topic_id), index)
        assert key not in self._roles, "the role in the epoch before ends first"
        role = self._roles[key] = _Role(topic, index, topic.rows[index])

        async def attempt() -> None:
            await self._left(key)
            await self._free(role.topic, index)
            await self._begin(key, role)

        self._try(role, attempt)

    def _try(self, role: _Role, attempt: Callable[[], Awaitable[None]]) -> None:
        name = f"follow {role.topic.name}-{role.index}"

        async def attempt_in_place() -> None:
            try:
                await attempt()
            except ForeignLog:  # without a slot: topics of other names do not wait until what lies there is closed
                await self._make_way(TopicPartition(role.topic.name, role.index))
                raise  # the next attempt finds the place free
            except (StorageFailed, OSError) as refused:
                if not may_pass(refused):  # told, as whoever asks what it holds would wait for it (R20)
                    place = role.topic.topic_id, role.index
                    self._registry.troubles.failed(place, f"it cannot be opened to be copied: {refused}")
                raise

        work = supervise(name, attempt_in_place, self._world.rng, self._report, backoff_max_s=10.0)
        role.task = self._tasks.spawn(name, work)

    def _again(self, key: Key, role: _Role) -> None:
        """Its log has to be opened again, in the same epoch."""
        if self._roles.get(key) is not role:
            return

        async def attempt() -> None:
            if role.followed is not None:
                await self._end_copy(key, role.followed)
                role.followed = None
            await self._begin(key, role)

        self._try(role, attempt)

    async def _begin(self, key: Key, role: _Role) -> None:
        async with self._slots:
            opened = await self._open(role.topic, role.index, is_new=not role.has_asked)
            if opened is None:
                return
            if opened.log.config.waits_for_flush and not opened.log.failure:
                await opened.flusher.flush()
        role.has_asked = True
        fetcher = None if role.row.leader == NO_LEADER else self._fetchers.of(role.row.leader)
        role.followed = followed = Followed(
            opened,
            role.row,
            self._logs,
            self._cold,
            self._tasks,
            self._world.clock,
            self._registry.touched,
            self._registry.troubles,
            self._registry.copied,
            (lambda: None) if fetcher is None else partial(fetcher.wake, key),
            lambda: self._again(key, role),
            self._fetchers.broker_epoch,
        )
        self._registry.followed[role.topic.name, role.index] = followed
        self._opened((followed,))
        if fetcher is not None:
            fetcher.follow(key, followed, is_throttled=self._is_throttled(role))

    async def _open(self, topic: Topic, index: int, *, is_new: bool) -> OpenLog | None:
        """None: it is damaged, and not to be touched in this epoch. `is_new`: nothing was reported in it yet."""
        place, topic_id = TopicPartition(topic.name, index), UUID(topic.topic_id)
        config = log_config_of(self._topic_config(topic))
        row = topic.rows[index]
        try:
            opened = await self._cold.open_copy(place, topic_id, config)
        except DamagedLog as damaged:
            if is_alone(row, self._node_id):
                raise
            remains = self._logs.remains(place, damaged.offset)
            self._registry.troubles.refused((topic.topic_id, index), str(damaged), remains)
            opened = None
        lost = self._registry.troubles.lost.get((topic.topic_id, index))
        is_out = self._node_id not in row.in_sync and row.leader != NO_LEADER and row.clean
        if lost is None and is_out and is_new and opened is not None and self._node_id in row.adding:
            lost = lacks_segments(opened.log)
        if lost is not None:
            if is_out:
                await self._begin_anew(place, topic_id, opened, lost)
                opened = None
            elif opened is None or row.leader != NO_LEADER:
                return None
            # Else nobody leads: what is whole of it counts among the candidates (R20).
        opened = opened or await self._logs.create(place, topic_id, config)
        me = self._node_id
        if not opened.is_bare and not (is_alone(row, me) or (row.leader == NO_LEADER and holds_alone(row, me))):
            # Of when it led: what it allowed was given by others since (R21). While nobody leads what it alone holds,
            # nobody gives any.
            await run_to_end(self._world.workers, remove_reservation, self._world.disk, opened.log.path)
        return opened

    async def _begin_anew(self, place: TopicPartition, topic_id: UUID, opened: OpenLog | None, why: str) -> None:
        """It is out of the set, so no report of it counts, and its leader serves (R16, R18): what is left of the log
        goes aside, and it is copied as by an empty directory."""
        log.error("%s is copied anew, what is here of its log goes aside: %s", place, why)
        if opened is not None:
            await self._logs.close(opened, clean=False)
            self._cold.forget(opened)
        await self._logs.places.move_stray(place, topic_id)
        self._registry.troubles.over((str(topic_id), place.partition))

    def leave(self, topic: Topic, indexes: Collection[int]) -> None:
        """Their role of an epoch is over, where they had one: nothing more is written from now on."""
        for index in indexes:
            key = key_of(UUID(topic.topic_id), index)
            role = self._roles.pop(key, None)
            if role is None:
                continue
            if role.followed is not None:
                role.followed.resign()
            before = self._ending.get(key)  # of an earlier role, which may work on the log still
            ending = self._tasks.spawn(f"leave {topic.name}-{index}", self._over(key, role, before))
            self._ending[key] = ending
            ending.add_done_callback(partial(self._ended, key))

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        if self._ending.get(key) is task:
            del self._ending[key]

    async def _over(self, key: Key, role: _Role, before: asyncio.Task[None] | None) -> None:
        assert role.task is not None
        role.task.cancel()
        await asyncio.wait([role.task] if before is None else [role.task, before])
        if role.followed is not None:
            await self._end_copy(key, role.followed)

    async def _end_copy(self, key: Key, followed: Followed) -> None:
        """Nothing is written into its log any more."""
        self._fetchers.leave(key, followed)
        await followed.over()
        self._registry.touched.discard(followed)
        self._registry.followed.pop((followed.topic, followed.index), None)
        if followed.opened.is_torn:
            self._cold.forget(followed.opened)

    async def left(self, topic_id: UUID, index: int) -> None:
        """Wait until the log is free for another role."""
        await self._left(key_of(topic_id, index))

    async def _left(self, key: Key) -> None:
        if (ending := self._ending.get(key)) is not None:
            await asyncio.wait([ending])

    async def all_left(self, topic: Topic) -> None:
        """The same, of all of a topic."""
        for index in range(topic.partitions):
            await self.left(UUID(topic.topic_id), index)

    def reconfigure(self, topic: Topic) -> None:
        """Let the copies obey the topic's configs as they are now."""
        config, topic_id = log_config_of(self._topic_config(topic)), UUID(topic.topic_id)
        for index in range(topic.partitions):
            key = key_of(topic_id, index)
            role = self._roles.get(key)
            if role is not None:
                role.topic = topic
                if role.followed is not None:
                    role.followed.log.reconfigure(config)
                    if role.row.leader != NO_LEADER:
                        self._fetchers.of(role.row.leader).throttle(key, is_throttled=self._is_throttled(role))

    async def keep_expiring(self) -> None:
        """Until cancelled: local retention of the copies."""
        while True:
            await asyncio.sleep(self._live.now.retention_check_interval_ms / 1000)
            roles = tuple(self._roles.values())
            copies = ((role.followed, role.topic) for role in roles if role.followed is not None)
            wall_ms = self._world.clock.wall_ms()
            await expire_all(copies, self._topic_config, self._logs, self._world.workers, wall_ms)

    async def close(self) -> list[OpenLog]:
        """Fetch nothing more; the logs, flushed, stay open, each with its high watermark."""
        opened = [followed.opened for followed in self.all]
        self._fetchers.cancel()
        for topic, index in [(role.topic, role.index) for role in self._roles.values()]:
            self.leave(topic, [index])
        if self._ending:
            await asyncio.wait(list(self._ending.values()))
        return opened

    def _is_throttled(self, role: _Role) -> bool:
        return is_throttled(role.topic.configs, role.index, self._node_id)
