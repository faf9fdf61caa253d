"""The broker's interface to one partition's tier: claim, copies, expiry and cold reads.

No call blocks. A hot fetch never waits for the bucket. A produce waits for it only if no reserved offsets are left.
`delete_records` returns after the log start was committed to the root (C26).
"""

from __future__ import annotations

import asyncio
import logging

from logformat.errors import Fenced, ThermoclineError
from tiering.cleaning.cold_cleaner import ColdCleaner
from tiering.cleaning.scratch import ColdCleaning
from tiering.copying.backlog import Backlog
from tiering.copying.copier import Copier, CopyCounters
from tiering.copying.copy_plan import copy_lag
from tiering.expiry.cold_expirer import ExpireCounters
from tiering.expiry.collector import Collector
from tiering.expiry.expirer import Expirer
from tiering.expiry.local_gaps import all_gaps
from tiering.opening.snapshots import commit_snapshot, read_snapshot
from tiering.partition_jobs import PartitionJobs
from tiering.partition_state import TieredPartition
from tiering.reading.batch_slices import ColdSlice
from tiering.reading.cold_reader import ColdReader
from tiering.tier_config import TierConfig, TierStatus
from tiering.work_queue import Queues

log = logging.getLogger(__name__)


class PartitionTier:
    """Created by `TierService.attach`. `lost`: the gap [first, end) that attaching declared. `is_gap_unanswered`: see
    `unanswered_gap`."""

    def __init__(
        self,
        partition: TieredPartition,
        cold: ColdReader,
        queues: Queues,
        collector: Collector,
        copy_counters: CopyCounters,
        expire_counters: ExpireCounters,
        backlog: Backlog,
        cleaning: ColdCleaning | None,
    ) -> None:
        self.partition_state = partition
        self.lost: tuple[int, int] | None = None
        self.is_gap_unanswered = False
        self._sealing: dict[asyncio.Task[object], None] = {}
        self._backlog = backlog
        self._cold = cold
        copier = Copier(partition, copy_counters)
        self.expirer = Expirer(partition, copier, expire_counters, cold.forget)
        self.cleaner = ColdCleaner(partition, copier, cleaning)
        self._jobs = PartitionJobs(
            partition, queues, collector, copier, self.expirer, self.cleaner, note=lambda: self._backlog.note(self)
        )

    def start(self) -> None:
        """Begin to claim, copy and expire, unless it is closed."""
        if not self.partition_state.closed:
            self._backlog.note(self)
            self._jobs.start()

    # ── for the request path ─────────────────────────────────────────────────────────────────────────────────────
    @property
    def enabled(self) -> bool:
        """remote.storage.enable of the topic; internal topics are never tiered."""
        return self.partition_state.config.enabled and not self.partition_state.config.internal

    @property
    def name(self) -> str:
        return self.partition_state.name

    @property
    def remote_end_offset(self) -> int:
        """Exclusive end of the committed manifest; 0 if it is empty or not known yet."""
        return self.partition_state.remote_end_offset

    def is_verifying(self) -> bool:
        """Whether objects that a replica may copy from the bucket are still being verified. It starts the verification
        if needed; ask again soon."""
        is_verifying = self.expirer.verify_for_replica()
        if is_verifying and self.partition_state.claimed:
            self._jobs.expire()
        return is_verifying

    @property
    def log_start_offset(self) -> int:
        """The root's log start; 0 while it is not known."""
        manifest = self.partition_state.manifest
        return 0 if manifest is None else manifest.log_start_offset

    def read(self, offset: int, bytes_max: int, *, min_one: bool) -> ColdSlice | asyncio.Future[None]:
        """Cold bytes from the batch that holds `offset`, or a future; ask again when the future is done."""
        return self._cold.read(self.partition_state.manifests, offset, bytes_max, min_one=min_one)

    @property
    def max_timestamp_ms(self) -> int:
        """Greatest timestamp in the bucket; −1 if there is none, or while it is not known."""
        manifest = self.partition_state.manifest
        return -1 if manifest is None else manifest.max_timestamp_ms

    async def offset_for_timestamp(self, timestamp_ms: int, before_offset: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first cold record at or after a time, below `before_offset`."""
        return await self._cold.offset_for_timestamp(self.partition_state.manifests, timestamp_ms, before_offset)

    @property
    def reserve_at(self) -> int:
        """Call `reserve_soon` when the log's end reaches this offset. The offset then moves up."""
        return self.partition_state.reserve_at

    def reserve_soon(self, end_offset: int = 0) -> None:
        """Half of the reservation is used, or an append up to `end_offset` exceeds it: raise it in the background."""
        self.partition_state.request_end(end_offset)
        self._jobs.keep_up()

    def written_to(self) -> None:
        """Call about once a second while the log is appended to: checks reservation and retention."""
        if self.partition_state.reservation_wanted() is not None:
            self.reserve_soon()
        self._jobs.expire(self.partition_state.limits.retention_check_interval_ms)

    def rolled(self) -> None:
        """A new segment began: the sealed one may be copied."""
        self._backlog.note(self)
        self._jobs.copy()

    async def delete_records(self, offset: int) -> None:
        """Make offsets below `offset` unreadable; durable when this returns. Raises Retryable, Fenced, OSError;
        EditRefused for an internal topic with replicas whose snapshot does not reach `offset`."""
        partition = self.partition_state
        in_root = partition.moves_start_in_root
        # A start that the root has already may be missing in the local checkpoint: an earlier call failed in between.
        if in_root and offset > partition.log_start_offset:
            await partition.claim()
            await self.expirer.cold.move_start(offset)
        partition.lease.check()
        await partition.lease.raise_log_start(offset, (lambda: None) if in_root else partition.check_start_on_disk)
        self._jobs.expire()

    # ── snapshots of internal topics ─────────────────────────────────────────────────────────────────────────────
    async def commit_snapshot(self, end_offset: int, data: bytes) -> None:
        """See `snapshots.commit_snapshot`; the replaced snapshot is deleted after the grace."""
        await commit_snapshot(self.partition_state, end_offset, data)
        self._jobs.expire(self.partition_state.limits.gc_grace_ms)

    async def snapshot_end(self) -> int:
        """End of the newest committed snapshot; 0 if there is none. Raises Retryable, Fenced."""
        pointer = (await self.partition_state.claim()).snapshot
        return 0 if pointer is None else pointer.end_offset

    async def read_snapshot(self) -> tuple[int, bytes] | None:
        """See `snapshots.read_snapshot`."""
        return await read_snapshot(self.partition_state)

    # ── for operators ────────────────────────────────────────────────────────────────────────────────────────────
    async def seal_and_copy(self) -> None:
        """See `PartitionJobs.seal_and_copy`."""
        await self._jobs.seal_and_copy()

    async def seal(self) -> None:
        """`seal_and_copy`, then `park`. Raises Fenced if the partition is no longer led; `close` waits for this."""
        if self.partition_state.closed:
            raise Fenced(f"{self.name} is no longer led, or was deleted")
        task = asyncio.current_task()
        assert task is not None
        self._sealing[task] = None
        try:
            await self.seal_and_copy()
            await self.park()
        except asyncio.CancelledError:
            if self.partition_state.closed:
                raise Fenced(f"{self.name} is no longer led, or was deleted, before all of it was copied") from None
            raise
        finally:
            del self._sealing[task]

    async def park(self) -> None:
        """After a seal: release the reservation until the next append, if the bucket holds the complete log (of an
        internal topic: its snapshot). If the disk is lost before that append, no record is missing and no gap is
        declared (ADR 13)."""
        if not self.partition_state.config.copies and not self.partition_state.config.internal:
            return
        if self.partition_state.closed:  # the reservation belongs to another tier
            return
        try:
            await self.partition_state.give_back()
        except (ThermoclineError, OSError) as kept:
            # This is still safe: the next append raises the reservation again, and a loss of the disk before that
            # append costs a declared gap.
            log.warning("%s: its reserved offsets are perhaps not given back: %s", self.name, kept)

    def expire_soon(self, pressure_bytes: int = 0) -> None:
        """Check retention now; `pressure_bytes`: bytes that the disk needs back."""
        self.expirer.pressure_bytes = max(self.expirer.pressure_bytes, pressure_bytes)
        self._jobs.expire()

    def reconfigure(self, config: TierConfig) -> None:
        """Apply another topic configuration."""
        self.partition_state.reconfigure(config)
        self._jobs.reconfigured()

    async def close(self) -> None:
        """Stop every job of this partition; gc deletes objects of interrupted uploads."""
        self.partition_state.closed = True
        if sealing := tuple(self._sealing):
            for task in sealing:
                task.cancel()
            await asyncio.wait(sealing)
        await self._jobs.close()
        self._backlog.forget(self)  # a job may have noted it until now

    def status(self) -> TierStatus:
        partition = self.partition_state
        local = partition.log
        manifest = partition.manifest
        now_ms = partition.world.clock.wall_ms()
        lag = copy_lag(local.sealed_segments(), partition.remote_end_offset, partition.log_start_offset, now_ms)
        oldest = local.oldest_unsealed_append_ms
        copies = partition.config.copies
        return TierStatus(
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
            remote_end_offset=partition.remote_end_offset,
            compaction=self.cleaner.forecast(),
            replaced_bytes=0 if manifest is None else sum(each.object_bytes for each in manifest.replaced),
            uncompacted_why=self.cleaner.stands_still or "",
        )
