"""Resources of all roles on a broker: services, watchers, and the slots for opening logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

import msgspec

from broker.config.live import LiveConfig
from broker.following.metadata_cache import MetadataCache
from broker.partition.following.fetcher_manager import FetcherManager
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.readable import HostedReplica
from broker.partition.registry import Registry
from broker.partition.topic_configs import TopicConfigs
from hotstore.host.log_host import LogHost
from logformat.values import TopicPartition
from seams.loop.tasks import FailureReport, Tasks
from seams.world import World
from tiering.service import TierService

OPENING_MAX: Final = 16  # concurrent openings per kind of role: bounds files and requests


class LeadershipWatcher(Protocol):
    """Notified on the loop when this broker gains or loses the leadership of a partition. The tables have changed
    before the call. A call must not wait or raise."""

    def led(self, partition: LeaderReplica) -> None:
        """The partition serves now: it was opened, or this broker leads it again in a higher epoch."""

    def resigned(self, topic: str, index: int) -> None:
        """Another broker leads the partition, or no broker does. The partition's waiters have already failed."""

    def withdrawn(self, topic: str) -> None: ...


class Roles(msgspec.Struct, frozen=True):
    """The resources that all roles of one broker share. `on_opened` is called with replicas just before they serve or
    follow. `move_if_stray` moves a closed stray log away from its place."""

    config: LiveConfig
    world: World
    logs: LogHost
    tiers: TierService
    registry: Registry
    metadata: MetadataCache
    configs: TopicConfigs
    fetchers: FetcherManager
    tasks: Tasks
    report: FailureReport
    on_opened: Callable[[Iterable[HostedReplica]], None]
    move_if_stray: Callable[[TopicPartition], Awaitable[None]]
    watchers: list[LeadershipWatcher] = msgspec.field(default_factory=list)  # in the order in which they are called
    to_lead: asyncio.Semaphore = msgspec.field(default_factory=lambda: asyncio.Semaphore(OPENING_MAX))
    to_follow: asyncio.Semaphore = msgspec.field(default_factory=lambda: asyncio.Semaphore(OPENING_MAX))

    @property
    def node_id(self) -> int:
        return self.config.now.node_id
