"""Tiering of one broker: attaches logs, shares the places for their background work.

Owns the queues (commits, copies, expiry, gc), the cold reader, the disk watch, and what is attached. Always true:
reservations never wait for uploads, nor produce for either; a tier begins to work when nothing is
being opened any more. Must not know topics beyond what a `Lead` says, nor Kafka's requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Final
from uuid import UUID

from coldstore.object_store import ObjectStore
from hotstore.flush.sync_rounds import SyncTimes
from hotstore.host.lease import Lease
from hotstore.host.log_host import LogHost
from hotstore.host.open_log import OpenLog
from hotstore.log.log_config import LogConfig
from logformat.values import TopicPartition
from seams.tasks import Tasks, supervise
from seams.world import World
from tiering.copying.backlog import Backlog, sentence
from tiering.copying.copier import CopyCounters
from tiering.expiry.cold_expirer import ExpireCounters
from tiering.expiry.collector import Collector
from tiering.expiry.disk_watch import DiskView, DiskWatch
from tiering.expiry.purge import purge_partition
from tiering.opening.attach import Attached
from tiering.opening.cold_start import ColdStart
from tiering.opening.cold_view import ColdView
from tiering.opening.deferred_start import DeferredStart
from tiering.opening.read_ahead import ReadAhead
from tiering.opening.reservation import ToldEnd
from tiering.partition_state import TieredPartition
from tiering.partition_tier import PartitionTier
from tiering.reading.cold_reader import open_cold_reader
from tiering.store_recovery import StoreRecovery
from tiering.tier_config import Lead, TierLimits
from tiering.work_queue import Backoff, Queues, WorkQueue

log = logging.getLogger(__name__)

COMMITS_MAX: Final = 16  # short requests on small objects
EXPIRIES_MAX: Final = 4
GC_MAX: Final = 1
SEALS_MAX: Final = 64  # partitions that wait in `seal_all` at once; copies_max bounds the work
TELL_LAG_S: Final = 60.0
CACHE_DIRECTORY: Final = "thermocline-cache"  # chunks of cold segments, in the data directory


class TierService:
    """See the module. One per broker. `is_fresh`: whether what it believes of who leads is the newest (R23);
    `is_complete`: whether what it believes of topics and their configs is all there is (R29); `ahead`: what was read of
    lost logs before it was made."""

    def __init__(
        self,
        store: ObjectStore,
        world: World,
        logs: LogHost,
        tasks: Tasks,
        limits: TierLimits,
        *,
        report: Callable[[str, BaseException], None],
        is_fresh: Callable[[], bool] = lambda: True,
        is_complete: Callable[[], bool] = lambda: True,
        ahead: ReadAhead | None = None,
    ) -> None:
        self._store = store
        self._world = world
        self._logs = logs
        self._tasks = tasks
        self._report = report
        self._cold = open_cold_reader(store, world, tasks, f"{logs.path}/{CACHE_DIRECTORY}", limits)
        backoff = Backoff(limits.copy_backoff_ms / 1000, limits.copy_backoff_ms_max / 1000, limits.copy_backoff_jitter)
        looks = StoreRecovery(world.rng)
        self._queues = Queues(
            *(
                WorkQueue(places, backoff, world.rng, tasks, looks)
                for places in (COMMITS_MAX, limits.copy_partitions_max, EXPIRIES_MAX, GC_MAX)
            )
        )
        self._collector = Collector(store, world, limits.upload_timeout_s)
        self._attached = Attached(store, world, logs, limits, self._make_tier, is_fresh, is_complete, ahead)
        self._held_back = DeferredStart()
        self.watch = DiskWatch(logs, self._cold, self._attached, world.workers, limits)
        self._backlog = Backlog()
        self._started_s = world.clock.monotonic_s()
        self.copy_counters = CopyCounters()
        self.expire_counters = ExpireCounters()

    async def start(self) -> None:
        """Make room where there is none, empty the chunk cache, begin to watch the disk and what lags."""
        await self.watch.look()
        await self._cold.start()
        for name, service in (("disk watch", self.watch.keep), ("backlog watch", self._watch_backlog)):
            self._tasks.spawn(name, supervise(name, service, self._world.rng, self._report))

    async def close(self) -> None:
        """Stop all background work; what is still attached gives nothing back."""
        self._held_back.close()
        await self._attached.close()
        for queue in self._queues.all:
            queue.close()
        await self._cold.close()

    # ── partitions ───────────────────────────────────────────────────────────────────────────────────────────────
    async def open_log(self, place: TopicPartition, topic_id: UUID, config: LogConfig, lead: Lead) -> OpenLog:
        """See `Attached.open_log`."""
        return await self._attached.open_log(place, topic_id, config, lead)

    async def open_copy(self, place: TopicPartition, topic_id: UUID, config: LogConfig) -> OpenLog | None:
        """See `Attached.open_copy`."""
        return await self._attached.open_copy(place, topic_id, config)

    async def attach(self, lease: Lease, lead: Lead) -> PartitionTier:
        """See `Attached.attach`. It begins to claim, copy and expire when nothing is being opened (`holding_back`)."""
        tier = await self._attached.attach(lease, lead)
        self._held_back.attached(tier.start)
        return tier

    async def state_at(self, topic_id: UUID, index: int, offset: int, since: int) -> ColdStart:
        """See `Attached.state_at`."""
        return await self._attached.state_at(topic_id, index, offset, since)

    def has_led(self, topic_id: UUID, index: int) -> bool:
        """See `Attached.has_led`."""
        return self._attached.has_led(topic_id, index)

    def told(self, topic_id: UUID, index: int, end: ToldEnd) -> None:
        """See `Attached.told`."""
        self._attached.told(topic_id, index, end)

    def let_go(self, topic_id: UUID, index: int) -> None:
        """See `Attached.let_go`."""
        self._attached.let_go(topic_id, index)

    def view(self, topic_id: UUID, index: int, end: Callable[[], int]) -> ColdView:
        """See `ColdView`: of a partition that another broker leads."""
        return ColdView(topic_id, index, self._attached.manifests_to_read(topic_id, index), self._cold, end)

    async def detach(self, tier: PartitionTier, *, give_back: bool) -> None:
        """See `Attached.detach`. The log stays open."""
        await self._attached.detach(tier, give_back=give_back)

    def forget(self, topic_id: UUID, index: int) -> None:
        """The log is closed."""
        self._attached.forget(topic_id, index)

    def holding_back(self, *, is_start: bool = False) -> AbstractContextManager[None]:
        """See `DeferredStart.while_opening`. At a start clients wait until all is open."""
        return self._held_back.while_opening(is_start=is_start)

    def _make_tier(self, partition: TieredPartition) -> PartitionTier:
        return PartitionTier(
            partition,
            self._cold,
            self._queues,
            self._collector,
            self.copy_counters,
            self.expire_counters,
            self._backlog,
        )

    async def seal_all(self, topics: Collection[str] | None) -> None:
        """`tier seal`: return when all that was appended before is in the bucket. None: every topic."""
        slots = asyncio.Semaphore(SEALS_MAX)

        async def seal(tier: PartitionTier) -> None:
            async with slots:
                await tier.seal()

        wanted = [tier for tier in self._attached if topics is None or tier.partition_state.log.topic in topics]
        sealing = [self._tasks.spawn("seal", seal(tier)) for tier in wanted]
        try:
            # One that cannot be sealed does not keep the others from it.
            outcomes = await asyncio.gather(*sealing, return_exceptions=True)
        finally:
            for task in sealing:
                task.cancel()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def purge_topic(self, topic_id: UUID, partitions: int) -> None:
        """Delete the objects of a deleted topic, each partition's root last. Raises Retryable while some are left."""
        for partition in range(partitions):
            await purge_partition(self._store, self._cold, topic_id, partition)

    async def _watch_backlog(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TELL_LAG_S)
            if (line := sentence(self._backlog.look())) is not None:
                log.info("%s", line)

    # ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────
    def figures(self) -> dict[str, float]:
        """Totals since the start, by name."""
        copies, expiry = self.copy_counters, self.expire_counters
        return {
            "copied_bytes": copies.copied_bytes,
            "copied_segments": copies.copied_segments,
            "copy_errors": copies.copy_errors,
            "verified_segments": copies.verified_segments,
            "garbage_objects": copies.garbage_objects,
            "deleted_objects": expiry.deleted_objects,
            "deleted_cold_bytes": expiry.deleted_cold_bytes,
            "deleted_local_bytes": expiry.deleted_local_bytes,
            "gc_objects": self._collector.counters.gc_objects,
            "gc_bytes": self._collector.counters.gc_bytes,
            "commit_failures": self._queues.commits.failures,
            **self._cold.figures(),
        }

    @property
    def disk(self) -> DiskView:
        """As of the last look, a few seconds ago."""
        return self.watch.disk

    @property
    def local_excess_ratio(self) -> float:
        """Which share of the limit local bytes exceed it by after all that the bucket holds was asked for (G12)."""
        return self.watch.local_excess_ratio

    @property
    def sync_times(self) -> SyncTimes:
        """How long syncs of the local logs took."""
        return self._logs.sync_times

    @property
    def cold_latency_buckets(self) -> list[int]:
        """How many cold reads took how long, by coldstore.stores.metered.LATENCY_BOUNDS_MS."""
        return self._cold.latency_buckets

    @property
    def cache_limit_bytes(self) -> int:
        """What the chunk cache may use now; less than configured while the disk is short."""
        return self._cold.cache_limit_bytes

    def uptime_s(self) -> float:
        """Seconds since this service was made."""
        return self._world.clock.monotonic_s() - self._started_s
