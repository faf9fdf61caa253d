"""Partitions that this broker leads: from what the image says of them to partitions that serve, and back.

Owns the role of a leader: begun, published, fenced, resigned, over. No call waits but those that say so. Always true: a
partition is published only when it may serve; what was decided about it while it was on its way counts when it got
there; fencing ends the leadership of one partition, never the broker; watchers are told on the loop, after the look-up
tables changed. Must not know how a log or a tier is opened (opening), how often it is tried (attempts), nor what else a
replica may be (follows, dropping).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from uuid import UUID

from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import Topic
from broker.metadata.row_steps import is_alone
from broker.partition.attempts import Attempts
from broker.partition.opening import Opening
from broker.partition.registry import Registry
from broker.partition.replica import Partition
from broker.replication.applied import applied_row
from broker.replication.in_sync import AppliedRow
from hotstore.errors import ForeignLog
from logformat.errors import Fenced, Retryable
from logformat.values import TopicPartition
from seams.crash_points import reach
from seams.rng import Rng
from seams.tasks import FailureReport, Tasks
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


class Leaderships:
    """Of one broker. `topics`: by id, as last decided, those that are still being opened too; `turn`: see `Attempts`;
    `made_open` is told of partitions just before clients see them; `left` waits until nobody copies a partition here;
    `make_way` moves a log that is another topic's aside."""

    def __init__(
        self,
        node_id: int,
        topics: Mapping[str, Topic],
        metadata: MetadataCache,
        registry: Registry,
        opening: Opening,
        tiers: TierService,
        tasks: Tasks,
        rng: Rng,
        report: FailureReport,
        *,
        turn: Callable[[str], AbstractAsyncContextManager[None]],
        made_open: Callable[[list[Partition]], None],
        left: Callable[[UUID, int], Awaitable[None]],
        make_way: Callable[[TopicPartition], Awaitable[None]],
    ) -> None:
        self._node_id = node_id
        self._topics = topics
        self._metadata = metadata
        self._registry = registry
        self._opening = opening
        self._tiers = tiers
        self._tasks = tasks
        self._made_open = made_open
        self._left = left
        self._make_way = make_way
        self.attempts = Attempts(self._open, self._publish, turn, tasks, rng, report)
        self.watchers: list[LeadershipWatcher] = []
        """In the order in which they are told."""
        self.resigning: dict[Partition, asyncio.Task[None]] = {}
        """What is under way of partitions that resigned."""

    # ── on the way ───────────────────────────────────────────────────────────────────────────────────────────────
    def lead(self, topic: Topic, indexes: Collection[int]) -> None:
        """See `Replicas.lead`."""
        new = [index for index in indexes if topic.rows[index].partition_epoch == 0]  # no change since they were made
        if new:
            reach("topic.committed")
            self.attempts.begin(topic, new, new=True)
        if old := [index for index in indexes if topic.rows[index].partition_epoch > 0]:
            self.attempts.begin(topic, old, new=False)

    async def _open(self, topic: Topic, index: int, new: bool) -> Partition | None:
        """None: it is not to be led any more, or an earlier attempt came to lead it in the newest epoch."""
        await self._left(UUID(topic.topic_id), index)
        before = self._registry.resigned.get((topic.name, index))
        if before is not None and (resigning := self.resigning.get(before)) is not None:
            await asyncio.wait([resigning])
        topic = self._topics.get(topic.topic_id, topic)  # configs and rows may have changed since the first attempt
        new = new and topic.rows[index].partition_epoch == 0  # others may have led it since, and it is led again
        row = self._row_to_lead(topic, index)
        if row is None or self._registry.led(topic.name, index) is not None:
            return None

        def fenced(why: str) -> None:
            self._fenced(topic, index, row.leader_epoch, why)

        try:
            partition = await self._opening.open(topic, index, row, new=new, on_fenced=fenced)
        except ForeignLog:
            await self._make_way(TopicPartition(topic.name, index))
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
        """See `Replicas.opened`."""
        came_true = await self.attempts.opened(topic_id)
        if not came_true and (topic := self._topics.get(topic_id)) is not None:
            raise Retryable(f"the broker stops before topic {topic.name!r} is open")

    # ── serving ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _publish(self, topic_id: str, partitions: list[Partition]) -> None:
        """Let clients see them, as the topic is now: it may have changed while they were opened."""
        topic = self._topics[topic_id]
        self._opening.configure(topic, partitions)
        self._made_open(partitions)
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
            for watcher in self.watchers:
                watcher.led(partition)
            # While it was on its way, or its neighbours were opened.
            if partition.tier.partition_state.fenced:
                self._resign(partition, "it was led by somebody else before it served")
            elif (row := self._row_to_lead(topic, partition.index)) and row.leader_epoch == partition.leader_epoch:
                self._apply(partition, topic, row)
            else:
                self._resign(partition, f"leader epoch {partition.leader_epoch} was over before it served")

    def apply(self, topic: Topic, indexes: Collection[int]) -> None:
        """See `Replicas.apply`."""
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

    # ── and back ─────────────────────────────────────────────────────────────────────────────────────────────────
    def resign(self, topic: Topic, indexes: Collection[int]) -> None:
        """See `Replicas.resign`."""
        for index in indexes:
            if (partition := self._registry.led(topic.name, index)) is not None:
                self._resign(partition, f"leader epoch {partition.leader_epoch} is over; refresh metadata")
            for unpublished in self.attempts.on_its_way(topic.topic_id, index):
                unpublished.tier.resigned()  # it resigns when it is published, its jobs let nothing go from now on

    def _resign(self, partition: Partition, why: str) -> None:
        place = TopicPartition(partition.topic, partition.index)
        self._registry.resign(partition)
        partition.resign(Fenced(f"{place}: {why}"))

        async def detach() -> None:
            await self._tiers.detach(partition.tier, give_back=False)

        task = self._tasks.spawn(f"resign {place}", detach())
        self.resigning[partition] = task
        task.add_done_callback(lambda _: self.resigning.pop(partition))
        for watcher in self.watchers:
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

    async def over(self, topic: Topic, index: int) -> None:
        """Wait until no leadership, past or begun, works on the log: it goes with what it knows to another role."""
        await self.attempts.over(topic.topic_id, index)
        partition = self._registry.resigned.get((topic.name, index))
        if partition is not None:
            if (resigning := self.resigning.get(partition)) is not None:
                await asyncio.wait([resigning])
            if self._registry.resigned.get((topic.name, index)) is partition:  # else it is led again
                del self._registry.resigned[topic.name, index]
                self._registry.touched.discard(partition)
