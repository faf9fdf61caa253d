"""From a topic in the image to partitions that serve, and back.

Owns opening, reconfiguring, closing and purging led partitions: the shell between the controller's decisions and
tiering's `open_partition`. Always true: a partition is published only when it may serve; opening that fails is tried
again for as long as the topic exists, because the topic is a committed fact. Must not know how a log or a tier is
opened.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final
from uuid import UUID

from broker.config.resolve import BrokerConfig
from broker.config.topics import TopicConfig, log_config_of, resolve_topic
from broker.metadata.image import Topic
from broker.partition.partition import Partition
from broker.partition.registry import Registry
from hotstore.data_dir import DataDir
from hotstore.errors import ForeignLog
from logformat.checkpoints import PARTITION_METADATA_FILE, decode_partition_metadata
from logformat.errors import Corrupt, Fenced, StorageFailed
from logformat.values import TopicPartition
from seams.crash_points import reach
from seams.disk import read_file
from seams.tasks import Tasks, supervise
from seams.world import World
from tiering.service import TierService
from tiering.tier_config import Opening, TierConfig

log = logging.getLogger(__name__)

_PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_TICK_S: Final = 1.0
_OPENING_MAX: Final = 16  # partitions being opened at once: bounded files and requests


class Host:
    """The partitions of this broker. `leader_epoch` is the node's epoch: each start is a new one."""

    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        data_dir: DataDir,
        registry: Registry,
        tiers: TierService,
        tasks: Tasks,
        leader_epoch: int,
        report: Callable[[str, BaseException], None],
    ) -> None:
        self._config = config
        self._world = world
        self._data_dir = data_dir
        self._registry = registry
        self._tiers = tiers
        self._tasks = tasks
        self._leader_epoch = leader_epoch
        self._report = report
        self._slots = asyncio.Semaphore(_OPENING_MAX)
        self._opening: dict[str, asyncio.Task[None]] = {}
        # A new topic's directories are not made while those of a deleted one under the same name are moved away (C9).
        self._directories = asyncio.Lock()
        self.damaged: dict[TopicPartition, str] = {}  # partitions that refuse to open, and why

    async def open_topic(self, topic: Topic, first_partition: int, *, new: bool = True) -> None:
        """Open the topic's partitions from `first_partition` on and publish the topic."""

        async def attempt() -> None:
            indexes = range(first_partition, topic.partitions)
            lost: dict[int, tuple[int, int]] = {}
            async with self._directories if new else nullcontext():
                opened = await asyncio.gather(*(self._open(topic, index, lost, new=new) for index in indexes))
            if new:
                reach("topic.rooted")
            if lost:
                log.warning("%s", _lost_tails(topic.name, lost))
            self._registry.publish(topic, [partition for partition in opened if partition is not None])

        name = f"open {topic.name}"
        work = supervise(name, attempt, self._world.rng, self._report, backoff_max_s=10.0)
        task = self._tasks.spawn(name, work)
        self._opening[topic.topic_id] = task
        task.add_done_callback(lambda _: self._opening.pop(topic.topic_id, None))
        # The caller's patience may end; the opening goes on.
        await asyncio.shield(task)

    async def _open(self, topic: Topic, index: int, lost: dict[int, tuple[int, int]], *, new: bool) -> Partition | None:
        config = resolve_topic(self._config, topic.configs, internal=topic.internal)
        place = TopicPartition(topic.name, index)
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
            try:
                opened = await self._tiers.open_partition(opening)
            except ForeignLog:
                raise  # heals by itself, when the purge of the deleted topic that had the name moved it away (C9)
            except (StorageFailed, Corrupt, OSError) as refused:
                # Its neighbours serve; a person has to look at this one. A machine out of descriptors or space may have
                # some again soon.
                if isinstance(refused, OSError) and refused.errno in _PASSING:
                    raise
                self.damaged[place] = str(refused)
                log.error("%s stays offline: %s", place, refused)
                return None
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
        """Let the open partitions of `topic` follow its configs."""
        config = resolve_topic(self._config, topic.configs, internal=topic.internal)
        for partition in self._registry.of_topic(topic.name):
            partition.config = config
            partition.log.reconfigure(log_config_of(config))
            partition.tier.reconfigure(self._tier_config(topic, config))
        if topic.name in self._registry.topics:
            self._registry.topics[topic.name] = topic

    async def withdraw(self, topic: Topic) -> None:
        """Stop serving a deleted topic; its waiters learn it now, its files are renamed away."""
        opening = self._opening.get(topic.topic_id)
        if opening is not None:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        if topic.name not in self._registry.topics:
            return
        withdrawn = self._registry.withdraw(topic.name)
        for partition in withdrawn:  # all of them at once: closing one may wait for its disk
            partition.fail_waiters(Fenced(f"topic {topic.name} was deleted"))
        for partition in withdrawn:
            await self._tiers.close_partition(partition.tier, give_back=False)
            await partition.flusher.close()
            await self._world.workers.run(partition.log.close, False)

    async def purge(self, topic: Topic) -> None:
        """Remove a withdrawn topic's local files, then its objects."""
        topic_id = UUID(topic.topic_id)
        async with self._directories:
            await self._world.workers.run(self._move_away, topic)
        await self._world.workers.run(self._remove_moved)
        await self._tiers.purge_topic(topic_id, topic.partitions)

    def _move_away(self, topic: Topic) -> None:
        for index in range(topic.partitions):
            path = self._data_dir.log_path(topic.name, index)
            metadata = f"{path}/{PARTITION_METADATA_FILE}"
            # A new topic may have taken the name since: its directory carries another id (C9).
            if (
                self._world.disk.stat(metadata) is not None
                and decode_partition_metadata(read_file(self._world.disk, metadata)) == UUID(topic.topic_id).bytes
            ):
                self._data_dir.mark_deleted(topic.name, index, self._world.rng.uuid().hex)

    def _remove_moved(self) -> None:
        for path in self._data_dir.deleted_directories():
            self._data_dir.remove_deleted(path)

    async def checkpoint(self) -> None:
        """Note recovery points, log starts and high watermarks, so that the next start looks at less."""
        marks = {TopicPartition(p.topic, p.index): p.high_watermark for p in self._registry}
        async with self._tiers.checkpoints:  # DeleteRecords checkpoints too, and one job at a time may write the files
            job = self._data_dir.checkpoint([partition.log for partition in self._registry], marks)
            await self._world.workers.run(job.run)

    async def keep_checkpoints(self) -> None:
        """Until cancelled: the three checkpoints are written together, as often as the most frequent one asks."""
        interval_ms = min(
            self._config.recovery_point_checkpoint_interval_ms,
            self._config.log_start_checkpoint_interval_ms,
            self._config.high_watermark_checkpoint_interval_ms,
        )
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self.checkpoint()

    async def keep_ticking(self) -> None:
        """Until cancelled: once a second, the logs that were written to lately look at flush.ms and at late acks."""
        while True:
            await asyncio.sleep(_TICK_S)
            now_ms = self._world.clock.wall_ms()
            now_s = asyncio.get_running_loop().time()
            for partition in sorted(self._registry.touched, key=lambda p: (p.topic, p.index)):
                partition.flusher.tick(now_ms)
                partition.expire_acks(now_s)
                if partition.log.dirty_bytes == 0:
                    self._registry.touched.discard(partition)

    async def close(self, *, clean: bool) -> bool:
        """Flush and close every log; with `clean`, reservations are given back and the logs need no recovery.

        Returns whether every log could be left clean.
        """
        for opening in tuple(self._opening.values()):
            opening.cancel()
        for partition in tuple(self._registry):
            gone = StorageFailed(f"{partition.topic}-{partition.index}: the broker is stopping")
            if clean:
                try:
                    await partition.flusher.flush()
                except StorageFailed as failure:
                    self._report(f"flush {partition.topic}-{partition.index}", failure)
                    clean = False
            await self._tiers.close_partition(partition.tier, give_back=clean)
            await partition.flusher.close()
            try:
                await self._world.workers.run(partition.log.close, clean)
            except OSError as failure:  # a full or failing disk must not keep the other logs from their flush
                self._report(f"close {partition.topic}-{partition.index}", failure)
                clean = False
            partition.fail_waiters(gone)
        if clean:
            try:
                await self.checkpoint()
            except OSError as failure:
                self._report("checkpoints", failure)
                clean = False
        return clean and not self.damaged


def _lost_tails(topic: str, lost: dict[int, tuple[int, int]]) -> str:
    """One line a topic, however many partitions: what is gone, and where to look."""
    shown = ", ".join(f"{index} [{first}, {end})" for index, (first, end) in sorted(lost.items())[:3])
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    return (
        f"{topic}: the tail of {len(lost)} partition{'s' * (len(lost) > 1)} is lost; offsets that clients may have "
        f"seen are declared gaps: {shown}{more}; `thermocline tier status --topic {topic}` names each"
    )
