"""Schedules the jobs of one partition: claim and reservation, copy, expiry, gc, compaction of the bucket.

No job blocks the loop. A hot fetch never waits for a job. A produce waits only for a reservation, if no reserved
offsets are left. A full disk is reported and retried here; the queue retries other failures.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from coldstore.object_store import AccessRefused, ObjectMissing
from hotstore.errors import LogFull
from hotstore.host.lease import LeaseOver
from logformat.errors import Corrupt, Fenced, Retryable
from logformat.record_batch import INT64_MAX
from seams.files.disk import is_full
from seams.loop.workers import Lane
from tiering.cleaning.cold_cleaner import ColdCleaner
from tiering.copying.copier import Copier, NoLongerLive
from tiering.copying.copy_plan import CopyRange, NoCopy, next_copy, seal_in_ms
from tiering.copying.segment_body import RangeChanged
from tiering.expiry.collector import AGAIN_S, Collector
from tiering.expiry.expirer import Expirer
from tiering.expiry.local_gaps import local_gaps
from tiering.partition_state import Block, TieredPartition
from tiering.tier_config import TierLimits
from tiering.work_queue import Job, Queues

log = logging.getLogger(__name__)

UNSTABLE_RETRY_S: Final = 0.1
PROGRESS_WAIT_S: Final = 1.0
FULL_RETRY_S: Final = 1.0
SLEPT_CHECK_S: Final = 600.0


class PartitionJobs:
    """The jobs of one attached partition. `note` tells that the partition may lag from now on."""

    def __init__(
        self,
        partition: TieredPartition,
        queues: Queues,
        collector: Collector,
        copier: Copier,
        expirer: Expirer,
        cleaner: ColdCleaner,
        note: Callable[[], None],
    ) -> None:
        self._partition = partition
        self._queues = queues
        self._collector = collector
        self._copier = copier
        self._note = note
        self._short_of_room: set[str] = set()
        self._upkeep: Job = queues.commits.add(f"upkeep {partition.name}", self._with_room("upkeep", self._keep_up))
        self._copying: Job = queues.copies.add(f"copy {partition.name}", self._with_room("copy", self._copy_next))
        self._expiring: Job = queues.expiry.add(f"expire {partition.name}", self._with_room("expire", expirer.run))
        self._cleaner = cleaner
        cleaner.on_replaced = self.expire
        self._cleaning: Job = queues.cleaning.add(f"clean {partition.name}", self._with_room("clean", cleaner.run))
        self._collecting: Job = queues.gc.add(f"gc {partition.name}", self._collect)
        self._progress = asyncio.Event()
        self._broken: Exception | None = None
        self._is_started = False  # `start` covers earlier wake-ups
        partition.on_claimed = self._claimed

    def start(self) -> None:
        """Begin to claim, copy and expire."""
        self._is_started = True
        self.keep_up()
        if self._partition.claimed:
            self._claimed()
        self._queues.expiry.wake_in(self._expiring, self._spread(self._limits.retention_check_interval_ms))

    async def close(self) -> None:
        """Stop all jobs; gc deletes objects of interrupted uploads."""
        await self._queues.cleaning.remove(self._cleaning)
        self._cleaner.forget()
        await self._queues.copies.remove(self._copying)
        await self._queues.expiry.remove(self._expiring)
        await self._queues.gc.remove(self._collecting)
        await self._queues.commits.remove(self._upkeep)
        self._report_progress()  # wake the waiters, because no progress will follow

    # ── woken ────────────────────────────────────────────────────────────────────────────────────────────────────
    def keep_up(self) -> None:
        """Check claim, reservation and configs now. This is never deferred, because an append may wait for offsets."""
        self._queues.commits.wake(self._upkeep)

    def reconfigured(self) -> None:
        """The topic's configs changed."""
        if self._is_started:
            self.keep_up()
            self.copy()
            self.expire()
            self._clean()

    def copy(self) -> None:
        """Check whether a segment has to be sealed or copied."""
        if self._is_started:
            self._queues.copies.wake(self._copying)

    def expire(self, in_ms: int = 0) -> None:
        """Check retention within `in_ms`."""
        if not self._is_started:
            return
        if in_ms:
            self._queues.expiry.wake_in(self._expiring, in_ms / 1000)
        else:
            self._queues.expiry.wake(self._expiring)

    def _clean(self) -> None:
        """Check whether the bucket's part needs compaction; topics without compaction queue no check."""
        if self._is_started and self._cleaner.is_wanted:
            self._queues.cleaning.wake(self._cleaning)

    @property
    def _limits(self) -> TierLimits:
        return self._partition.limits

    def _spread(self, interval_ms: int) -> float:
        """A random part of the interval, so that thousands of partitions do not run at once."""
        return self._partition.world.rng.uniform(0.0, interval_ms / 1000)

    # ── done ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def _claimed(self) -> None:
        if not self._is_started:
            return
        self._queues.copies.wake(self._copying)
        self._clean()
        self._queues.expiry.wake_in(self._expiring, min(1.0, self._limits.retention_check_interval_ms / 1000))
        if self._partition.epoch == 0:
            return  # no object is of an earlier epoch
        # Garbage of earlier epochs: after the grace of readers of older roots, and not all partitions at once.
        grace_ms = self._limits.gc_grace_ms
        self._queues.gc.wake_in(self._collecting, grace_ms / 1000 + self._spread(grace_ms))

    def _with_room(
        self, name: str, work: Callable[[], Awaitable[float | None]]
    ) -> Callable[[], Awaitable[float | None]]:
        """Run `work`. If the disk is full, `work` is retried soon, and status and service report the full disk."""

        async def run() -> float | None:
            partition = self._partition
            try:
                again_s = await work()
            except LeaseOver:
                return None  # no longer leading: `close` ends this job
            except (OSError, LogFull) as failure:
                if isinstance(failure, OSError) and not is_full(failure):
                    raise
                self._short_of_room.add(name)
                partition.log.ballast.met_full = True
                partition.blocks[Block.DISK] = str(failure)
                self._note()
                return FULL_RETRY_S
            self._short_of_room.discard(name)
            if not self._short_of_room:
                partition.blocks.pop(Block.DISK, None)
            return again_s

        return run

    async def _collect(self) -> float | None:
        of = self._partition
        if (wait_s := self._collector.wait_s(of.topic_id, of.partition)) > 0:
            return wait_s  # collected recently: try again later
        if max(of.remote_end_offset, of.log_start_offset) < of.log.local_log_start_offset:
            return AGAIN_S  # perhaps an earlier version of the root: objects it does not name may be the only copies
        if not of.is_complete():
            return AGAIN_S  # deletion is not allowed yet
        try:
            await self._collector.collect(of.topic_id, of.partition, of.holds, of.check_fresh)
        except (Corrupt, ObjectMissing) as unreadable:
            log.error("gc of %s deleted nothing: %s", self._partition.name, unreadable)
        return None

    async def _keep_up(self) -> float | None:
        """Claim, keep the reservation ahead of the appends, and keep the root's copy of the configs up to date."""
        partition = self._partition
        partition.lease.check()
        if partition.local_gaps is None:
            partition.local_gaps = await partition.lease.call(local_gaps, partition.log, lane=Lane.HOT_READ)
        if partition.fenced:
            return None
        try:
            await partition.reserve()
            manifest = await partition.claim()
            await partition.note_reservation()
            partition.blocks.pop(Block.CLAIM, None)
            config = partition.config
            is_told = (manifest.topic, manifest.configs) == (config.topic, dict(config.configs))
            if not is_told and not partition.is_to_be_switched_off:
                await partition.commit(lambda m: m.set_topic(config.topic, dict(config.configs)))
                self.copy()  # a withdrawal of unknown outcome may have been stored before
        except Fenced:
            return None  # recorded and reported
        except (Retryable, AccessRefused) as unanswered:
            self._note()
            if not partition.claimed:
                partition.blocks[Block.CLAIM] = str(unanswered)
            if partition.log.log_end_offset >= partition.log.reserved_end < INT64_MAX:
                partition.blocks[Block.RESERVATION] = str(unanswered)
            raise
        return None  # woken by appends that use up the reservation, and by config changes

    async def _copy_next(self) -> float | None:
        """Seal a segment that waited long enough, and copy one range; runs again at once while ranges are left."""
        partition = self._partition
        if not partition.config.copies or not partition.claimed or Block.BEHIND in partition.blocks:
            return None  # woken by the claim, a roll, or a config change
        # While the store refuses copies no garbage is collected, because the next copy tries the store itself.
        if self._copier.has_garbage and Block.STORE not in partition.blocks:
            await self._collect_garbage()
        partition.lease.check()
        self._seal_when_due()
        local = partition.log
        match self._plan():
            case CopyRange() as wanted:
                try:
                    await self._copier.copy(wanted)
                except Fenced:
                    return None
                except RangeChanged as changed:  # not the store's refusal
                    log.info("%s: planned again: %s", partition.name, changed)
                    return 0.0
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
                self._clean()
                return 0.0
            case NoCopy.UNSTABLE:
                if local.flushed_end_offset < local.active_info().base_offset:
                    await self._flush()
                return UNSTABLE_RETRY_S
            case NoCopy.HOLE:
                start = local.local_log_start_offset
                partition.blocks[Block.HOLE] = (
                    f"the bucket ends at offset {partition.remote_end_offset}, but the local log begins at {start}"
                )
            case NoCopy.DONE:
                partition.blocks.pop(Block.STORE, None)  # the refused copy is no longer needed
        return self._next_check_s()

    async def _collect_garbage(self) -> None:
        """Delete objects of failed copies. A failure does not stop copies, because a store that accepts objects may
        refuse deletes (a policy, a lock)."""
        try:
            async with asyncio.timeout(self._limits.store_timeout_s):
                await self._copier.collect_garbage()
        except (Retryable, TimeoutError) as away:  # the outage is logged elsewhere, once
            log.debug("%s: objects of failed copies are not deleted yet: %s", self._partition.name, away)
        except AccessRefused as refused:
            log.warning("%s: objects of failed copies are not deleted yet: %s", self._partition.name, refused)

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
            self._partition.lease.roll()
        except LogFull as full:  # sealed segments are still copied, which frees space
            log.debug("%s cannot be sealed now: %s", self._partition.name, full)
            return
        self._partition.flusher.request()

    def _next_check_s(self) -> float | None:
        """Seconds until the seal is due. An empty segment has nothing to seal: its first batch wakes the job
        (`rolled`)."""
        if self._copier.has_garbage or Block.HOLE in self._partition.blocks:
            return self._limits.interval_ms_max / 1000
        due_ms = self._seal_due_ms()
        if due_ms == 0:
            return FULL_RETRY_S  # the seal found no space
        # While a machine sleeps, timers stop but the clock continues.
        return None if due_ms is None else min(due_ms / 1000, SLEPT_CHECK_S)

    def _report_progress(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    async def seal_and_copy(self) -> None:
        """Seal the active segment and return when all records appended before the call are in the bucket and verified.
        Raises Fenced, also when the partition is no longer led; Corrupt. Waits while the store does not answer; the
        caller sets the deadline."""
        partition = self._partition
        target = partition.log.log_end_offset
        self._broken = None
        partition.lease.check()
        partition.lease.roll()
        await partition.flusher.flush()
        if not partition.config.copies:
            return
        while partition.remote_end_offset < target and partition.log_start_offset < target:
            partition.check_not_fenced()
            if partition.closed:
                raise Fenced(f"{partition.name} is no longer led, or was deleted, before all of it was copied")
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
        while not await self._all_verified():
            partition.check_not_fenced()
            await asyncio.sleep(UNSTABLE_RETRY_S)  # a commit that replaces objects may wait for its answer

    async def _all_verified(self) -> bool:
        """Verify the bucket's objects of the local log. Returns False if some of them were replaced, or expired,
        meanwhile; then call again."""
        partition = self._partition
        async for segment in partition.manifests.segments(partition.log.local_log_start_offset):
            if segment not in partition.verified:
                try:
                    await self._copier.verify(segment)
                except NoLongerLive:
                    return False
        return True
