"""One partition's way to being led: its log is opened here, then it gets its tier for the leader epoch.

Owns how many are on that way at once, and what an attempt leaves behind. Always true: a log is opened once, however
often leading it is tried; an attempt that only waits for the bucket leaves it open for the next one, any other closes
it, so that the next opens the files as they are; a partition that resigned keeps its log and what it counts; where
another replica may lead instead, a disk that refuses is told of. Must not know which partitions are to be led, nor who
is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from uuid import UUID

from broker.config.broker_config import BrokerConfig
from broker.config.live import LiveConfig
from broker.config.topics import TopicConfig, log_config_of, resolve_topic
from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import Topic
from broker.metadata.row_steps import holds_alone, is_alone
from broker.partition.registry import Registry
from broker.partition.replica import Partition
from broker.replication.in_sync import AppliedRow
from hotstore.errors import DamagedLog, may_pass
from hotstore.log_config import LogConfig
from hotstore.log_host import LogHost, OpenLog
from logformat.errors import Fenced, Retryable, StorageFailed
from logformat.values import TopicPartition
from tiering.partition_tier import PartitionTier
from tiering.service import TierService
from tiering.tier_config import NO_SESSION, Lead, TierConfig

log = logging.getLogger(__name__)

_OPENING_MAX: Final = 16  # partitions on their way at once: bounded files and requests


class Opening:
    """Of one broker. `open` is called for one partition at a time by whoever is to lead it."""

    def __init__(
        self, config: LiveConfig, logs: LogHost, tiers: TierService, registry: Registry, metadata: MetadataCache
    ) -> None:
        self._live = config
        self._logs = logs
        self._tiers = tiers
        self._registry = registry
        self._metadata = metadata
        self._slots = asyncio.Semaphore(_OPENING_MAX)
        self._resolved: tuple[BrokerConfig, Topic, TopicConfig] | None = None  # the last one: a topic's come together

    async def open(
        self, topic: Topic, index: int, row: AppliedRow, *, new: bool, on_fenced: Callable[[str], None]
    ) -> Partition:
        """The partition, led in the leader epoch of `row`, not yet published. Raises as `TierService.attach` and
        `open_log`."""
        node_id = self._live.now.node_id
        config = self.topic_config(topic)
        decided = topic.rows[index]
        lead = Lead(
            row.leader_epoch,
            self.tier_config(topic, config),
            on_fenced,
            new,
            self._metadata.is_deleted,
            is_alone=is_alone(decided, node_id),
            holds_alone=holds_alone(decided, node_id),
            unclean_after=None if decided.clean else decided.served_epoch,
            broker_epoch=row.sessions.get(node_id, NO_SESSION),
        )
        troubles, of = self._registry.troubles, (topic.topic_id, index)
        if not lead.is_alone:  # else it begins anew by itself, at what the bucket holds
            lead = replace(lead, on_behind=lambda why: troubles.damaged(of, why))
        try:
            partition = await self._open(topic, index, row, lead, config)
        except (StorageFailed, OSError) as refused:
            if not lead.is_alone and not may_pass(refused):
                troubles.failed(of, f"it cannot be opened to be led: {refused}")  # another one may lead it (D38)
            raise
        if not partition.log.failure:
            troubles.works(of)
        return partition

    async def _open(self, topic: Topic, index: int, row: AppliedRow, lead: Lead, config: TopicConfig) -> Partition:
        resigned = self._registry.resigned.get((topic.name, index))
        with self._tiers.holding_back():  # also while others have all the slots
            async with self._slots:
                if resigned is not None:
                    resigned.lead(await self._tiers.attach(resigned.opened, lead), row)
                    return resigned
                opened, tier = await self._attached(
                    TopicPartition(topic.name, index), topic, log_config_of(config), lead
                )
        registry, node_id = self._registry, self._live.now.node_id
        return Partition(opened, tier, row, config, registry.touched, registry.restless, registry.troubles, node_id)

    async def _attached(
        self, place: TopicPartition, topic: Topic, config: LogConfig, lead: Lead
    ) -> tuple[OpenLog, PartitionTier]:
        opened = await self._open_log(place, topic, config, lead)
        try:
            tier = await self._tiers.attach(opened, lead)
            if lead.unclean_after is not None:  # what was damaged is cut
                self._registry.troubles.over((topic.topic_id, place.partition))
        except (Retryable, Fenced):
            raise  # the log is as its disk says: it waits for the bucket, or for a higher epoch
        except BaseException:
            await self._close(opened)
            raise
        return opened, tier

    async def _open_log(self, place: TopicPartition, topic: Topic, config: LogConfig, lead: Lead) -> OpenLog:
        """One that is damaged is reported, so that another one leads (R18); where nobody has all that was acknowledged,
        it is cut at the damage, or, where that is not all, goes aside, and this replica begins with what the bucket
        holds."""
        topic_id = UUID(topic.topic_id)
        troubles, of = self._registry.troubles, (topic.topic_id, place.partition)
        try:
            return await self._tiers.open_log(place, topic_id, config, lead)
        except DamagedLog as damaged:
            if lead.is_alone:
                raise
            if lead.unclean_after is None:
                troubles.damaged(of, str(damaged))
                raise
            try:
                opened = await self._logs.open_sound(place, topic_id, config, damaged.offset)
            except DamagedLog as worse:
                log.error("%s begins without the log here, which is damaged: %s", place, worse)
            else:
                log.error("%s begins with what is whole of the log here: %s", place, damaged)
                return opened
        await self._logs.places.move_stray(place, topic_id)
        troubles.over(of)
        return await self._tiers.open_log(place, topic_id, config, lead)

    async def _close(self, opened: OpenLog) -> None:
        try:
            await self._logs.close(opened, clean=False)
        finally:
            self._tiers.forget(opened)

    def configure(self, topic: Topic, partitions: list[Partition]) -> None:
        """Let them obey the topic's configs, and the broker's, as they are now."""
        config = self.topic_config(topic)
        for partition in partitions:
            partition.config = config
            partition.log.reconfigure(log_config_of(config))
            partition.tier.reconfigure(self.tier_config(topic, config))

    def topic_config(self, topic: Topic) -> TopicConfig:
        broker, last = self._live.now, self._resolved
        if last is None or last[0] is not broker or last[1] is not topic:
            config = resolve_topic(broker, topic.configs, internal=topic.internal)
            self._resolved = last = broker, topic, config
        return last[2]

    def tier_config(self, topic: Topic, config: TopicConfig) -> TierConfig:
        return TierConfig(
            enabled=config.remote_storage_enable,
            internal=topic.internal,
            copy_disable=config.remote_log_copy_disable,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            local_retention_ms=config.local_retention_ms,
            local_retention_bytes=config.local_retention_bytes,
            seal_ms=self._live.now.seal_ms,
            topic=topic.name,
            configs=topic.configs,
        )
