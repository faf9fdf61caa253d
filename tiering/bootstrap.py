"""Opening a partition: from what disk and bucket hold to a log that may serve.

Owns the decision which of the two to ask first, and the order of steps. Always true: a log without a usable
reservation, or whose tail may be gone, claims its partition before anything else and believes only the root which
that claim produced (C30); the hole up to the reserved end is closed by declared gaps, flushed, before a new
reservation is made and before the first append; every other log serves at once, without asking the bucket, but for one
whose topic is tiered no more and lacks segments that only the bucket held. Each step may be cut off by a crash and is
finished by the next opening. Must not know what happens after the log serves."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar, TypeVarTuple
from uuid import UUID

from coldstore.keys import partition_prefix
from coldstore.manifest import Manifest
from coldstore.manifest_store import ManifestStore
from coldstore.object_store import ObjectStore, StoreUnavailable
from coldstore.root import RootMissing
from coldstore.segment_reader import fetch_footer
from hotstore.data_dir import DataDir
from hotstore.errors import ForeignLog, LogFull, MissingSegments
from hotstore.flusher import Flusher
from hotstore.partition_log import PartitionLog
from hotstore.sync_rounds import SyncRounds
from logformat.checkpoints import PARTITION_METADATA_FILE, decode_partition_metadata
from logformat.errors import Corrupt
from logformat.gap import gap_batches
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerEntry
from logformat.record_batch import INT64_MAX
from seams.crash_points import reach
from seams.disk import is_full, read_file
from seams.workers import Workers, run_to_end
from seams.world import World
from tiering.partition_state import first_local_offset, start_at_least
from tiering.reservation import (
    LocalReservation,
    read_reservation,
    remove_reservation,
    write_reservation,
)
from tiering.tier_config import Opening, TierLimits

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger(__name__)


class Way(Enum):
    """How a partition comes up."""

    CREATE = "create"  # a new topic: root and reservation first, then local files
    SERVE = "serve"  # the local log is whole: the claim may come later
    CLAIM = "claim"  # its tail may be lost: the root first


@dataclass(frozen=True, slots=True)
class Found:
    """What the local directory holds. `log_exists`: a log of this very topic; `stale_id`: a log of another one."""

    log_exists: bool
    reservation: LocalReservation | None
    stale_id: bytes | None = None


def way_of(found: Found, *, new: bool, boot_id: str, clean: bool) -> Way:
    """Which way to go. The boot id in the reservation is the machine run that last served the log, so that a crash
    between noticing a machine restart and acting on it changes nothing."""
    if new:
        return Way.CREATE
    if not found.log_exists or found.reservation is None:
        return Way.CLAIM
    return Way.SERVE if found.reservation.covers_tail(boot_id=boot_id, clean=clean) else Way.CLAIM


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """A log that may be read, and appended to up to `log.reserved_end`."""

    log: PartitionLog
    flusher: Flusher
    lost: tuple[int, int] | None = None  # [first, end) declared a gap by this opening


@asynccontextmanager
async def given_up_on_failure(opened: OpenedLog, workers: Workers) -> AsyncIterator[None]:
    """Close the log when its opening fails after all, however: the next attempt opens the files it would write to."""
    try:
        yield
    except BaseException:
        await opened.flusher.close()
        await workers.run(opened.log.close, False)
        raise


class Bootstrap:
    """Opens one partition. One use."""

    def __init__(
        self,
        opening: Opening,
        manifests: ManifestStore,
        store: ObjectStore,
        world: World,
        data_dir: DataDir,
        sync_rounds: SyncRounds,
        limits: TierLimits,
        report: Callable[[str, BaseException], None],
        checkpoint: Callable[[PartitionLog], Awaitable[None]],
    ) -> None:
        self._opening = opening
        self._manifests = manifests
        self._store = store
        self._world = world
        self._data_dir = data_dir
        self._limits = limits
        self._sync_rounds = sync_rounds
        self._report = report
        self._checkpoint = checkpoint
        self._path = data_dir.log_path(opening.topic, opening.partition)

    async def _run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """In a worker, to its end: a topic may be deleted, and made again, while it is opened."""
        return await run_to_end(self._world.workers, function, *args)

    @property
    def _name(self) -> str:
        return f"{self._opening.topic}-{self._opening.partition}"

    async def open(self) -> OpenedLog:
        """Raises Retryable (the store is needed and away), Fenced, Corrupt (DamagedLog too), StorageFailed, OSError."""
        found = await self._run(self._look)
        if found.stale_id is not None:
            await self._leave_to_its_topic(found.stale_id)
            found = Found(False, None)
        way = way_of(found, new=self._opening.new, boot_id=self._world.clock.boot_id(), clean=self._opening.clean)
        match way:
            case Way.CREATE:
                return await self._create(found)
            case Way.SERVE:
                assert found.reservation is not None
                return await self._serve(found.reservation)
            case Way.CLAIM:
                return await self._claim_first(found)

    # ── what is there ────────────────────────────────────────────────────────────────────────────────────────────
    def _look(self) -> Found:
        disk, opening = self._world.disk, self._opening
        if disk.stat(self._path) is None:
            return Found(False, None)
        metadata = f"{self._path}/{PARTITION_METADATA_FILE}"
        reservation = read_reservation(disk, self._path, opening.topic_id, opening.partition)
        if disk.stat(metadata) is not None:
            topic_id = decode_partition_metadata(read_file(disk, metadata))
            if topic_id != opening.topic_id.bytes:
                return Found(False, None, topic_id)
            return Found(True, reservation)
        has_segments = any(name.endswith(".log") for name in disk.list_dir(self._path))
        # Opening refuses segments without their metadata file; a directory without either holds no log.
        return Found(has_segments, reservation)

    async def _leave_to_its_topic(self, stale_id: bytes) -> None:
        """The directory is of a topic that had our name before (C9): its purge, or the next start, removes it.

        Raises Corrupt where that is not sure: a partition that was served before has a root, and a log of its own.
        """
        if not self._opening.new and await self._manifests.load() is not None:
            raise ForeignLog(
                f"{self._path} belongs to topic id {UUID(bytes=stale_id)}, not to {self._opening.topic_id}; "
                "move it away, or wait for its topic's deletion"
            )
        await self._run(self._move_away)

    def _move_away(self) -> None:
        self._data_dir.mark_deleted(self._opening.topic, self._opening.partition, self._world.rng.uuid().hex)

    # ── a new topic ──────────────────────────────────────────────────────────────────────────────────────────────
    async def _create(self, found: Found) -> OpenedLog:
        """Root and first reservation by compare-and-set, then the local log, then the copy of the reservation: a log
        without it is never served before the root was asked."""
        opening, run = self._opening, self._run
        manifest = await self._manifests.create(
            opening.leader_epoch, opening.topic, dict(opening.tier.configs), self._limits.reservation_offsets
        )
        local = await self._open_local() if found.log_exists else await run(self._create_local, 0)
        await self._write_reservation(manifest.reserved_end_offset)
        local.reserved_end = manifest.reserved_end_offset
        if not opening.new:
            log.warning("%s had neither root nor files: its creation was cut off, it begins empty", self._name)
        return self._opened(local)

    # ── a log that is whole ──────────────────────────────────────────────────────────────────────────────────────
    async def _serve(self, reservation: LocalReservation) -> OpenedLog:
        opening = self._opening
        local = await self._open_local()
        known = self._manifests.manifest  # only where opening it asked the root
        is_behind = known is not None and known.bucket_end_offset > local.log_end_offset
        if is_behind or reservation.reserved_end < local.log_end_offset:
            log.error(
                "%s ends at %d, its reserved end is %d: going on where the bucket says",
                self._name,
                local.log_end_offset,
                reservation.reserved_end,
            )
            await self._run(remove_reservation, self._world.disk, self._path)
            return await self._close_hole(await self._claimed(), local)
        local.reserved_end = reservation.reserved_end
        flush_sync, boot_id = opening.log_config.flush_sync, self._world.clock.boot_id()
        if not reservation.stands_for(flush_sync=flush_sync, boot_id=boot_id):
            try:
                await self._write_reservation(reservation.reserved_end)
            except OSError as error:
                if not is_full(error):
                    raise
                local.reserved_end = local.log_end_offset  # reads only, until a reservation can be written
        return self._opened(local)

    # ── a lost tail ──────────────────────────────────────────────────────────────────────────────────────────────
    async def _claim_first(self, found: Found) -> OpenedLog:
        run = self._run
        try:
            manifest = await self._claimed()
        except RootMissing as missing:
            if found.log_exists or not await self._nothing_in_bucket():
                raise Corrupt(
                    f"{self._name}: its root {partition_prefix(self._opening.topic_id, self._opening.partition)}"
                    "manifest.json is gone; restore it from an earlier version of the object"
                ) from missing
            return await self._create(found)
        if found.log_exists:
            # Not before the claim: without the bucket the local log stays as it is.
            await run(remove_reservation, self._world.disk, self._path)
            return await self._close_hole(manifest, await self._open_local())
        return await self._close_hole(manifest, None)

    async def _claimed(self) -> Manifest:
        opening = self._opening
        return await self._manifests.claim(opening.leader_epoch, opening.topic, dict(opening.tier.configs))

    async def _nothing_in_bucket(self) -> bool:
        """Whether the partition's creation was cut off before its root: then nothing else was ever written either."""
        prefix = partition_prefix(self._opening.topic_id, self._opening.partition)
        async for _ in self._store.list(prefix):
            return False
        return True

    async def _close_hole(self, manifest: Manifest, local: PartitionLog | None) -> OpenedLog:
        """Start at the cold end or keep what reaches further; close the hole; reserve; all before the first append."""
        run, opening = self._run, self._opening
        start = manifest.bucket_end_offset
        if local is None or local.log_end_offset < start:
            epochs, producers = await self._state_at_remote_end(manifest)
            if local is None:
                local = await run(self._create_local, start)
            if local.log_end_offset != start or epochs.entries or producers:
                if not opening.tier.enabled:
                    await run(self._data_dir.forget_log_start, opening.topic, opening.partition)
                await run(local.start_at, start, epochs, producers)
        if opening.tier.enabled and manifest.remote_end_offset >= first_local_offset(local):
            # A log that was cut off in here before may have taken its first segment for its start.
            local.log_start_offset = min(manifest.log_start_offset, local.log_end_offset)
        start_at_least(local, manifest, tiered=opening.tier.enabled)
        await self._checkpoint(local)  # the first local segment does not tell where a tiered log starts
        opened = self._opened(local)
        async with given_up_on_failure(opened, self._world.workers):
            lost = await self._append_gaps(opened, manifest.reserved_end_offset)
            reserve = min(local.log_end_offset + self._limits.reservation_offsets, INT64_MAX)
            manifest = await self._manifests.commit(lambda m: m.reserve(reserve))
            reach("reserve.committed")
            await self._write_reservation(manifest.reserved_end_offset)
        local.reserved_end = manifest.reserved_end_offset
        return replace(opened, lost=lost)

    async def _append_gaps(self, opened: OpenedLog, reserved_end: int) -> tuple[int, int] | None:
        local = opened.log
        first = local.log_end_offset
        if first >= reserved_end:
            return None
        local.reserved_end = reserved_end
        try:
            for batch in gap_batches(first, reserved_end, self._opening.leader_epoch):
                local.append_gap(batch, self._world.clock.wall_ms())
            await opened.flusher.flush()
            reach("gap.appended")
            if self._opening.tier.enabled:
                # Sealed at once, so that its copy makes the manifest, and with it `tier status`, name the gap now.
                local.roll()
        except LogFull as full:
            raise OSError(errno.ENOSPC, str(full)) from full  # a shortage that passes: to be opened again, not offline
        return first, reserved_end

    async def _state_at_remote_end(self, manifest: Manifest) -> tuple[LeaderEpochs, Iterable[ProducerEntry]]:
        """Lineage and producers as of the cold end, from the footer of the last object; empty when there is none."""
        entry = await self._manifests.find(manifest.remote_end_offset - 1) if manifest.remote_end_offset else None
        if entry is None:
            return LeaderEpochs(), ()
        key = entry.key(self._opening.topic_id, self._opening.partition)
        try:
            async with asyncio.timeout(self._limits.store_timeout_s):
                footer = await fetch_footer(self._store, key, entry.object_bytes)
        except TimeoutError as late:
            raise StoreUnavailable(f"GET {key}: no answer in {self._limits.store_timeout_s} s") from late
        return footer.lineage, footer.producer_state().producers

    # ── pieces ───────────────────────────────────────────────────────────────────────────────────────────────────
    async def _open_local(self) -> PartitionLog:
        """Recovered. A log whose first segments only the bucket holds, because its topic was tiered until the last
        process ended, begins at its first local segment from now on: in the root, then here (KIP-950)."""
        try:
            return await self._run(self._recover)
        except MissingSegments as missing:
            await self._begin_at(missing)
        return await self._run(self._recover)

    async def _begin_at(self, missing: MissingSegments) -> None:
        """Move the log start behind segments that the bucket held; raises `missing` where it did not: they are lost."""
        first = missing.first
        try:
            manifest = await self._claimed()
        except RootMissing:
            raise missing from None
        if manifest.bucket_end_offset < first:
            raise missing
        if manifest.log_start_offset < first:
            await self._manifests.commit(lambda m: m.set_log_start(first))
        log.warning(
            "%s is not tiered any more: its log begins at offset %d, where its local files do", self._name, first
        )
        self._data_dir.believe_log_start(self._opening.topic, self._opening.partition, first)

    def _recover(self) -> PartitionLog:
        """Blocking: its checkpoints are as the data directory has them."""
        opening = self._opening
        local = self._data_dir.open_log(
            opening.topic,
            opening.partition,
            opening.log_config,
            now_ms=self._world.clock.wall_ms(),
            topic_id=opening.topic_id.bytes,
        )
        did = local.recovery
        if did.truncated_bytes:
            log.warning(
                "%s: %d bytes are cut off its damaged end, it ends at offset %d: %s",
                self._name,
                did.truncated_bytes,
                local.log_end_offset,
                did.truncated_reason,
            )
        return local

    def _create_local(self, start_offset: int) -> PartitionLog:
        opening = self._opening
        return self._data_dir.create_log(
            opening.topic,
            opening.partition,
            opening.topic_id.bytes,
            opening.log_config,
            start_offset=start_offset,
        )

    async def _write_reservation(self, reserved_end: int) -> None:
        opening = self._opening
        value = LocalReservation(
            opening.topic_id,
            opening.partition,
            reserved_end,
            opening.log_config.flush_sync,
            self._world.clock.boot_id(),
        )
        await self._run(write_reservation, self._world.disk, self._path, value)

    def _opened(self, local: PartitionLog) -> OpenedLog:
        flusher = Flusher(local, self._world.workers, self._sync_rounds, report=self._report)
        flusher.seal_soon()  # what found no space before
        return OpenedLog(local, flusher)
