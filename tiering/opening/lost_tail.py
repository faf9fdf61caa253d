"""Beginning to lead an open log: from what disk and bucket say of its tail to a log that may give offsets.

Owns the decision whether the bucket is asked first, and the order of steps. Always true: a log without a usable
reservation, or whose tail may be gone, claims its partition before anything else and believes only the root which that
claim produced (C30); so does one that begins uncleanly, where nobody has all that was acknowledged (R20): it is cut to
what cannot have been overwritten, and only then enters its epoch; the hole up to the reserved end is closed by declared
gaps, flushed, before a new reservation counts and before the first append; every other log serves at once, without
asking the bucket, one that was told its reserved end in this session too (R21). Each step is durable before the next,
may be cut off by a crash and is finished by the next leader. Must not know how a log is opened (hotstore), nor what
happens after it is led."""

from __future__ import annotations

import errno
import logging
from enum import Enum

from coldstore.keys import partition_prefix
from coldstore.manifest.manifest import Manifest
from coldstore.roots.root import RootMissing
from hotstore.errors import LogFull
from hotstore.host.lease import Lease
from logformat.errors import Corrupt
from logformat.gap import gap_batches
from logformat.leader_epochs import kept_end
from logformat.record_batch import INT64_MAX
from seams.crash_points import reach
from seams.disk import is_full
from tiering.opening.cold_start import begin_at_end
from tiering.opening.log_starts import first_local_offset, is_held_below, start_at_least
from tiering.opening.reservation import LocalReservation, ToldEnd, read_reservation, remove_reservation
from tiering.partition_state import TieredPartition

log = logging.getLogger(__name__)


class Tail(Enum):
    """What is known of the end of a log that is to be led."""

    NEW = "new"  # the partition is being created: root and reservation first
    WHOLE = "whole"  # it holds all that anybody saw: the claim may come later
    IN_DOUBT = "in doubt"  # some of it may be lost: the root first


def tail_of(reservation: LocalReservation | None, *, new: bool, boot_id: str, clean: bool) -> Tail:
    """`clean`: the process before left every log whole. The boot id in the reservation is the machine run that last
    served the log, so that a crash between noticing a machine restart and acting on it changes nothing."""
    if new:
        return Tail.NEW
    if reservation is not None and reservation.covers_tail(boot_id=boot_id, clean=clean):
        return Tail.WHOLE
    return Tail.IN_DOUBT


class LostTail:
    """Of one open log in one leader epoch; one use. `lost`: what it declared a gap, [first, end). `is_own`: nobody but
    this broker led the log since it holds what it does, alone as far as its disk knows."""

    def __init__(
        self,
        partition: TieredPartition,
        *,
        was_clean: bool,
        new: bool,
        followed: bool,
        led_before: int | None,
        told: ToldEnd | None = None,
        hole_end: int | None = None,
    ) -> None:
        self._partition = partition
        self._lease: Lease = partition.lease
        self._opened = partition.lease.opened
        self._log = partition.log
        self._was_clean = was_clean  # the last process left every log whole
        self._new = new
        self._followed = followed  # it was in sync with whoever led before: others may hold the log too
        self._led_before = led_before  # the epoch it was led in before it resigned: another may have led since
        self._told = told  # in this session, by the leader before or as that leader, and nothing was lost since
        self._hole_end = hole_end  # what was reserved before, where the claim reserved anew already
        self.lost: tuple[int, int] | None = None
        self.is_own = False

    async def secure(self) -> None:
        """Let the log have a `reserved_end` up to which it may append. Raises Retryable (the store is needed and away;
        this may be done again), Fenced, Corrupt, StorageFailed, OSError (open the log again first)."""
        told = self._told
        if told is not None and not self._new and told.reserved_end >= self._log.log_end_offset:
            self._lease.reserve(told.reserved_end)
            self._partition.is_noted = False
            return
        if self._followed and not self._new:
            await self._take_over()
            return
        partition, world = self._partition, self._partition.world
        reservation = None
        if not self._opened.is_bare:
            reservation = await self._lease.call(
                read_reservation, self._log.directory, partition.topic_id, partition.partition
            )
        self.is_own = reservation is not None  # a log that is copied has none (R21)
        boot_id = world.clock.boot_id()
        match tail_of(reservation, new=self._new, boot_id=boot_id, clean=self._was_clean):
            case Tail.NEW:
                await self._create()
            case Tail.WHOLE:
                assert reservation is not None
                if self._led_before is not None:
                    await self._claim()
                await self._go_on(reservation)
            case Tail.IN_DOUBT:
                await self._claim_first(may_be_unmade=reservation is None and self._log.log_end_offset == 0)

    async def begin_uncleanly(self, served_epoch: int) -> None:
        """The same, where nobody has all that was acknowledged; `served_epoch`: the leader epoch that served last."""
        await self._claim_first(may_be_unmade=self._log.log_end_offset == 0, unclean_after=served_epoch)

    async def _create(self) -> None:
        """Root and first reservation by compare-and-set, then the copy of the reservation: a log without it is never
        served before the root was asked."""
        partition = self._partition
        config, block = partition.config, partition.limits.reservation_offsets
        manifest = await partition.manifests.create(partition.epoch, config.topic, dict(config.configs), block)
        await self._reserved(manifest.reserved_end_offset)
        if not self._new:
            log.warning("%s had neither root nor records: its creation was cut off, it begins empty", partition.name)

    # ── a log that is whole ──────────────────────────────────────────────────────────────────────────────────────
    async def _go_on(self, reservation: LocalReservation) -> None:
        local = self._log
        known = self._partition.manifest  # only where opening the log asked the root, or we led it before
        is_behind = known is not None and (
            known.bucket_end_offset > local.log_end_offset
            or (self._may_another_have_led and known.reserved_end_offset > reservation.reserved_end)
        )
        if is_behind or reservation.reserved_end < local.log_end_offset:
            log.error(
                "%s ends at %d, its reserved end is %d: going on where the bucket says",
                self._partition.name,
                local.log_end_offset,
                reservation.reserved_end,
            )
            await self._lease.call(remove_reservation, local.directory)
            await self._close_hole(await self._claim())
            return
        # A release of the last epoch may have landed after its copy was read.
        reserved_end = reservation.reserved_end if known is None else known.reserved_end_offset
        reserved_end = min(reservation.reserved_end, reserved_end)
        boot_id = self._partition.world.clock.boot_id()
        if reserved_end == reservation.reserved_end and reservation.stands_for(
            flush_sync=local.config.flush_sync, boot_id=boot_id
        ):
            self._lease.reserve(reservation.reserved_end)
            return
        try:
            await self._reserved(reserved_end)
        except OSError as error:
            if not is_full(error):
                raise
            self._lease.reserve(local.log_end_offset)  # reads only, until a reservation can be written

    @property
    def _may_another_have_led(self) -> bool:
        """Since we did: in the very next leader epoch it is only we, and what the root reserves is ours, also where a
        commit of the last epoch was cut off before its copy was written."""
        return self._led_before is not None and self._partition.epoch > self._led_before + 1

    # ── a log that followed ──────────────────────────────────────────────────────────────────────────────────────
    async def _take_over(self) -> None:
        """It has all that was committed; offsets above its end were perhaps given, but shown to nobody: there is no
        hole. It did not hear in this session where the log starts and what may be given: the root says so, first."""
        local = self._log
        try:
            manifest = await self._claim()
        except RootMissing as missing:
            await self._was_unmade(missing, may_be_unmade=local.log_end_offset == 0)
            return
        if local.log_end_offset < manifest.bucket_end_offset:
            lost = (
                f"{self._partition.name} ends at {local.log_end_offset}, the bucket holds all below "
                f"{manifest.bucket_end_offset}: this replica lost what it had; another one has to lead"
            )
            self._partition.on_behind(lost)
            raise Corrupt(lost)
        start_at_least(self._lease, manifest)
        await self._lease.checkpoint_start()
        reserve = min(local.log_end_offset + self._partition.limits.reservation_offsets, INT64_MAX)
        manifest = await self._partition.commit(lambda m: m.reserve(reserve))
        await self._reserved(manifest.reserved_end_offset)

    # ── a lost tail ──────────────────────────────────────────────────────────────────────────────────────────────
    async def _claim_first(self, *, may_be_unmade: bool, unclean_after: int | None = None) -> None:
        """`may_be_unmade`: nothing here says that the partition ever had a root."""
        try:
            manifest = await self._claim()
        except RootMissing as missing:
            await self._was_unmade(missing, may_be_unmade=may_be_unmade)
            return
        # Not before the claim: without the bucket the local log stays as it is.
        if not self._opened.is_bare:
            await self._lease.call(remove_reservation, self._log.directory)
        if unclean_after is not None:
            await self._cut_to_kept(unclean_after)
        await self._close_hole(manifest)
        if unclean_after is not None:  # all that is in the bucket was committed
            self._lease.move_high_watermark(max(self._opened.high_watermark, manifest.bucket_end_offset))

    async def _cut_to_kept(self, served_epoch: int) -> None:
        """Drop what may have been overwritten since; then enter the epoch, which says that this was done (D72)."""
        opened, local = self._opened, self._log
        keep = kept_end(opened.seen_epoch, opened.high_watermark, local.log_end_offset, served_epoch)
        keep = min(keep, local.sound_end_offset)
        if keep < local.log_end_offset:
            log.warning(
                "%s is cut from %d to %d: what lies above is damaged, or may be overwritten since (leader epoch %d)",
                self._partition.name,
                local.log_end_offset,
                keep,
                served_epoch,
            )
            await self._lease.checkpoint()  # the next attempt knows it too
            await self._lease.truncate(keep)
        await self._lease.note_seen_epoch(self._partition.epoch)

    async def _was_unmade(self, missing: RootMissing, *, may_be_unmade: bool) -> None:
        """Its creation was cut off before its root: it is made now. Raises Corrupt where there was one."""
        if not may_be_unmade or not await self._nothing_in_bucket():
            raise Corrupt(
                f"{self._partition.name}: its root {self._prefix}"
                "manifest.json is gone; restore it from an earlier version of the object"
            ) from missing
        await self._create()

    async def _claim(self) -> Manifest:
        """What a log was made of is the claim that counts: nobody else writes in its epoch, and of ours nothing is
        under way."""
        config, manifests, epoch = self._partition.config, self._partition.manifests, self._partition.epoch
        known = manifests.manifest
        if self._opened.is_bare and manifests.claimed_epoch == epoch and manifests.settled and known is not None:
            return known
        return await manifests.claim(epoch, config.topic, dict(config.configs))

    @property
    def _prefix(self) -> str:
        return partition_prefix(self._partition.topic_id, self._partition.partition)

    async def _nothing_in_bucket(self) -> bool:
        """Whether the partition's creation was cut off before its root: then nothing else was ever written either."""
        async for _ in self._partition.store.list(self._prefix):
            return False
        return True

    async def _close_hole(self, manifest: Manifest) -> None:
        """Start at the bucket's end or keep what reaches further; close the hole; reserve, where the claim did not; all
        before any append."""
        local = self._log
        await self._adopt_bucket_end(manifest)
        if is_held_below(first_local_offset(local), manifest):
            # A log that was cut off in here before may have taken its first segment for its start.
            self._lease.set_log_start(min(manifest.log_start_offset, local.log_end_offset))
        start_at_least(self._lease, manifest)
        await self._lease.checkpoint_start()  # the first local segment does not tell where a tiered log starts
        await self._append_gaps(manifest.reserved_end_offset if self._hole_end is None else self._hole_end)
        if self._hole_end is None:
            reserve = min(local.log_end_offset + self._partition.limits.reservation_offsets, INT64_MAX)
            manifest = await self._partition.commit(lambda m: m.reserve(reserve))
        reach("reserve.committed")
        if self._opened.is_bare:
            # Noted once it serves: a directory without a copy has the next start ask the root before it gives any.
            self._partition.is_noted = False
            self._lease.reserve(manifest.reserved_end_offset)
        else:
            await self._reserved(manifest.reserved_end_offset)

    async def _adopt_bucket_end(self, manifest: Manifest) -> None:
        """A log that ends below what the bucket holds begins there, with the lineage and the producers of that end."""
        start = manifest.bucket_end_offset
        if self._log.log_end_offset >= start:
            return
        self.is_own = False
        of = self._partition
        begin = await begin_at_end(
            of.store, of.manifests, (of.topic_id, of.partition), manifest, of.epoch, of.limits.store_timeout_s
        )
        forget_start = not manifest.live.segments
        await self._lease.begin_at(start, begin.epochs, begin.producers, forget_start=forget_start)

    async def _append_gaps(self, reserved_end: int) -> None:
        local, lease = self._log, self._lease
        first = local.log_end_offset
        if first >= reserved_end:
            await lease.flusher.flush()  # a gap that a role before appended may not be durable yet
            return
        lease.reserve(reserved_end)
        try:
            for batch in gap_batches(first, reserved_end, self._partition.epoch):
                lease.append_gap(batch, self._partition.world.clock.wall_ms())
            await lease.flusher.flush()
            reach("gap.appended")
            if self._partition.config.enabled:
                # Sealed at once, so that its copy makes the manifest, and with it `tier status`, name the gap now.
                lease.roll()
        except LogFull as full:
            raise OSError(errno.ENOSPC, str(full)) from full  # a shortage that passes: to be opened again, not offline
        self.lost = first, reserved_end

    # ── pieces ───────────────────────────────────────────────────────────────────────────────────────────────────
    async def _reserved(self, end: int) -> None:
        """The root gives us what lies below `end`: note it on disk, then use it."""
        await self._partition.write_local_reservation(end)
        self._lease.reserve(end)
