"""What the roles of all partitions on this broker work with.

Owns no state of its own but the places for logs that are being opened. Must not know which roles there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from broker.config.live import LiveConfig
from broker.following.metadata_cache import MetadataCache
from broker.partition.following.fetcher_manager import FetcherManager
from broker.partition.hosted_replica import HostedReplica
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.registry import Registry
from broker.partition.topic_configs import TopicConfigs
from hotstore.host.log_host import LogHost
from logformat.values import TopicPartition
from seams.tasks import FailureReport, Tasks
from seams.world import World
from tiering.service import TierService

OPENING_MAX: Final = 16  # logs that are opened for one kind of role at once: bounded files and requests


class LeadershipWatcher(Protocol):
    """Who lives and dies with this broker's leadership of partitions. Called on the loop, after the tables changed; a
    call must neither wait nor raise."""

    def led(self, partition: LeaderReplica) -> None:
        """It serves from now on: opened, or led again in a higher epoch."""
        ...

    def resigned(self, topic: str, index: int) -> None:
        """Somebody else leads it, or nobody: whoever waited for it was told."""
        ...

    def withdrawn(self, topic: str) -> None:
        """The topic was deleted, however that came about."""
        ...


@dataclass(frozen=True, slots=True)
class Roles:
    """Of one broker. `made_open` is told of partitions just before they serve, or follow; `make_way` moves the closed
    log of a topic that nobody knows out of a place."""

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
    made_open: Callable[[Iterable[HostedReplica]], None]
    make_way: Callable[[TopicPartition], Awaitable[None]]
    watchers: list[LeadershipWatcher] = field(default_factory=list)
    """In the order in which they are told."""
    to_lead: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(OPENING_MAX))
    to_follow: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(OPENING_MAX))

    @property
    def node_id(self) -> int:
        return self.config.now.node_id
