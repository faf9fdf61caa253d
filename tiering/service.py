"""Tiering of one broker: opens partitions, shares the places for their background work, gives disk back under pressure.

Owns the queues (commits, copies, expiry), the cold reader, and the list of open partitions. Always true: a partition is
opened once however often it is asked for; reservations never wait for uploads, nor produce for either; closing leaves
every log as the next opening expects it. Must not know topics beyond what an `Opening` says, nor Kafka's requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple
from uuid import UUID

from coldstore.keys import PageKey, RootKey, SegmentKey, SnapshotKey, parse_key, partition_prefix
from coldstore.manifest_store import ManifestStore
from coldstore.object_store import AccessRefused, ObjectStore
from coldstore.page_reader import PageCache
from coldstore.root import RootVanished
from hotstore.ballast import ROOM
from hotstore.data_dir import DataDir
from hotstore.flusher import Flusher
from hotstore.partition_log import PartitionLog
from hotstore.sync_rounds import SyncRounds
from hotstore.sync_times import SyncTimes
from logformat.errors import Fenced, Retryable, ThermoclineError
from seams.disk import Space, is_full
from seams.tasks import Tasks, supervise
from seams.world import World
from tiering.backlog import Backlog, sentence
from tiering.bootstrap import Bootstrap, given_up_on_failure
from tiering.cold_expirer import ExpireCounters
from tiering.collector import Collector
from tiering.copier import CopyCounters
from tiering.partition_state import TieredPartition
from tiering.partition_tier import PartitionTier, Queues
from tiering.pressure import LocalBytes, cache_room, excess_bytes, room_bytes, share_pressure
from tiering.reading.door import open_cold_reader
from tiering.tier_config import Opening, TierLimits
from tiering.work_queue import Backoff, WorkQueue

log = logging.getLogger(__name__)

COMMITS_MAX: Final = 16  # short requests on small objects
EXPIRIES_MAX: Final = 4
GC_MAX: Final = 1
SEALS_MAX: Final = 64  # partitions that wait in `seal_all` at once; copies_max bounds the work
WATCH_DISK_S: Final = 5.0
WATCH_FULL_DISK_S: Final = 1.0  # while produces wait for room: they go on soon after it is there
TELL_LAG_S: Final = 60.0
EXCESS_TOLD_RATIO: Final = 0.02  # below it nobody is slowed down: an active segment beside other programs' files
CACHE_DIRECTORY: Final = "thermocline-cache"  # chunks of cold segments, in the data directory
GIVE_BACK_S: Final = 30.0
DELETE_KEYS: Final = 500


class Opened(NamedTuple):
    """A partition that may be served."""

    log: PartitionLog
    flusher: Flusher
    tier: PartitionTier
    lost: tuple[int, int] | None = None  # [first, end) declared a gap by this opening


class DiskView(NamedTuple):
    """The file system of the data directory, and what local logs may use of it. Bytes."""

    total: int
    free: int
    log_limit: int
    is_share: bool = False  # the limit is a share of the file system, which others may fill too


class TierService:
    """See the module. One per broker."""

    def __init__(
        self,
        store: ObjectStore,
        world: World,
        data_dir: DataDir,
        tasks: Tasks,
        limits: TierLimits,
        *,
        report: Callable[[str, BaseException], None],
        on_fenced: Callable[[str], None],
    ) -> None:
        self._store = store
        self._world = world
        self._data_dir = data_dir
        self._sync_rounds = SyncRounds(world.syncs, world.workers, report)
        self._tasks = tasks
        self._limits = limits
        self._report = report
        self._on_fenced = on_fenced
        self._cold = open_cold_reader(store, world, tasks, f"{data_dir.path}/{CACHE_DIRECTORY}", limits)
        self._pages = PageCache()
        backoff = Backoff(limits.copy_backoff_ms / 1000, limits.copy_backoff_ms_max / 1000, limits.copy_backoff_jitter)
        self._queues = Queues(
            WorkQueue(COMMITS_MAX, backoff, world.rng, tasks),
            WorkQueue(limits.copy_partitions_max, backoff, world.rng, tasks),
            WorkQueue(EXPIRIES_MAX, backoff, world.rng, tasks),
            WorkQueue(GC_MAX, backoff, world.rng, tasks),
        )
        self._collector = Collector(store, world, limits.upload_timeout_s)
        self._open: dict[tuple[UUID, int], Opened] = {}
        self._holds_back = False
        self._opening: dict[tuple[UUID, int], asyncio.Lock] = {}
        self.checkpoints = asyncio.Lock()
        """Held while a `DataDir.checkpoint` job runs: one at a time, whoever asks for it."""
        self._store_away = False
        self.local_excess_ratio = 0.0
        """Which share of the limit local bytes exceed it by after all that the bucket holds was asked for (G12)."""
        self.disk = DiskView(0, 0, 0)
        """As of the last look, a few seconds ago."""
        self._cache_yields = False
        self._backlog = Backlog()
        self._started_s = world.clock.monotonic_s()
        self.copy_counters = CopyCounters()
        self.expire_counters = ExpireCounters()

    async def start(self) -> None:
        """Make room where there is none, empty the chunk cache, begin to watch the disk and what lags."""
        await self._look_at_room()
        await self._cold.start()
        for name, service in (("disk watch", self._watch_disk), ("backlog watch", self._watch_backlog)):
            self._tasks.spawn(name, supervise(name, service, self._world.rng, self._report))

    async def close(self) -> None:
        """Stop all background work; partitions that are still open are closed without giving anything back."""
        for opened in tuple(self._open.values()):
            await opened.tier.close()
        for queue in self._queues.all:
            queue.close()
        self._open.clear()
        await self._cold.close()

    # ── partitions ───────────────────────────────────────────────────────────────────────────────────────────────
    async def open_partition(self, opening: Opening) -> Opened:
        """The partition's log, ready to be served. Asking again for an open one returns the same.

        Raises Retryable (the bucket is needed and away), Fenced, Corrupt (damage: a person decides), StorageFailed,
        OSError.
        """
        key = (opening.topic_id, opening.partition)
        async with self._opening.setdefault(key, asyncio.Lock()):
            known = self._open.get(key)
            if known is not None:
                return known
            try:
                opened = await self._open_new(opening)
            except RootVanished:
                raise  # the topic was deleted meanwhile
            except Fenced as fenced:
                self._on_fenced(str(fenced))
                raise
            self._open[key] = opened
            if not self._holds_back:
                opened.tier.start()
            return opened

    @contextmanager
    def holding_back(self) -> Iterator[None]:
        """Partitions that are opened in here begin to claim, copy and expire when all are: until then clients wait."""
        self._holds_back = True
        known = set(self._open)
        yield
        self._holds_back = False
        for key, opened in self._open.items():
            if key not in known:
                opened.tier.start()

    async def _open_new(self, opening: Opening) -> Opened:
        world, limits = self._world, self._limits
        manifests = ManifestStore(
            self._store,
            opening.topic_id,
            opening.partition,
            world.rng,
            world.clock,
            workers=world.workers,
            page_cache=self._pages,
            deadline_s=limits.store_timeout_s,
        )
        bootstrap = Bootstrap(
            opening,
            manifests,
            self._store,
            world,
            self._data_dir,
            self._sync_rounds,
            limits,
            self._report,
            self._checkpoint,
        )
        opened = await bootstrap.open()
        local, flusher = opened.log, opened.flusher
        partition = TieredPartition(
            opening.topic_id,
            opening.partition,
            opening.leader_epoch,
            log=local,
            flusher=flusher,
            manifests=manifests,
            store=self._store,
            world=world,
            config=opening.tier,
            limits=limits,
            on_fenced=self._on_fenced,
        )
        if local.reserved_end <= local.log_end_offset:
            async with given_up_on_failure(opened, world.workers):
                await self._reserve_first(partition)
        tier = PartitionTier(
            partition,
            self._cold,
            self._queues,
            self._collector,
            self.copy_counters,
            self.expire_counters,
            self._checkpoint,
            self._backlog,
        )
        return Opened(local, flusher, tier, opened.lost)

    async def _reserve_first(self, partition: TieredPartition) -> None:
        """A log without headroom (a clean stop gave it back) serves reads at once; appends after this."""
        try:
            await partition.reserve()
        except Retryable as unanswered:
            log.warning("%s takes no appends until the bucket answers: %s", partition.name, unanswered)
        except OSError as error:
            if not is_full(error):
                raise
            log.warning("%s takes no appends until its disk has space: %s", partition.name, error)

    async def close_partition(self, tier: PartitionTier, *, give_back: bool) -> None:
        """Stop tiering a partition; with `give_back` (a clean stop, nothing appends any more) also its reservation."""
        await tier.close()
        partition = tier.partition_state
        self._open.pop((partition.topic_id, partition.partition), None)
        self._opening.pop((partition.topic_id, partition.partition), None)
        if give_back and not partition.fenced and not self._store_away:
            try:
                async with asyncio.timeout(GIVE_BACK_S):
                    await partition.give_back()
            except (ThermoclineError, OSError) as kept:  # damaged roots and full disks, too; TimeoutError is an OSError
                # Nothing is lost: the next start goes on below the reserved end, or declares the rest a gap.
                log.warning("%s keeps its reservation: %s", partition.name, kept)
                # Thousands of partitions must not wait in turn for a bucket that does not answer.
                self._store_away |= isinstance(kept, Retryable | AccessRefused | TimeoutError)

    async def seal_all(self, topics: Collection[str] | None) -> None:
        """`tier seal`: return when all that was appended before is in the bucket. None: every topic."""
        slots = asyncio.Semaphore(SEALS_MAX)

        async def seal(tier: PartitionTier) -> None:
            async with slots:
                await tier.seal_and_copy()
                await tier.park()

        wanted = [opened.tier for opened in self._open.values() if topics is None or opened.log.topic in topics]
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
            await self._purge_partition(topic_id, partition)

    async def _purge_partition(self, topic_id: UUID, partition: int) -> None:
        prefix = partition_prefix(topic_id, partition)
        # Twice: what a late upload or a store that lies about deletes left is seen by the second listing.
        for _ in range(2):
            found = [info.key async for info in self._store.list(prefix)]
            ours = [(key, parse_key(key)) for key in found]
            for kind in (SegmentKey, PageKey, SnapshotKey, RootKey):
                keys = [key for key, parsed in ours if isinstance(parsed, kind)]
                for at in range(0, len(keys), DELETE_KEYS):
                    await self._store.delete(keys[at : at + DELETE_KEYS])
            await self._cold.forget([parsed for _, parsed in ours if isinstance(parsed, SegmentKey)])
            if not any(parsed is not None for _, parsed in ours):
                return
        left = [info.key async for info in self._store.list(prefix) if parse_key(info.key) is not None]
        if left:
            raise Retryable(f"{prefix}: {len(left)} objects are still listed after their deletion, e.g. {left[0]}")

    # ── watching ─────────────────────────────────────────────────────────────────────────────────────────────────
    async def _watch_disk(self) -> None:
        """Until cancelled. Looks at no partition while the disk is below its limit and has room."""
        while True:
            await self._relieve_disk()
            has_no_room = self.local_excess_ratio > 0 or self._data_dir.ballast.is_short
            await asyncio.sleep(WATCH_FULL_DISK_S if has_no_room else WATCH_DISK_S)

    async def _watch_backlog(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TELL_LAG_S)
            if (line := sentence(self._backlog.look())) is not None:
                log.info("%s", line)

    async def _relieve_disk(self) -> None:
        """Over the local limit: first the chunk cache gives bytes back, then the logs, oldest copied segments first.
        The same where the file system has no room, whoever filled it."""
        limits, ballast = self._limits, self._data_dir.ballast
        space = await self._look_at_room()
        space = await self._fit_cache(space)
        excess = excess_bytes(self._local_bytes, space, limits.local_bytes_max, limits.local_space_ratio_max)
        room = room_bytes(self._local_bytes, space, 2 * ROOM * ballast.size_bytes)
        wanted = max(excess, room)
        shares = share_pressure(self._copied_segments() if wanted > 0 else (), wanted)
        limit = limits.local_bytes_max
        stuck = max(excess - shares.sure_bytes, 0)
        if limit is None:
            limit = int(space.total * limits.local_space_ratio_max)
            if ballast.is_short:
                stuck = 0  # somebody else's files, perhaps: the disk is full, and that is said
        before, self.local_excess_ratio = self.local_excess_ratio, stuck / max(limit, 1)
        free = space.free - ballast.size_bytes if ballast.is_short else space.free
        self.disk = DiskView(space.total, max(free, 0), limit, limits.local_bytes_max is None)
        if (before > EXCESS_TOLD_RATIO) != (self.local_excess_ratio > EXCESS_TOLD_RATIO):
            self._log_pressure(stuck)
        for tier, asked in shares.wanted.items():
            tier.expire_soon(asked)

    async def _look_at_room(self) -> Space:
        """Give the ballast up, or make it; told when either happens. The space afterwards."""
        ballast, path = self._data_dir.ballast, self._data_dir.path
        was_short = ballast.is_short
        space = await self._world.workers.run(ballast.look)
        if ballast.is_short and not was_short:
            log.warning(
                "no space left below %s: appends are refused, reads and copies go on, and what the bucket holds leaves "
                "the disk; free space, appends go on by themselves",
                path,
            )
        elif was_short and not ballast.is_short:
            log.info("there is space again below %s (%d MB): appends go on", path, space.free >> 20)
        return space

    def _local_bytes(self) -> int:
        return sum(opened.log.local_bytes for opened in self._open.values())

    def _copied_segments(self) -> list[LocalBytes[PartitionTier]]:
        """Local segments that the bucket holds too."""
        return [
            LocalBytes(segment.first_append_ms, segment.bytes, opened.tier, segment.end_offset <= sure_end)
            for opened in self._open.values()
            if opened.tier.enabled
            for sure_end in (opened.tier.sure_end_offset,)
            for segment in opened.log.sealed_segments()
            if segment.end_offset <= opened.tier.remote_end_offset
        ]

    async def _fit_cache(self, space: Space) -> Space:
        """The chunk cache yields disk before any log does, and takes it again when there is some; the space after."""
        held, configured = self._cold.cached_bytes, self._limits.cache_bytes_max
        room = cache_room(held, space, configured, self._limits.local_space_ratio_max)
        try:
            await self._cold.resize_cache(room)
        except OSError as refused:
            log.warning("the chunk cache gives nothing back: %s", refused)
        given_back = held - self._cold.cached_bytes
        if given_back > 0 and not self._cache_yields:
            self._cache_yields = True
            log.warning(
                "the chunk cache gives disk back: %d of its %d MB are left, the file system is %d %% full; cold reads "
                "go to the bucket more often; free disk space below %s",
                room >> 20,
                configured >> 20,
                100 * (space.total - space.free) // max(space.total, 1),
                self._data_dir.path,
            )
        elif room == configured and self._cache_yields:
            self._cache_yields = False
            log.info("the chunk cache may use its %d MB again", configured >> 20)
        return Space(space.total, space.free + max(given_back, 0))

    def _log_pressure(self, stuck: int) -> None:
        """Once when it begins and once when it ends: produces slow down, and then are refused, because of it."""
        disk = self.disk
        if self.local_excess_ratio <= EXCESS_TOLD_RATIO:
            log.info("local logs are within their limit of %d MB again", disk.log_limit >> 20)
        elif disk.is_share:
            log.warning(
                "the file system of %s is %d %% full, and %d MB of local logs are not in the bucket yet, so they "
                "cannot go: produces slow down, and are refused when it gets worse; see blocked_by in tier status, "
                "free disk space, or set thermocline.local.bytes.max",
                self._data_dir.path,
                100 * (disk.total - disk.free) // max(disk.total, 1),
                stuck >> 20,
            )
        else:
            log.warning(
                "local logs are %d MB over their limit of %d MB and the bucket does not hold them yet: produces slow "
                "down at 2 %% over and are refused at 10 %%; see blocked_by in tier status, free disk space, or set "
                "thermocline.local.bytes.max",
                stuck >> 20,
                disk.log_limit >> 20,
            )

    async def _checkpoint(self, local: PartitionLog) -> None:
        """Make a log's start durable on disk; many at once are one write."""
        job = self._data_dir.checkpoint_start(local)
        async with self.checkpoints:
            await self._world.workers.run(job.run)

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
    def sync_times(self) -> SyncTimes:
        """How long syncs of the local logs took."""
        return self._sync_rounds.times

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
