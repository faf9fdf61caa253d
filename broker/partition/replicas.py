"""The replicas of this broker: from a topic in the image to partitions that serve, and back.

Owns what the publisher of the image asks for (its `Effects`): leading, resigning, reconfiguring, withdrawing, purging.
No call waits: each begins what it names, and goes on with it until a later call says otherwise. Always true: a
partition is published only when it may serve; it follows what was decided about its topic meanwhile; fencing ends the
leadership of one partition, never the broker; watchers are told on the loop, after the look-up tables changed; a stop
is clean only where every log's tail is known. Must not know how a log or a tier is opened (opening), how often it is
tried (attempts), how a deleted topic goes (removal, purging), what nobody assigned here (aside), how logs are closed
(ending), nor what partitions need while they serve (upkeep).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol
from uuid import UUID

from broker.config.live import LiveConfig
from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import Topic
from broker.metadata.row_steps import is_alone
from broker.partition.aside import Aside
from broker.partition.attempts import Attempts
from broker.partition.configuring import Configuring
from broker.partition.dropping import Dropping
from broker.partition.ending import Ending
from broker.partition.follows import Follows
from broker.partition.opening import Opening
from broker.partition.purging import Purging
from broker.partition.registry import Registry
from broker.partition.removal import Removal
from broker.partition.replica import Partition
from broker.partition.upkeep import Upkeep
from broker.peers.links import Links
from broker.replication.applied import applied_row
from broker.replication.in_sync import AppliedRow
from hotstore.errors import ForeignLog
from hotstore.log_host import LogHost
from logformat.errors import Fenced, Retryable
from logformat.values import TopicPartition
from seams.crash_points import reach
from seams.tasks import Tasks
from seams.world import World
from tiering.service import TierService

log = logging.getLogger(__name__)


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
    """See the module. `forget` asks the controller to forget a deleted topic of which nothing is left; it raises while
    it cannot."""

    def __init__(
        self,
        config: LiveConfig,
        world: World,
        logs: LogHost,
        registry: Registry,
        tiers: TierService,
        tasks: Tasks,
        report: Callable[[str, BaseException], None],
        metadata: MetadataCache,
        links: Links,
        forget: Callable[[Topic], Awaitable[None]],
    ) -> None:
        self._node_id = config.now.node_id
        self._metadata = metadata
        self._logs = logs
        self._registry = registry
        self._tiers = tiers
        self._tasks = tasks
        self._report = report
        self._watchers: list[LeadershipWatcher] = []
        self._topics: dict[str, Topic] = {}  # by id, as last decided: also those that are still being opened
        self._resigning: dict[Partition, asyncio.Task[None]] = {}
        self._configuring = Configuring(self._topics, self._configure, tasks)
        self._opening = Opening(config, logs, tiers, registry, metadata)
        self._removal = Removal(logs, tiers, tasks, report)
        self.aside = Aside(config.now.node_id, logs.places, metadata, self._removal, report)
        node_id, session_s = config.now.node_id, config.now.times.session_s
        self._purging = Purging(node_id, metadata, self._removal, forget, tasks, world.rng, report, session_s)
        self._dropping = Dropping(node_id, metadata, self._removal, tasks, self._ended)
        self._attempts = Attempts(self._open, self._publish, self._removal.turn, tasks, world.rng, report)
        self.upkeep = Upkeep(config, world, logs, registry)
        self._follows = Follows(
            config,
            world,
            logs,
            registry,
            metadata,
            tiers,
            links.to,
            tasks,
            report,
            self._free,
            self.aside.make_way,
            self.upkeep.opened,
            self._opening.topic_config,
        )

    @property
    def damaged(self) -> dict[TopicPartition, str]:
        """Partitions that refuse to open, and why."""
        return self._attempts.damaged

    def watch(self, watcher: LeadershipWatcher) -> None:
        """Tell `watcher` of everything that happens from now on, in the order in which watchers came."""
        self._watchers.append(watcher)

    # ── what the publisher asks for ──────────────────────────────────────────────────────────────────────────────
    def lead(self, topic: Topic, indexes: Collection[int]) -> None:
        """Begin to lead these partitions; they are published when all of them are open (`opened` waits for it).

        Opening is tried until it succeeds, and is given up by `withdraw` and `close` only."""
        self._topics[topic.topic_id] = topic
        new = [index for index in indexes if topic.rows[index].partition_epoch == 0]  # no change since they were made
        if new:
            reach("topic.committed")
            self._attempts.begin(topic, new, new=True)
        if old := [index for index in indexes if topic.rows[index].partition_epoch > 0]:
            self._attempts.begin(topic, old, new=False)

    async def _open(self, topic: Topic, index: int, new: bool) -> Partition | None:
        """None: it is not to be led any more, or an earlier attempt came to lead it in the newest epoch."""
        await self._follows.left(UUID(topic.topic_id), index)
        before = self._registry.resigned.get((topic.name, index))
        if before is not None and (resigning := self._resigning.get(before)) is not None:
            await asyncio.wait([resigning])
        topic = self._topics.get(topic.topic_id, topic)  # configs and rows may have changed since the first attempt
        row = self._row_to_lead(topic, index)
        if row is None or self._registry.led(topic.name, index) is not None:
            return None

        def fenced(why: str) -> None:
            self._fenced(topic, index, row.leader_epoch, why)

        try:
            partition = await self._opening.open(topic, index, row, new=new, on_fenced=fenced)
        except ForeignLog:
            await self.aside.make_way(TopicPartition(topic.name, index))
            raise  # the next attempt finds the place free, now or when the purge of that topic is done
        now = self._row_to_lead(self._topics.get(topic.topic_id, topic), index)
        if now is None or now.leader_epoch != row.leader_epoch:
            partition.tier.resigned()  # meanwhile: its jobs do not wait until its neighbours are open too
        return partition

    def _row_to_lead(self, topic: Topic, index: int) -> AppliedRow | None:
        """By what the image wants this broker to lead; None: somebody else leads, or nobody."""
        if topic.rows[index].leader != self._node_id:
            return None
        return applied_row(topic, index, self._metadata.image)

    async def opened(self, topic_id: str) -> None:
        """Wait until what was asked so far of the topic serves, or is withdrawn. Raises Retryable when the broker stops
        first. Whoever waits no longer ends the wait only."""
        came_true = await self._attempts.opened(topic_id)
        if not came_true and (topic := self._topics.get(topic_id)) is not None:
            raise Retryable(f"the broker stops before topic {topic.name!r} is open")

    def resign(self, topic: Topic, indexes: Collection[int]) -> None:
        """Stop leading these partitions: who waits for an acknowledgement learns at once that this is not the leader
        (NOT_LEADER_OR_FOLLOWER), their jobs at the bucket end, their logs stay open.

        One that is on its way to being led resigns when it got there: its claim may be under way."""
        self._topics[topic.topic_id] = topic
        self._follows.leave(topic, indexes)
        for index in indexes:
            if (partition := self._registry.led(topic.name, index)) is not None:
                self._resign(partition, f"leader epoch {partition.leader_epoch} is over; refresh metadata")
            for unpublished in self._attempts.on_its_way(topic.topic_id, index):
                unpublished.tier.resigned()  # it resigns when it is published, its jobs let nothing go from now on

    def _resign(self, partition: Partition, why: str) -> None:
        place = TopicPartition(partition.topic, partition.index)
        self._registry.resign(partition)
        partition.resign(Fenced(f"{place}: {why}"))

        async def detach() -> None:
            await self._tiers.detach(partition.tier, give_back=False)

        task = self._tasks.spawn(f"resign {place}", detach())
        self._resigning[partition] = task
        task.add_done_callback(lambda _: self._resigning.pop(partition))
        for watcher in self._watchers:
            watcher.resigned(*place)

    def _fenced(self, topic: Topic, index: int, epoch: int, why: str) -> None:
        """The partition's root names a higher epoch: its leadership is over, this partition's alone. It leads again
        when the image says so, in a higher one."""
        partition = self._registry.led(topic.name, index)
        if partition is not None and partition.topic_id == UUID(topic.topic_id) and partition.leader_epoch == epoch:
            log.error(
                "%s-%d is led by somebody else: %s; it leads again in a higher leader epoch", topic.name, index, why
            )
            self._resign(partition, why)

    @property
    def opened_count(self) -> int:
        """Partitions that are open, those of topics that are still being opened too."""
        return len(self._registry.partitions) + self._attempts.opened_count

    def _publish(self, topic_id: str, partitions: list[Partition]) -> None:
        """Let clients see them, as the topic is now: it may have changed while they were opened."""
        topic = self._topics[topic_id]
        self._opening.configure(topic, partitions)
        self.upkeep.opened(partitions)
        starting = [partition for partition in partitions if not topic.rows[partition.index].clean]
        partitions = [partition for partition in partitions if topic.rows[partition.index].clean]
        for partition in starting:
            self._registry.start(partition)
            if topic.rows[partition.index].leader_epoch != partition.leader_epoch:
                self._resign(partition, f"leader epoch {partition.leader_epoch} was over before it served")
            else:  # it may have been moved while it was on its way
                self._apply(partition, topic, applied_row(topic, partition.index, self._metadata.image))
        self._registry.publish(topic, partitions)
        for partition in partitions:
            for watcher in self._watchers:
                watcher.led(partition)
            # While it was on its way, or its neighbours were opened.
            if partition.tier.partition_state.fenced:
                self._resign(partition, "it was led by somebody else before it served")
            elif (row := self._row_to_lead(topic, partition.index)) and row.leader_epoch == partition.leader_epoch:
                self._apply(partition, topic, row)
            else:
                self._resign(partition, f"leader epoch {partition.leader_epoch} was over before it served")

    def apply(self, topic: Topic, indexes: Collection[int]) -> None:
        """Their leaders count by the image as it is now; those on their way to be led do when they got there."""
        self._topics[topic.topic_id] = topic
        started: list[Partition] = []
        for index in indexes:
            if (partition := self._registry.led(topic.name, index)) is not None:
                self._apply(partition, topic, applied_row(topic, index, self._metadata.image))
                if (topic.name, index) in self._registry.starting and topic.rows[index].clean:
                    started.append(partition)
        if started:
            self._publish(topic.topic_id, started)

    def _apply(self, partition: Partition, topic: Topic, row: AppliedRow) -> None:
        partition.tier.assigned(is_alone=is_alone(topic.rows[partition.index], self._node_id))
        partition.applied(row)

    def follow(self, topic: Topic, indexes: Collection[int]) -> None:
        """Begin to copy these partitions from those who lead them."""
        self._topics[topic.topic_id] = topic
        for index in indexes:
            self._follows.follow(topic, index)

    def drop(self, topic: Topic, indexes: Collection[int], *, is_seen: bool) -> None:
        """Let go of the logs of these partitions, which others hold now."""
        for index in indexes:
            self._attempts.damaged.pop(TopicPartition(topic.name, index), None)
            self._registry.troubles.over((topic.topic_id, index))
            self._dropping.drop(topic, index, is_seen=is_seen)

    async def _free(self, topic: Topic, index: int) -> None:
        """As `_ended`, and the log was not dropped, or is gone."""
        await self._dropping.over(topic.topic_id, index)
        await self._leaderships_over(topic, index)

    async def _ended(self, topic: Topic, index: int) -> None:
        """Wait until no role, past or begun, works on the log."""
        await self._follows.left(UUID(topic.topic_id), index)
        await self._leaderships_over(topic, index)

    async def _leaderships_over(self, topic: Topic, index: int) -> None:
        """Wait until no leadership, past or begun, works on the log: it goes with what it knows to another role."""
        await self._attempts.over(topic.topic_id, index)
        partition = self._registry.resigned.get((topic.name, index))
        if partition is not None:
            if (resigning := self._resigning.get(partition)) is not None:
                await asyncio.wait([resigning])
            if self._registry.resigned.get((topic.name, index)) is partition:  # else it is led again
                del self._registry.resigned[topic.name, index]
                self._registry.touched.discard(partition)

    def reconfigure(self, topic: Topic) -> None:
        """Let the partitions of `topic` follow its configs: those that are being opened, when they are open."""
        self._topics[topic.topic_id] = topic
        self._opening.configure(topic, self._registry.of_topic(topic.name))
        self._follows.reconfigure(topic)
        if topic.name in self._registry.topics:
            self._registry.topics[topic.name] = topic

    def follow_config(self) -> None:
        """Let every partition obey what was set on brokers as it is now; those being opened do when they are open."""
        self._configuring.all()

    def _configure(self, topic_id: str) -> None:
        topic = self._topics.get(topic_id)
        if topic is not None:
            self._opening.configure(topic, self._registry.of_topic(topic.name))
            self._follows.reconfigure(topic)

    def withdraw(self, topic: Topic) -> None:
        """Stop serving a deleted topic: its waiters learn it now. Its logs are closed in the background, before a new
        topic of the name is opened."""
        reach("topic.deleted")
        self._topics.pop(topic.topic_id, None)
        given_up = self._attempts.give_up(topic)
        self._follows.leave(topic, range(topic.partitions))
        withdrawn = self._registry.withdraw(topic.name) if topic.name in self._registry.topics else []
        for watcher in self._watchers:
            watcher.withdrawn(topic.name)
        for partition in withdrawn:
            partition.resign(Fenced(f"topic {topic.name} was deleted"))
        for index in range(topic.partitions):
            self._registry.troubles.over((topic.topic_id, index))

        async def ended() -> list[Partition]:
            await self._follows.all_left(topic)
            unpublished = await given_up()
            return withdrawn + [partition for partition in unpublished if partition not in withdrawn]

        def is_remembered() -> bool:
            return self._purging.removes(topic.topic_id) or topic.topic_id in self._metadata.image.deleted

        self._removal.close(topic, ended, is_remembered)

    def purge(self, topic: Topic) -> None:
        """See `Purging.purge`."""
        self._purging.purge(topic)

    async def keep_expiring(self) -> None:
        """Until cancelled: local retention of what is copied; what is led expires with its tier."""
        await self._follows.keep_expiring()

    async def close(self, *, clean: bool) -> bool:
        """See `Ending.close`. Whether every log could be left clean."""
        # A log whose tail is in doubt until the bucket answers must be in doubt at the next start, too.
        all_known = self._follows.are_open
        followed = await self._follows.close()
        all_known &= await self._attempts.close()
        ending = Ending(
            self._logs, self._tiers, self._registry, self.upkeep, self._resigning, self._report, clean=clean
        )
        return await ending.close(followed, self._removal.closed()) and all_known
