"""One partition's tier as the broker holds it: the façade over its claim, copies, expiry and cold reads.

Owns the jobs of a partition and when they look again. Always true: nothing here blocks, and nothing the broker does
for produce or hot fetch waits for the bucket; a cold read is the reader's, this only hands it the manifest;
`delete_records` has committed the log start to the root before it returns (C26). Must not know Kafka's requests or
error codes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Final, Protocol

from crc32c import crc32c

from coldstore.keys import SegmentKey
from coldstore.manifest import SnapshotPointer
from coldstore.manifest_store import ManifestStore
from coldstore.object_store import AccessRefused, ObjectMissing, StoreUnavailable, Upload
from hotstore.errors import LogFull
from logformat.errors import Corrupt, Fenced, Retryable, ThermoclineError
from logformat.record_batch import INT64_MAX
from seams.crash_points import reach
from seams.disk import is_full
from seams.workers import Lane
from tiering.backlog import Backlog
from tiering.cold_expirer import ExpireCounters
from tiering.collector import Collector
from tiering.copier import Copier, CopyCounters
from tiering.copy_plan import CopyRange, NoCopy, copy_lag, next_copy, seal_in_ms
from tiering.expirer import Checkpoint, Expirer
from tiering.local_gaps import all_gaps, local_gaps
from tiering.partition_state import Block, TieredPartition
from tiering.tier_config import TierConfig, TierLimits, TierStatus
from tiering.work_queue import Job, WorkQueue

if TYPE_CHECKING:
    from tiering.reading.cut import ColdSlice

log = logging.getLogger(__name__)

UNSTABLE_RETRY_S: Final = 0.1
PROGRESS_WAIT_S: Final = 1.0
FULL_RETRY_S: Final = 1.0
SLEPT_LOOK_S: Final = 600.0


class ColdReader(Protocol):
    """The read side: cold bytes of any partition, through its manifest."""

    def read(
        self, manifests: ManifestStore, offset: int, bytes_max: int, *, min_one: bool
    ) -> ColdSlice | asyncio.Future[None]: ...
    async def offset_for_timestamp(
        self, manifests: ManifestStore, timestamp_ms: int, before_offset: int
    ) -> tuple[int, int] | None: ...
    async def forget(self, keys: Collection[SegmentKey]) -> None: ...


class Queues:
    """The broker's kinds of background work, each with its own places: reservations never wait for uploads."""

    def __init__(self, commits: WorkQueue, copies: WorkQueue, expiry: WorkQueue, gc: WorkQueue) -> None:
        self.commits = commits
        self.copies = copies
        self.expiry = expiry
        self.gc = gc

    @property
    def all(self) -> tuple[WorkQueue, ...]:
        return (self.commits, self.copies, self.expiry, self.gc)


class PartitionTier:
    """See the module. Made by `TierService.attach`. `lost`: what attaching declared a gap, [first, end)."""

    def __init__(
        self,
        partition: TieredPartition,
        cold: ColdReader,
        queues: Queues,
        collector: Collector,
        copy_counters: CopyCounters,
        expire_counters: ExpireCounters,
        checkpoint: Checkpoint,
        backlog: Backlog,
    ) -> None:
        self._partition = partition
        self.lost: tuple[int, int] | None = None
        self._backlog = backlog
        self._cold = cold
        self._queues = queues
        self._collector = collector
        self._copier = Copier(partition, copy_counters)
        self.expirer = Expirer(partition, self._copier, expire_counters, checkpoint, cold.forget)
        self._short_of_room: set[str] = set()
        self._upkeep: Job = queues.commits.add(f"upkeep {partition.name}", self._with_room("upkeep", self._keep_up))
        self._copying: Job = queues.copies.add(f"copy {partition.name}", self._with_room("copy", self._copy_next))
        self._expiring: Job = queues.expiry.add(f"expire {partition.name}", self._with_room("expire", self.expirer.run))
        self._collecting: Job = queues.gc.add(f"gc {partition.name}", self._collect)
        self._progress = asyncio.Event()
        self._broken: Exception | None = None
        partition.on_claimed = self._claimed

    def start(self) -> None:
        """Begin to claim, copy and expire."""
        self._backlog.note(self)
        self._queues.commits.wake(self._upkeep)
        if self._partition.claimed:
            self._claimed()
        self._queues.expiry.wake_in(self._expiring, self._spread(self._limits.retention_check_interval_ms))

    # ── what the request path asks ───────────────────────────────────────────────────────────────────────────────
    @property
    def enabled(self) -> bool:
        """remote.storage.enable of the topic; internal topics are never tiered."""
        return self._partition.config.enabled and not self._partition.config.internal

    @property
    def name(self) -> str:
        return self._partition.name

    @property
    def remote_end_offset(self) -> int:
        """Exclusive end of what the committed manifest holds; 0 when nothing, or while it is not known yet."""
        return self._partition.remote_end_offset

    @property
    def sure_end_offset(self) -> int:
        """Local segments that end at or below it may go at once; those up to the remote end, once they are verified."""
        return self._partition.sure_end_offset

    @property
    def log_start_offset(self) -> int:
        """The root's log start; 0 while it is not known."""
        manifest = self._partition.manifest
        return 0 if manifest is None else manifest.log_start_offset

    @property
    def visible_end(self) -> Callable[[], int]:
        return self._partition.visible_end

    @visible_end.setter
    def visible_end(self, visible_end: Callable[[], int]) -> None:
        self._partition.visible_end = visible_end

    @property
    def partition_state(self) -> TieredPartition:
        return self._partition

    def read(self, offset: int, bytes_max: int, *, min_one: bool) -> ColdSlice | asyncio.Future[None]:
        """Cold bytes from the batch that holds `offset`, or a future that is done when asking again may give them."""
        return self._cold.read(self._partition.manifests, offset, bytes_max, min_one=min_one)

    @property
    def max_timestamp_ms(self) -> int:
        """Greatest timestamp in the bucket; −1 when there is none, or while it is not known."""
        manifest = self._partition.manifest
        return -1 if manifest is None else manifest.max_timestamp_ms

    async def offset_for_timestamp(self, timestamp_ms: int, before_offset: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first cold record at or after a time, below `before_offset`."""
        return await self._cold.offset_for_timestamp(self._partition.manifests, timestamp_ms, before_offset)

    @property
    def reserve_at(self) -> int:
        """When the log's end reaches it, call `reserve_soon`; look again after that, it moves."""
        return self._partition.reserve_at

    def reserve_soon(self, end_offset: int = 0) -> None:
        """Half of the reservation is used, or an append up to `end_offset` found none: raise it in the background."""
        self._partition.need(end_offset)
        self._queues.commits.wake(self._upkeep)

    def written_to(self) -> None:
        """Call about once a second while the log is appended to: its reservation and its retention follow."""
        if self._partition.reservation_wanted() is not None:
            self.reserve_soon()
        self._queues.expiry.wake_in(self._expiring, self._limits.retention_check_interval_ms / 1000)

    def rolled(self) -> None:
        """A batch began a new segment: there may be something to copy now, and from now on something to seal."""
        self._backlog.note(self)
        self._queues.copies.wake(self._copying)

    async def delete_records(self, offset: int) -> None:
        """Nothing below `offset` is readable any more; durable when this returns. Raises Retryable, Fenced."""
        partition = self._partition
        if self.enabled or partition.remote_end_offset:
            await partition.claim()
            await self.expirer.move_start(offset)
        if partition.closed:  # another log may have the name by now: its checkpoint lines are not ours to write
            raise Fenced(f"{partition.name} was closed meanwhile")
        partition.log.advance_log_start(offset)
        await self.expirer.checkpoint()
        self._queues.expiry.wake(self._expiring)

    # ── snapshots of internal topics ─────────────────────────────────────────────────────────────────────────────
    async def commit_snapshot(self, end_offset: int, data: bytes) -> None:
        """Name `data` as the live state after every offset below `end_offset`. Raises Retryable, Fenced."""
        partition = self._partition
        await partition.claim()
        pointer = SnapshotPointer(
            uuid=partition.world.rng.uuid(),
            epoch=partition.epoch,
            end_offset=end_offset,
            length=len(data),
            crc32c=crc32c(data),
        )
        key = str(pointer.key(partition.topic_id, partition.partition))
        try:
            async with asyncio.timeout(partition.limits.upload_timeout_s):
                await partition.store.put_segment(key, Upload(len(data), pointer.crc32c, lambda: iter((data,))))
        except TimeoutError as late:
            raise StoreUnavailable(f"PUT {key}: no answer in {partition.limits.upload_timeout_s} s") from late
        reach("offsets.snapshot")
        await partition.commit(lambda m: m.set_snapshot(pointer))
        self._queues.expiry.wake_in(self._expiring, self._limits.gc_grace_ms / 1000)

    async def read_snapshot(self) -> tuple[int, bytes] | None:
        """(end offset, state) of the newest committed snapshot; None without one. Raises Retryable, Corrupt,
        ObjectMissing."""
        partition = self._partition
        manifest = await partition.claim()
        pointer = manifest.snapshot
        if pointer is None:
            return None
        key = str(pointer.key(partition.topic_id, partition.partition))
        try:
            async with asyncio.timeout(partition.limits.store_timeout_s):
                got = await partition.store.get(key)
        except TimeoutError as late:
            raise StoreUnavailable(f"GET {key}: no answer in {partition.limits.store_timeout_s} s") from late
        if len(got.data) != pointer.length or crc32c(got.data) != pointer.crc32c:
            raise Corrupt(f"snapshot {key} is not what was written: {len(got.data)} bytes of {pointer.length}")
        return pointer.end_offset, got.data

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def _limits(self) -> TierLimits:
        return self._partition.limits

    def _spread(self, interval_ms: int) -> float:
        """Seconds within the interval, so that thousands of partitions do not look all at once."""
        return self._partition.world.rng.uniform(0.0, interval_ms / 1000)

    def _claimed(self) -> None:
        self._queues.copies.wake(self._copying)
        self._queues.expiry.wake_in(self._expiring, min(1.0, self._limits.retention_check_interval_ms / 1000))
        # What an earlier life left; not all partitions at once, and not before readers of older roots let go.
        grace_ms = self._limits.gc_grace_ms
        self._queues.gc.wake_in(self._collecting, grace_ms / 1000 + self._spread(grace_ms))

    def _with_room(
        self, name: str, work: Callable[[], Awaitable[float | None]]
    ) -> Callable[[], Awaitable[float | None]]:
        """`work`, tried again soon where the disk is full: a state that status and the service tell, not a failure."""

        async def run() -> float | None:
            partition = self._partition
            try:
                again_s = await work()
            except (OSError, LogFull) as failure:
                if isinstance(failure, OSError) and not is_full(failure):
                    raise
                self._short_of_room.add(name)
                partition.log.ballast.met_full = True
                partition.blocks[Block.DISK] = str(failure)
                self._backlog.note(self)
                return FULL_RETRY_S
            self._short_of_room.discard(name)
            if not self._short_of_room:
                partition.blocks.pop(Block.DISK, None)
            return again_s

        return run

    async def _collect(self) -> float | None:
        try:
            await self._collector.collect(self._partition.topic_id, self._partition.partition)
        except (Corrupt, ObjectMissing) as unreadable:
            log.error("gc of %s deleted nothing: %s", self._partition.name, unreadable)
        return None

    async def _keep_up(self) -> float | None:
        """Claim, keep the reservation ahead of the appends, keep the root's copy of the configs."""
        partition = self._partition
        if partition.local_gaps is None:
            partition.local_gaps = await partition.world.workers.run(local_gaps, partition.log, lane=Lane.HOT_READ)
        if partition.fenced:
            return None
        try:
            await partition.reserve()
            manifest = await partition.claim()
            partition.blocks.pop(Block.CLAIM, None)
            config = partition.config
            if (manifest.topic, manifest.configs) != (config.topic, dict(config.configs)):
                await partition.commit(lambda m: m.set_topic(config.topic, dict(config.configs)))
        except Fenced:
            return None  # noted, and the broker was told
        except (Retryable, AccessRefused) as unanswered:
            self._backlog.note(self)
            if not partition.claimed:
                partition.blocks[Block.CLAIM] = str(unanswered)
            if partition.log.log_end_offset >= partition.log.reserved_end < INT64_MAX:
                partition.blocks[Block.RESERVATION] = str(unanswered)
            raise
        return None  # woken by appends that use the reservation up, and by other configs

    async def _copy_next(self) -> float | None:
        """Seal what waited long enough, copy one range. The next look is at once while there is more."""
        partition = self._partition
        if not partition.config.copies or not partition.claimed or Block.BEHIND in partition.blocks:
            return None  # woken by the claim, by a roll, by another config
        if self._copier.has_garbage:
            await self._collect_garbage()
        self._seal_when_due()
        local = partition.log
        match self._plan():
            case CopyRange() as wanted:
                try:
                    await self._copier.copy(wanted)
                except Fenced:
                    return None
                except (Retryable, AccessRefused) as unanswered:
                    partition.blocks[Block.STORE] = str(unanswered)
                    raise
                except Corrupt as damaged:
                    partition.blocks[Block.DAMAGED] = str(damaged)
                    self._broken = damaged
                    self._report_progress()
                    raise
                self._broken = None
                for over in (Block.STORE, Block.HOLE, Block.DAMAGED):
                    partition.blocks.pop(over, None)
                self._report_progress()
                self._queues.expiry.wake_in(self._expiring, 0.0)
                return 0.0
            case NoCopy.UNSTABLE:
                if local.flushed_end_offset < local.active_info().base_offset:
                    await self._flush()
                return UNSTABLE_RETRY_S
            case NoCopy.HOLE:
                start = local.local_log_start_offset
                partition.blocks[Block.HOLE] = (
                    f"bucket ends at {partition.remote_end_offset}, local log begins at {start}"
                )
            case NoCopy.DONE:
                pass
        return self._next_look_s()

    async def _collect_garbage(self) -> None:
        """Copies do not wait for it: a store that takes objects may refuse to delete any (a policy, a lock)."""
        try:
            async with asyncio.timeout(self._limits.store_timeout_s):
                await self._copier.collect_garbage()
        except (Retryable, TimeoutError) as away:  # the outage is told elsewhere, and once
            log.debug("%s: objects of failed copies stay for now: %s", self._partition.name, away)
        except AccessRefused as refused:
            log.warning("%s: objects of failed copies stay for now: %s", self._partition.name, refused)

    async def _flush(self) -> None:
        partition = self._partition
        try:
            async with asyncio.timeout(self._limits.store_timeout_s):
                await partition.flusher.flush()
        except TimeoutError as late:
            raise Retryable(f"{partition.name}: its flush is not done in {self._limits.store_timeout_s} s") from late

    def _plan(self) -> CopyRange | NoCopy:
        partition = self._partition
        return next_copy(
            partition.log.sealed_segments(),
            remote_end_offset=partition.remote_end_offset,
            log_start_offset=partition.log_start_offset,
            stable_end_offset=partition.copy_end_offset,
        )

    def _seal_due_ms(self) -> int | None:
        partition = self._partition
        return seal_in_ms(
            partition.log.oldest_unsealed_append_ms,
            partition.world.clock.wall_ms(),
            seal_ms=partition.config.seal_ms,
            segment_ms=partition.log.config.segment_ms,
        )

    def _seal_when_due(self) -> None:
        if self._seal_due_ms() != 0:
            return
        try:
            self._partition.log.roll()
        except LogFull as full:  # what is sealed already goes to the bucket all the same, and gives room
            log.debug("%s cannot be sealed now: %s", self._partition.name, full)
            return
        self._partition.flusher.request()

    def _next_look_s(self) -> float | None:
        """Until the seal is due. An empty segment has nothing to seal: its first batch wakes us (`rolled`)."""
        if self._copier.has_garbage or Block.HOLE in self._partition.blocks:
            return self._limits.interval_ms_max / 1000
        due_ms = self._seal_due_ms()
        if due_ms == 0:
            return FULL_RETRY_S  # it found no space
        # While a machine sleeps, timers stand still and the clock does not.
        return None if due_ms is None else min(due_ms / 1000, SLEPT_LOOK_S)

    def _report_progress(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    # ── for operators ────────────────────────────────────────────────────────────────────────────────────────────
    async def seal_and_copy(self) -> None:
        """Seal the active segment and return when everything appended before the call is in the bucket, verified.

        Raises Fenced, Corrupt; waits as long as the store is away (the caller sets the deadline).
        """
        partition = self._partition
        target = partition.log.log_end_offset
        self._broken = None
        partition.log.roll()
        await partition.flusher.flush()
        if not partition.config.copies:
            return
        while partition.remote_end_offset < target and partition.log_start_offset < target:
            partition.check_not_fenced()
            if self._broken is not None:
                raise self._broken
            self._queues.commits.wake(self._upkeep)
            self._queues.copies.wake(self._copying)
            progress = self._progress
            try:
                async with asyncio.timeout(PROGRESS_WAIT_S):
                    await progress.wait()
            except TimeoutError:
                continue
        async for segment in partition.manifests.segments(partition.log.local_log_start_offset):
            if not partition.is_verified(segment):
                await self._copier.verify(segment)

    async def park(self) -> None:
        """After a seal: give a log's reservation back, if the bucket holds all of it (of an internal topic: by its
        snapshot), until the next append. If its disk is lost before that, nothing is missing, and no gap says so (ADR
        13)."""
        if not self._partition.config.copies and not self._partition.config.internal:
            return
        try:
            await self._partition.give_back()
        except (ThermoclineError, OSError) as kept:
            # Safe all the same: what is appended next raises it again; a disk lost before costs a declared gap.
            log.warning("%s may keep its reservation: %s", self.name, kept)

    async def give_back(self) -> bool:
        """After the last append: lower the reservation where the bucket holds the whole log."""
        return await self._partition.give_back()

    def expire_soon(self, pressure_bytes: int = 0) -> None:
        """Look at retention now; `pressure_bytes`: what the disk wants back."""
        self.expirer.pressure_bytes = max(self.expirer.pressure_bytes, pressure_bytes)
        self._queues.expiry.wake(self._expiring)

    def reconfigure(self, config: TierConfig) -> None:
        """Obey another topic configuration from now on."""
        self._partition.config = config
        self._queues.commits.wake(self._upkeep)
        self._queues.copies.wake(self._copying)
        self._queues.expiry.wake(self._expiring)

    async def close(self) -> None:
        """Stop every job of this partition; what is being copied is left to gc."""
        self._partition.closed = True
        self._backlog.forget(self)
        await self._queues.copies.remove(self._copying)
        await self._queues.expiry.remove(self._expiring)
        await self._queues.gc.remove(self._collecting)
        await self._queues.commits.remove(self._upkeep)

    def status(self) -> TierStatus:
        partition = self._partition
        local = partition.log
        manifest = partition.manifest
        now_ms = partition.world.clock.wall_ms()
        lag = copy_lag(local.sealed_segments(), partition.remote_end_offset, partition.log_start_offset, now_ms)
        oldest = local.oldest_unsealed_append_ms
        copies = partition.config.copies
        return TierStatus(
            enabled=self.enabled,
            copy_lag_bytes=lag.bytes if copies else 0,
            copy_lag_segments=lag.segments if copies else 0,
            copy_lag_ms=lag.age_ms if copies else 0,
            seal_age_ms=0 if oldest is None else max(0, now_ms - oldest),
            gaps=all_gaps(
                () if manifest is None else manifest.gaps, partition.local_gaps or (), partition.log_start_offset
            ),
            blocked_by=partition.blocked_by,
            blocked_why=partition.blocked_why,
            cold_bytes=0 if manifest is None else manifest.live.log_bytes,
            cold_segments=0 if manifest is None else manifest.live.segments,
            log_start_offset=partition.log_start_offset,
            local_log_start_offset=local.local_log_start_offset,
            remote_end_offset=partition.remote_end_offset,
            log_end_offset=local.log_end_offset,
            reserved_end_offset=local.reserved_end,
        )
