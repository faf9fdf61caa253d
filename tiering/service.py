"""Tiering of one broker: attached logs, the queues of their background work, the cold reader and the disk watch.

Reservations never wait for uploads. A produce never waits for an upload, and waits for a reservation only if no
reserved offsets are left. Tiers start when no log is being opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Final
from uuid import UUID

from coldstore.object_store import ObjectStore
from hotstore.cleaning.cleaner_config import CleanerConfig
from hotstore.cleaning.engine import CleanerEngine
from hotstore.flush.sync_rounds import SyncTimes
from hotstore.host.lease import Lease
from hotstore.host.log_host import LogHost
from logformat.errors import Retryable
from seams.loop.tasks import Tasks, supervise
from seams.world import World
from tiering.cleaning.scratch import SCRATCH_DIRECTORY, ColdCleaning
from tiering.copying.backlog import Backlog, lag_message
from tiering.copying.copier import CopyCounters
from tiering.expiry.cold_expirer import ExpireCounters
from tiering.expiry.collector import Collector, purge_partition
from tiering.expiry.disk_watch import DiskWatch
from tiering.opening.attach import AttachedTiers
from tiering.opening.cold_view import ColdView
from tiering.opening.deferred_start import DeferredStart
from tiering.opening.read_ahead import ReadAhead
from tiering.partition_state import TieredPartition
from tiering.partition_tier import PartitionTier
from tiering.reading.cold_reader import open_cold_reader
from tiering.tier_config import Lead, TierLimits
from tiering.work_queue import Backoff, Queues, StoreRecovery, WorkQueue

log = logging.getLogger(__name__)

COMMITS_MAX: Final = 16  # short requests on small objects
EXPIRIES_MAX: Final = 4
GC_MAX: Final = 1
CLEANINGS_MAX: Final = 1  # concurrent bucket compactions: one engine, one budget
SEALS_MAX: Final = 64  # partitions that wait in `seal_all` at once; copies_max bounds the work
LOG_LAG_EVERY_S: Final = 60.0
CACHE_DIRECTORY: Final = "thermocline-cache"  # chunks of cold segments, in the data directory


class TierService:
    """One per broker. `is_fresh`: whether its metadata image is the newest (R23); `is_complete`: whether all topics and
    configs are known (R29); `ahead`: prefetched data of lost logs; `engine`: cleans the bucket with the local cleaner's
    configs `cleaner`; None: the bucket is not cleaned."""

    def __init__(
        self,
        store: ObjectStore,
        world: World,
        logs: LogHost,
        tasks: Tasks,
        limits: TierLimits,
        *,
        report: Callable[[str, BaseException], None],
        is_fresh: Callable[[], bool],
        is_complete: Callable[[], bool],
        ahead: ReadAhead,
        engine: CleanerEngine | None,
        cleaner: Callable[[], CleanerConfig] = CleanerConfig,
    ) -> None:
        self._store = store
        self._world = world
        self._logs = logs
        self._tasks = tasks
        self._report = report
        self._is_fresh = is_fresh
        self.cold = open_cold_reader(store, world, tasks, f"{logs.path}/{CACHE_DIRECTORY}", limits)
        backoff = Backoff(limits.copy_backoff_ms / 1000, limits.copy_backoff_ms_max / 1000, limits.copy_backoff_jitter)
        recovery = StoreRecovery(world.rng)
        self._queues = Queues(
            *(
                WorkQueue(places, backoff, world.rng, tasks, recovery)
                for places in (COMMITS_MAX, limits.copy_partitions_max, EXPIRIES_MAX, GC_MAX, CLEANINGS_MAX)
            )
        )
        self._collector = Collector(store, world, limits.upload_timeout_s)
        scratch, budget = f"{logs.path}/{SCRATCH_DIRECTORY}", limits.cold_compaction_bytes_per_hour
        self.cleaning = None if engine is None else ColdCleaning(world, tasks, scratch, engine, cleaner, budget)
        self._attached = attached = AttachedTiers(
            store, world, logs, limits, self._make_tier, is_fresh, is_complete, ahead
        )
        self.open_log, self.open_copy = attached.open_log, attached.open_copy
        self.state_at, self.has_led = attached.state_at, attached.has_led
        self.note_reported_end, self.drop_reported_end = attached.note_reported_end, attached.drop_reported_end
        self.detach, self.forget = attached.detach, attached.forget
        self._deferred = DeferredStart()
        self.watch = DiskWatch(logs, self.cold, self._attached, world.workers, limits)
        self._backlog = Backlog()
        self._started_s = world.clock.monotonic_s()
        self.copy_counters = CopyCounters()
        self.expire_counters = ExpireCounters()

    async def start(self) -> None:
        """Check disk space, empty the chunk cache, begin to watch disk and backlog."""
        await self.watch.check_space()
        await self.cold.start()
        if self.cleaning is not None:
            await self.cleaning.start()
        for name, service in (("disk watch", self.watch.run), ("backlog watch", self._watch_backlog)):
            self._tasks.spawn(name, supervise(name, service, self._world.rng, self._report))

    async def close(self) -> None:
        """Stop all background work; attached tiers release nothing."""
        self._deferred.close()
        await self._attached.close()
        for queue in self._queues:
            queue.close()
        if self.cleaning is not None:
            await self.cleaning.close()
        await self.cold.close()

    # ── partitions ───────────────────────────────────────────────────────────────────────────────────────────────
    async def attach(self, lease: Lease, lead: Lead) -> PartitionTier:
        """See `AttachedTiers.attach`. It begins to claim, copy and expire when no log is being opened
        (`deferring_starts`)."""
        tier = await self._attached.attach(lease, lead)
        self._deferred.attached(tier.start)
        return tier

    def view(self, topic_id: UUID, index: int, end: Callable[[], int]) -> ColdView:
        """Cold reads of a partition that another broker leads; see `ColdView`."""
        manifests = self._attached.manifests_to_read(topic_id, index)
        return ColdView(topic_id, index, manifests, self.cold, end, self._world.clock)

    def deferring_starts(self, *, is_start: bool = False) -> AbstractContextManager[None]:
        """See `DeferredStart.while_opening`. At a start clients wait until all logs are open."""
        return self._deferred.while_opening(is_start=is_start)

    def _make_tier(self, partition: TieredPartition) -> PartitionTier:
        return PartitionTier(
            partition,
            self.cold,
            self._queues,
            self._collector,
            self.copy_counters,
            self.expire_counters,
            self._backlog,
            self.cleaning,
        )

    async def seal_all(self, topics: Collection[str] | None) -> None:
        """`tier seal`: return when all earlier appends are in the bucket. None means every topic."""
        slots = asyncio.Semaphore(SEALS_MAX)

        async def seal(tier: PartitionTier) -> None:
            async with slots:
                await tier.seal()

        wanted = [tier for tier in self._attached if topics is None or tier.partition_state.log.topic in topics]
        sealing = [self._tasks.spawn("seal", seal(tier)) for tier in wanted]
        try:
            # One failure does not stop the others.
            outcomes = await asyncio.gather(*sealing, return_exceptions=True)
        finally:
            for task in sealing:
                task.cancel()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def purge_topic(self, topic_id: UUID, partitions: int, may_delete: Callable[[], bool]) -> bool:
        """Delete the objects of a deleted topic, each partition's root last. Returns False if `may_delete`, which is
        called before each deletion, refuses. Raises Retryable while objects are left or the metadata image may be
        outdated (R23), and the errors of `may_delete`."""

        def may_send() -> bool:
            if not self._is_fresh():
                raise Retryable(f"this broker cannot tell if topic id {topic_id} is still deleted; its objects stay")
            return may_delete()

        for partition in range(partitions):
            if not await purge_partition(self._store, self.cold, topic_id, partition, may_send):
                return False
        return True

    async def _watch_backlog(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(LOG_LAG_EVERY_S)
            if (line := lag_message(self._backlog.lagging())) is not None:
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
            **self.cold.figures(),
        }

    @property
    def sync_times(self) -> SyncTimes:
        """Durations of syncs of the local logs."""
        return self._logs.sync_times

    def uptime_s(self) -> float:
        return self._world.clock.monotonic_s() - self._started_s
