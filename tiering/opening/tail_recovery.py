"""Start of a leadership: closes a possible hole at the log's end, and reserves offsets.
- A log without a usable reservation, or whose tail may be lost, claims its partition first and uses only the root that
  this claim returned (C30). An unclean start (R20) does the same: it truncates the log to the part that cannot have
  been overwritten, and then enters its epoch.
- The hole up to the reserved end is filled with declared gaps, which are flushed before a new reservation counts and
  before the first append.
- Every other log serves at once, without reading the bucket. That includes a log whose leader reported the reserved end
  in this session (R21). Each step is durable before the next. After a crash the next leader finishes the remaining
  steps.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass, field
from enum import Enum

from coldstore.keys import partition_prefix
from coldstore.manifest.manifest import Manifest
from coldstore.roots.root import RootMissing
from hotstore.errors import LogFull
from hotstore.host.lease import Lease
from hotstore.host.open_log import OpenLog
from hotstore.log.partition_log import PartitionLog
from logformat.errors import Corrupt
from logformat.gap import gap_batches
from logformat.leader_epochs import kept_end
from logformat.record_batch import INT64_MAX
from seams.crash_points import reach
from seams.files.disk import is_full
from tiering.opening.cold_start import begin_at_end
from tiering.opening.log_starts import first_local_offset, is_held_below, start_at_least
from tiering.opening.older_copy_note import remove_older_copy_note
from tiering.opening.reservation import LocalReservation, ReportedEnd, read_reservation, remove_reservation
from tiering.partition_state import TieredPartition

log = logging.getLogger(__name__)


class Tail(Enum):
    """Whether the tail of a log that will lead is complete."""

    NEW = "new"  # the partition is being created: root and reservation first
    WHOLE = "whole"  # it holds all records that a client saw, so the claim may follow later
    IN_DOUBT = "in doubt"  # records may be lost: read the root first


def tail_of(reservation: LocalReservation | None, *, new: bool, boot_id: str, clean: bool) -> Tail:
    """`clean`: the last process closed every log cleanly. The boot id in the reservation is the machine run that last
    served the log, so a crash between noticing a machine restart and acting on it changes nothing."""
    if new:
        return Tail.NEW
    if reservation is not None and reservation.covers_tail(boot_id=boot_id, clean=clean):
        return Tail.WHOLE
    return Tail.IN_DOUBT


@dataclass(slots=True, eq=False)
class TailRecovery:
    """One open log in one leader epoch; one use.

    - `was_clean`: the last process closed every log cleanly.
    - `followed`: it was in sync with an earlier leader, so other brokers may hold the log too.
    - `led_before`: the last epoch in which this process led the log; another broker may have led after it.
    - `reported`: the end reported in this session by the previous leader, or by this broker as leader. No record was
      lost after that report.
    - `hole_end`: the earlier reserved end, if the claim reserved anew already.
    - `lost`: the declared gap, [first, end).
    """

    partition: TieredPartition
    was_clean: bool
    new: bool
    followed: bool
    led_before: int | None
    reported: ReportedEnd | None = None
    hole_end: int | None = None
    lost: tuple[int, int] | None = None
    _lease: Lease = field(init=False)
    _opened: OpenLog = field(init=False)
    _log: PartitionLog = field(init=False)

    def __post_init__(self) -> None:
        self._lease = lease = self.partition.lease
        self._opened, self._log = lease.opened, lease.log

    async def secure(self) -> None:
        """Give the log a `reserved_end` for appends. Raises Retryable (the store is needed but does not answer; call it
        again), Fenced, Corrupt, StorageFailed, OSError (open the log again first)."""
        reported = self.reported
        if reported is not None and not self.new and reported.reserved_end >= self._log.log_end_offset:
            self._lease.reserve(reported.reserved_end)
            self.partition.is_noted = False
            return
        if self.followed and not self.new:
            await self._take_over()
            return
        partition, world = self.partition, self.partition.world
        reservation = None
        if not self._opened.is_bare:
            reservation = await self._lease.call(
                read_reservation, self._log.directory, partition.topic_id, partition.partition
            )
        # A log that was copied from a leader has no reservation (R21).
        partition.chooses_start |= partition.is_alone and reservation is not None
        boot_id = world.clock.boot_id()
        match tail_of(reservation, new=self.new, boot_id=boot_id, clean=self.was_clean):
            case Tail.NEW:
                await self._create()
            case Tail.WHOLE:
                assert reservation is not None
                if self.led_before is not None:
                    await self._claim()
                await self._serve_whole(reservation)
            case Tail.IN_DOUBT:
                await self._claim_first(may_lack_root=reservation is None and self._log.log_end_offset == 0)

    async def begin_uncleanly(self, served_epoch: int) -> None:
        """As `secure`, if no replica has all acknowledged records; `served_epoch`: the leader epoch that served
        last."""
        await self._claim_first(may_lack_root=self._log.log_end_offset == 0, unclean_after=served_epoch)

    async def _create(self) -> None:
        """Create root and first reservation by compare-and-set, then the local copy. Without the copy the next start
        reads the root."""
        partition = self.partition
        config, block = partition.config, partition.limits.reservation_offsets
        manifest = await partition.manifests.create(partition.epoch, config.topic, dict(config.configs), block)
        await self._reserved(manifest.reserved_end_offset)
        if not self.new:
            log.warning(
                "%s had neither root nor records: its creation was interrupted, and it begins empty", partition.name
            )

    # ── a log that is whole ──────────────────────────────────────────────────────────────────────────────────────
    async def _serve_whole(self, reservation: LocalReservation) -> None:
        local = self._log
        known = self.partition.manifest  # None unless the opening read the root, or this process has led the log
        is_behind = known is not None and (
            known.bucket_end_offset > local.log_end_offset
            or (self._may_another_have_led and known.reserved_end_offset > reservation.reserved_end)
        )
        if is_behind or reservation.reserved_end < local.log_end_offset:
            log.error(
                "%s ends at %d, but its reserved end is %d: continuing at the end in the bucket",
                self.partition.name,
                local.log_end_offset,
                reservation.reserved_end,
            )
            await self._lease.call(remove_reservation, local.directory)
            await self._close_hole(await self._claim())
            return
        # The last epoch's release may have arrived after its local copy was read.
        reserved_end = reservation.reserved_end if known is None else known.reserved_end_offset
        reserved_end = min(reservation.reserved_end, reserved_end)
        boot_id = self.partition.world.clock.boot_id()
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
        """Whether another broker may have led after this broker led last. If the present leader epoch directly follows
        this broker's last leader epoch, no other broker has led. The root's reservation is ours then, even if the
        commit in that epoch was interrupted before the local copy was written."""
        return self.led_before is not None and self.partition.epoch > self.led_before + 1

    # ── a log that followed ──────────────────────────────────────────────────────────────────────────────────────
    async def _take_over(self) -> None:
        """Begin to lead as a former follower, which has all committed records. Offsets above its end may have been
        assigned, but no client saw them, so there is no hole. Without a report of log start and reserved end in this
        session, it reads the root first.
        """
        local = self._log
        try:
            manifest = await self._claim()
        except RootMissing as missing:
            await self._recreate_root(missing, may_lack_root=local.log_end_offset == 0)
            return
        if local.log_end_offset < manifest.bucket_end_offset:
            lost = (
                f"{self.partition.name} ends at {local.log_end_offset}, but the bucket holds all offsets below "
                f"{manifest.bucket_end_offset}: this replica lost records; another one has to lead"
            )
            self.partition.on_behind(lost)
            raise Corrupt(lost)
        start_at_least(self._lease, manifest)
        await self._lease.checkpoint_start()
        reserve = min(local.log_end_offset + self.partition.limits.reservation_offsets, INT64_MAX)
        manifest = await self.partition.commit(lambda m: m.reserve(reserve))
        await self._reserved(manifest.reserved_end_offset)

    # ── a lost tail ──────────────────────────────────────────────────────────────────────────────────────────────
    async def _claim_first(self, *, may_lack_root: bool, unclean_after: int | None = None) -> None:
        """`may_lack_root`: no local file shows that the partition ever had a root."""
        try:
            manifest = await self._claim()
        except RootMissing as missing:
            await self._recreate_root(missing, may_lack_root=may_lack_root)
            return
        # After the claim, because without the bucket the local log must not change.
        if not self._opened.is_bare:
            await self._lease.call(remove_reservation, self._log.directory)
            await self._lease.call(remove_older_copy_note, self._log.directory)
        if unclean_after is not None:
            await self._cut_to_kept(unclean_after)
        await self._close_hole(manifest)
        if unclean_after is not None:  # all records in the bucket were committed
            self._lease.move_high_watermark(max(self._opened.high_watermark, manifest.bucket_end_offset))

    async def _cut_to_kept(self, served_epoch: int) -> None:
        """Truncate records that a later leader may have overwritten. Then enter the epoch, because that records the
        truncation (D72)."""
        opened, local = self._opened, self._log
        keep = kept_end(opened.seen_epoch, opened.high_watermark, local.log_end_offset, served_epoch)
        keep = min(keep, local.sound_end_offset)
        if keep < local.log_end_offset:
            log.warning(
                "%s is truncated from %d to %d: higher offsets are damaged or may be overwritten (leader epoch %d)",
                self.partition.name,
                local.log_end_offset,
                keep,
                served_epoch,
            )
            await self._lease.checkpoint()  # the next attempt needs this checkpoint
            await self._lease.truncate(keep)
        await self._lease.note_seen_epoch(self.partition.epoch)

    async def _recreate_root(self, missing: RootMissing, *, may_lack_root: bool) -> None:
        """Create the root of a partition whose creation was interrupted. Raises Corrupt if it had one."""
        if not may_lack_root or not await self._nothing_in_bucket():
            raise Corrupt(
                f"{self.partition.name}: its root {self._prefix}"
                "manifest.json is gone; restore it from an earlier version of the object"
            ) from missing
        await self._create()

    async def _claim(self) -> Manifest:
        """Claim the root. A log that was created from a claim keeps that claim: no other broker writes in its epoch,
        and no write of ours is pending."""
        config, manifests, epoch = self.partition.config, self.partition.manifests, self.partition.epoch
        known = manifests.manifest
        if self._opened.is_bare and manifests.claimed_epoch == epoch and manifests.settled and known is not None:
            return known
        return await manifests.claim(epoch, config.topic, dict(config.configs))

    @property
    def _prefix(self) -> str:
        return partition_prefix(self.partition.topic_id, self.partition.partition)

    async def _nothing_in_bucket(self) -> bool:
        """Whether the creation was interrupted before the root, so that no other object was written."""
        async for _ in self.partition.store.list(self._prefix):
            return False
        return True

    async def _close_hole(self, manifest: Manifest) -> None:
        """Before any append: restart at the bucket's end unless the log reaches it, close the hole, and reserve unless
        the claim did."""
        local = self._log
        await self._adopt_bucket_end(manifest)
        if is_held_below(first_local_offset(local), manifest):
            # An earlier interrupted attempt may have taken the first segment for the log start.
            self._lease.set_log_start(min(manifest.log_start_offset, local.log_end_offset))
        start_at_least(self._lease, manifest)
        await self._lease.checkpoint_start()  # the first local segment does not show where a tiered log starts
        await self._append_gaps(manifest.reserved_end_offset if self.hole_end is None else self.hole_end)
        if self.hole_end is None:
            reserve = min(local.log_end_offset + self.partition.limits.reservation_offsets, INT64_MAX)
            manifest = await self.partition.commit(lambda m: m.reserve(reserve))
        reach("reserve.committed")
        if self._opened.is_bare:
            # The local copy is written when the log serves. Without a copy the next start reads the root first.
            self.partition.is_noted = False
            self._lease.reserve(manifest.reserved_end_offset)
        else:
            await self._reserved(manifest.reserved_end_offset)

    async def _adopt_bucket_end(self, manifest: Manifest) -> None:
        """If the log ends below the bucket's end, restart it at the bucket's end, with the epochs and producers of that
        end."""
        start = manifest.bucket_end_offset
        if self._log.log_end_offset >= start:
            return
        of = self.partition
        of.chooses_start = of.config.enabled
        begin = await begin_at_end(
            of.store, of.manifests, (of.topic_id, of.partition), manifest, of.epoch, of.limits.store_timeout_s
        )
        forget_start = not manifest.live.segments
        await self._lease.begin_at(start, begin.epochs, begin.producers, forget_start=forget_start)

    async def _append_gaps(self, reserved_end: int) -> None:
        local, lease = self._log, self._lease
        first = local.log_end_offset
        if first >= reserved_end:
            await lease.flusher.flush()  # a gap that an earlier role appended may not be durable yet
            return
        lease.reserve(reserved_end)
        try:
            for batch in gap_batches(first, reserved_end, self.partition.epoch):
                lease.append_gap(batch, self.partition.world.clock.wall_ms())
            await lease.flusher.flush()
            reach("gap.appended")
            if self.partition.config.enabled:
                # Seal it now, because its upload adds the gap to the manifest and `tier status`.
                lease.roll()
        except LogFull as full:
            raise OSError(errno.ENOSPC, str(full)) from full  # temporary: the log is reopened and not offline
        self.lost = first, reserved_end

    # ── pieces ───────────────────────────────────────────────────────────────────────────────────────────────────
    async def _reserved(self, end: int) -> None:
        """The root reserves offsets below `end`: write the local copy, then use the reservation."""
        await self.partition.write_local_reservation(end)
        self._lease.reserve(end)
