"""The replicas of this broker: from a topic in the image to partitions that serve, and back.

Owns what the publisher of the image asks for (its `Effects`): leading, resigning, reconfiguring, withdrawing, purging.
No call waits: each begins what it names, and goes on with it until a later call says otherwise. Always true: a
partition is published only when it may serve; opening that fails is tried again for as long as the topic exists,
because the topic is a committed fact; it follows what was decided about the topic meanwhile; watchers are told on the
loop, after the look-up tables changed. Must not know how a log or a tier is opened, how a deleted topic's files go
(removal), nor what partitions need while they serve (upkeep).
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Protocol
from uuid import UUID

from broker.config.live import LiveConfig
from broker.config.resolve import BrokerConfig
from broker.config.topics import TopicConfig, log_config_of, resolve_topic
from broker.metadata.image import Topic
from broker.partition.partition import Partition
from broker.partition.registry import Registry
from broker.partition.removal import Removal
from broker.partition.upkeep import Upkeep
from hotstore.data_dir import DataDir
from hotstore.errors import DamagedLog, ForeignLog
from hotstore.log_owner import UNOWNED
from logformat.errors import Corrupt, Fenced, Retryable, StorageFailed
from logformat.values import TopicPartition
from seams.crash_points import reach
from seams.tasks import Tasks, supervise
from seams.turns import next_turn
from seams.world import World
from tiering.service import TierService
from tiering.tier_config import Opening, TierConfig

log = logging.getLogger(__name__)

_PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_TOPICS_PER_TURN: Final = 50
_REOPEN_S: Final = 5.0
_OPENING_MAX: Final = 16  # partitions being opened at once: bounded files and requests
_CLOSING_MAX: Final = 16
_PURGE_RETRY_MAX_S: Final = 300.0


class _TopicOpening:
    """How far the opening of a topic's partitions came, over all attempts. Each is opened once: two `Partition`s over
    one log would each have half of those who wait for it."""

    __slots__ = ("again", "lost", "opened", "topic_id")

    def __init__(self, topic_id: str) -> None:
        self.topic_id = topic_id
        self.opened: dict[int, Partition | None] = {}  # None: it stays offline
        self.again: list[int] = []  # of those, whom to ask the bucket for again
        self.lost: dict[int, tuple[int, int]] = {}


class LeadershipWatcher(Protocol):
    """Who lives and dies with this broker's leadership of partitions. Called on the loop, after the tables changed; a
    call must neither wait nor raise."""

    def led(self, partition: Partition) -> None:
        """It serves from now on: opened, or led again in a higher epoch."""
        ...

    def resigned(self, topic: str, index: int) -> None:
        """Somebody else leads it, or nobody: whoever waited for it was told."""
        ...

    def withdrawn(self, topic: str) -> None:
        """The topic was deleted, however that came about."""
        ...


class Replicas:
    """See the module. `leader_epoch` is the node's epoch: each start is a new one. `forget` asks the controller to
    forget a deleted topic of which nothing is left; it raises while it cannot."""

    def __init__(
        self,
        config: LiveConfig,
        world: World,
        data_dir: DataDir,
        registry: Registry,
        tiers: TierService,
        tasks: Tasks,
        leader_epoch: int,
        report: Callable[[str, BaseException], None],
        forget: Callable[[Topic], Awaitable[None]],
    ) -> None:
        self._live = config
        self._world = world
        self._data_dir = data_dir
        self._registry = registry
        self._tiers = tiers
        self._tasks = tasks
        self._leader_epoch = leader_epoch
        self._report = report
        self._forget = forget
        self._watchers: list[LeadershipWatcher] = []
        self._slots = asyncio.Semaphore(_OPENING_MAX)
        self._stops_clean = False
        self._opening: dict[asyncio.Task[None], _TopicOpening] = {}
        self._healing: dict[TopicPartition, asyncio.Task[None]] = {}
        self._topics: dict[str, Topic] = {}  # by id, as last decided: also those that are still being opened
        self._behind: deque[str] = deque()  # ids of topics whose partitions obey older settings of the broker
        self._removal = Removal(world, data_dir, tiers, tasks, report)
        self.upkeep = Upkeep(config, world, data_dir, registry, tiers)
        self.damaged: dict[TopicPartition, str] = {}  # partitions that refuse to open, and why
        self.is_starting = True  # until the first image was published

    @property
    def _config(self) -> BrokerConfig:
        return self._live.now

    def watch(self, watcher: LeadershipWatcher) -> None:
        """Tell `watcher` of everything that happens from now on, in the order in which watchers came."""
        self._watchers.append(watcher)

    # ── what the publisher asks for ──────────────────────────────────────────────────────────────────────────────
    def lead(self, topic: Topic, indexes: Collection[int]) -> None:
        """Begin to lead these partitions; they are published when all of them are open (`opened` waits for it).

        After the start they were created by this very change: nothing of them exists anywhere. Opening is tried until
        it succeeds, and is given up by `withdraw` and `close` only."""
        self._topics[topic.topic_id] = topic
        way = _TopicOpening(topic.topic_id)
        new = not self.is_starting
        if new:
            reach("topic.committed")

        async def attempt() -> None:
            missing = [index for index in indexes if index not in way.opened]
            async with self._removal.turn(topic.name):
                # All of them end before any is tried again.
                outcomes = await asyncio.gather(
                    *(self._open_one(topic, index, way, new=new) for index in missing), return_exceptions=True
                )
            for outcome in outcomes:
                if outcome is not None:
                    raise outcome
            if new:
                reach("topic.rooted")
            if way.lost:
                log.warning("%s", _lost_tails(topic.name, way.lost))
            self._publish(topic.topic_id, [found for _, found in sorted(way.opened.items()) if found is not None])
            for index in way.again:
                self._open_again(topic, index)

        name = f"open {topic.name}"
        work = supervise(name, attempt, self._world.rng, self._report, backoff_max_s=10.0)
        task = self._tasks.spawn(name, work)
        self._opening[task] = way
        task.add_done_callback(self._opening.pop)

    async def opened(self, topic_id: str) -> None:
        """Wait until what was asked so far of the topic serves, or is withdrawn. Raises Retryable when the broker stops
        first. Whoever waits no longer ends the wait only."""
        waiting = [task for task, way in self._opening.items() if way.topic_id == topic_id]
        if waiting:
            await asyncio.wait(waiting)
        topic = self._topics.get(topic_id)
        if topic is not None and any(task.cancelled() for task in waiting):
            raise Retryable(f"the broker stops before topic {topic.name!r} is open")

    def resign(self, topic: Topic, indexes: Collection[int]) -> None:
        """Stop leading these partitions: who waits for an acknowledgement learns at once that this is not the leader
        (NOT_LEADER_OR_FOLLOWER), their jobs at the bucket end, their logs stay open."""
        for partition in self._registry.resign(topic.name, indexes):
            name = f"{partition.topic}-{partition.index}"
            partition.fail_waiters(Fenced(f"{name}: leader epoch {partition.leader_epoch} is over; refresh metadata"))
            self._tasks.spawn(f"resign {name}", partition.tier.close())
            for watcher in self._watchers:
                watcher.resigned(partition.topic, partition.index)

    @property
    def opened_count(self) -> int:
        """Partitions that are open, those of topics that are still being opened too."""
        unpublished = (found for way in self._opening.values() for found in way.opened.values())
        return len(self._registry.partitions) + sum(found is not None for found in unpublished)

    def _publish(self, topic_id: str, partitions: list[Partition]) -> None:
        """Let clients see them, as the topic is now: it may have changed while they were opened."""
        topic = self._topics[topic_id]
        self._configure(topic, partitions)
        self.upkeep.all_changed()
        self._registry.publish(topic, partitions)
        for partition in partitions:
            for watcher in self._watchers:
                watcher.led(partition)

    async def _open_one(self, topic: Topic, index: int, way: _TopicOpening, *, new: bool) -> None:
        """Note the partition, or that it stays offline while its neighbours serve, and a person is told."""
        try:
            way.opened[index] = await self._open(topic, index, way.lost, new=new)
        except ForeignLog:
            raise  # heals by itself, when the purge of the deleted topic that had the name moved it away (C9)
        except (StorageFailed, Corrupt, OSError) as refused:
            if isinstance(refused, OSError) and refused.errno in _PASSING:
                raise  # a machine out of descriptors or space may have some again soon
            self._stays_offline(TopicPartition(topic.name, index), refused)
            way.opened[index] = None
            if isinstance(refused, Corrupt) and not isinstance(refused, DamagedLog):
                way.again.append(index)

    def _stays_offline(self, place: TopicPartition, refused: Exception) -> None:
        self.damaged[place] = str(refused)
        log.error("%s stays offline: %s", place, refused)

    def _open_again(self, topic: Topic, index: int) -> None:
        """What the bucket gave was damaged, perhaps only on its way: ask again, now and then, until it is not."""
        place = TopicPartition(topic.name, index)

        async def attempt() -> None:
            lost: dict[int, tuple[int, int]] = {}
            try:
                partition = await self._open(topic, index, lost, new=False)
            except DamagedLog as refused:
                self._stays_offline(place, refused)
                return
            if lost:
                log.warning("%s", _lost_tails(topic.name, lost))
            del self.damaged[place]
            log.warning("%s is online: what the bucket gives for it is whole again", place)
            self._publish(topic.topic_id, [partition])

        async def after_a_while() -> None:
            await asyncio.sleep(_REOPEN_S)
            await supervise(name, attempt, self._world.rng, self._report, backoff_s=_REOPEN_S, backoff_max_s=60.0)

        name = f"open {place} again"
        task = self._tasks.spawn(name, after_a_while())
        self._healing[place] = task
        task.add_done_callback(lambda _: self._healing.pop(place, None))

    async def _open(self, topic: Topic, index: int, lost: dict[int, tuple[int, int]], *, new: bool) -> Partition:
        topic = self._topics.get(topic.topic_id, topic)  # its configs may have changed since the first attempt
        config = resolve_topic(self._config, topic.configs, internal=topic.internal)
        opening = Opening(
            topic=topic.name,
            topic_id=UUID(topic.topic_id),
            partition=index,
            leader_epoch=self._leader_epoch,
            log_config=log_config_of(config),
            tier=self._tier_config(topic, config),
            new=new,
            clean=self._data_dir.was_clean,
        )
        async with self._slots:
            opened = await self._tiers.open_partition(opening)
        if opened.lost is not None:
            lost[index] = opened.lost
        return Partition(
            topic.name,
            UUID(topic.topic_id),
            index,
            log=opened.log,
            flusher=opened.flusher,
            tier=opened.tier,
            leader_epoch=self._leader_epoch,
            config=config,
            touched=self._registry.touched,
        )

    def _tier_config(self, topic: Topic, config: TopicConfig) -> TierConfig:
        return TierConfig(
            enabled=config.remote_storage_enable,
            internal=topic.internal,
            copy_disable=config.remote_log_copy_disable,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            local_retention_ms=config.local_retention_ms,
            local_retention_bytes=config.local_retention_bytes,
            seal_ms=self._config.seal_ms,
            topic=topic.name,
            configs=topic.configs,
        )

    def reconfigure(self, topic: Topic) -> None:
        """Let the partitions of `topic` follow its configs: those that are being opened, when they are open."""
        self._topics[topic.topic_id] = topic
        self._configure(topic, self._registry.of_topic(topic.name))
        if topic.name in self._registry.topics:
            self._registry.topics[topic.name] = topic

    def _configure(self, topic: Topic, partitions: list[Partition]) -> None:
        config = resolve_topic(self._config, topic.configs, internal=topic.internal)
        for partition in partitions:
            partition.config = config
            partition.log.reconfigure(log_config_of(config))
            partition.tier.reconfigure(self._tier_config(topic, config))

    def follow_config(self) -> None:
        """Let every partition obey what was set on brokers as it is now; those being opened do when they are open.

        5 000 partitions take a tenth of a second: after the first topics, the loop gets its turns in between.
        """
        is_running = bool(self._behind)
        self._behind = deque(self._topics)
        self._configure_some()
        if self._behind and not is_running:
            self._tasks.spawn("follow configs", self._configure_rest())

    def _configure_some(self) -> None:
        for _ in range(min(_TOPICS_PER_TURN, len(self._behind))):
            topic = self._topics.get(self._behind.popleft())
            if topic is not None:
                self._configure(topic, self._registry.of_topic(topic.name))

    async def _configure_rest(self) -> None:
        while self._behind:
            await next_turn()
            self._configure_some()

    def withdraw(self, topic: Topic) -> None:
        """Stop serving a deleted topic: its waiters learn it now. Its logs are closed in the background, before a new
        topic of the name is opened."""
        reach("topic.deleted")
        self._topics.pop(topic.topic_id, None)
        cut_off = {task: way for task, way in self._opening.items() if way.topic_id == topic.topic_id}
        ending = [*cut_off, *(task for place, task in self._healing.items() if place.topic == topic.name)]
        for task in ending:
            task.cancel()
        withdrawn = self._registry.withdraw(topic.name) if topic.name in self._registry.topics else []
        for watcher in self._watchers:
            watcher.withdrawn(topic.name)
        for partition in withdrawn:
            partition.log.owner = UNOWNED
            partition.fail_waiters(Fenced(f"topic {topic.name} was deleted"))

        async def ended() -> list[Partition]:
            await asyncio.gather(*ending, return_exceptions=True)
            for index in range(topic.partitions):
                self.damaged.pop(TopicPartition(topic.name, index), None)
            unpublished = [p for way in cut_off.values() for p in way.opened.values() if p is not None]
            return withdrawn + [partition for partition in unpublished if partition not in withdrawn]

        self._removal.close(topic, ended)

    def purge(self, topic: Topic) -> None:
        """Begin to remove a withdrawn topic's local files, then its objects, then let the controller forget it. Tried
        until nothing is left."""

        async def attempt() -> None:
            await self._removal.purge(topic)
            await self._forget(topic)

        name = f"purge {topic.name}"
        work = supervise(name, attempt, self._world.rng, self._report, backoff_max_s=_PURGE_RETRY_MAX_S)
        self._tasks.spawn(name, work)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self, *, clean: bool) -> bool:
        """Flush and close every log; with `clean`, reservations are given back and the logs need no recovery.

        Returns whether every log could be left clean.
        """
        for opening in (*self._opening, *self._healing.values()):
            opening.cancel()
        self._stops_clean = clean
        slots = asyncio.Semaphore(_CLOSING_MAX)

        async def close_one(partition: Partition) -> None:
            async with slots:
                await self._close_one(partition)

        await asyncio.gather(*(close_one(partition) for partition in tuple(self._registry)), self._removal.closed())
        if self._stops_clean:
            try:
                self.upkeep.all_changed()
                await self.upkeep.checkpoint()
            except OSError as failure:
                self._report("checkpoints", failure)
                self._stops_clean = False
        return self._stops_clean and not self.damaged

    async def _close_one(self, partition: Partition) -> None:
        """One log that cannot be left clean makes the stop unclean; those after it are then closed as they are."""
        name = f"{partition.topic}-{partition.index}"
        if self._stops_clean:
            try:
                await partition.flusher.flush()
            except StorageFailed as failure:
                self._report(f"flush {name}", failure)
                self._stops_clean = False
        await self._tiers.close_partition(partition.tier, give_back=self._stops_clean)
        await partition.flusher.close()
        if partition.log.failure:  # of sealing, after its flush
            self._stops_clean = False
        try:
            await self._world.workers.run(partition.log.close, self._stops_clean)
        except OSError as failure:  # a full or failing disk must not keep the other logs from their flush
            self._report(f"close {name}", failure)
            self._stops_clean = False
        partition.fail_waiters(StorageFailed(f"{name}: the broker is stopping"))


def _lost_tails(topic: str, lost: dict[int, tuple[int, int]]) -> str:
    """One line a topic, however many partitions: what may be gone, and where to look. Nothing but the lost disk could
    tell how much of it there was."""
    shown = ", ".join(f"{index} [{first}, {end})" for index, (first, end) in sorted(lost.items())[:3])
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    return (
        f"{topic}: what {len(lost)} partition{'s' * (len(lost) > 1)} got after the bucket's end, if anything, is lost; "
        f"offsets that clients may have seen are declared gaps: {shown}{more}; "
        f"`thermocline tier status --topic {topic}` names each"
    )
