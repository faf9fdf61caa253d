"""Copying one range of a log to the bucket: check, upload, commit, verify.

Owns one attempt at a time per partition: check, upload, commit. What fails before the upload left nothing; what fails
later left an object that may still appear: garbage. Always true: every batch's CRC was checked in the pass that made
the object's checksums (C12), the object's name is new, and only after the commit was read back and the object seen
again is the range noted as verified, which is what lets local bytes go. Memory is two pieces of 1 MiB, whatever the
segment's size. A failed attempt's object is deleted when no attempt of ours can still commit it, else left to gc
(C3). Must not know when to copy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from coldstore.keys import SegmentKey
from coldstore.manifest import EditRefused, Manifest, RemoteSegment
from coldstore.object_store import ObjectMissing, ObjectStore, StoreUnavailable, Upload
from coldstore.segment_object import build_footer, object_crc32c
from coldstore.segment_scanner import Scan, SegmentScanner
from hotstore.locator import ByteRange
from hotstore.partition_log import PartitionLog
from logformat.errors import Corrupt, Fenced, Retryable
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerState
from seams.crash_points import reach
from seams.disk import Buffer
from seams.workers import Lane
from tiering.copy_plan import CopyRange
from tiering.partition_state import Block, TieredPartition

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 1 << 20
READ_BACK_BYTES: Final = 8 << 20
GARBAGE_MAX: Final = 100  # failed attempts remembered for deletion; what goes beyond is left to gc


class Checked(NamedTuple):
    """A range that was read and proven: what follows it in the object, and the manifest's entry."""

    footer: bytes
    entry: RemoteSegment
    upload: Upload


@dataclass(slots=True)
class CopyCounters:
    """Totals of a broker, for metrics."""

    copied_bytes: int = 0
    copied_segments: int = 0
    copy_errors: int = 0
    verified_segments: int = 0
    garbage_objects: int = 0


class Copier:
    """Copies ranges of one partition. `copy` is never called twice at once."""

    def __init__(self, partition: TieredPartition, counters: CopyCounters) -> None:
        self._partition = partition
        self._counters = counters
        self._garbage: list[SegmentKey] = []

    async def copy(self, wanted: CopyRange) -> RemoteSegment:
        """Copy one range; the manifest names it when this returns, and it is verified unless the store did not answer
        that. Raises Retryable, Corrupt (local bytes are damaged), Fenced, OSError."""
        partition = self._partition
        key = SegmentKey(
            partition.topic_id, partition.partition, wanted.start_offset, partition.epoch, partition.world.rng.uuid()
        )
        copied = False
        try:
            entry = await self._attempt(key, wanted)
            copied = True
        finally:
            self._counters.copy_errors += not copied
        self._counters.copied_segments += 1
        self._counters.copied_bytes += entry.log_bytes
        await self._verify_after_commit(key, entry)
        return entry

    async def _attempt(self, key: SegmentKey, wanted: CopyRange) -> RemoteSegment:
        checked = await self._check(key, wanted)
        reach("copy.checked")
        committed = False
        try:
            await self._upload(key, checked.upload)
            reach("copy.uploaded")
            await self._commit(checked.entry)
            committed = True
        finally:
            if not committed:  # refused, cut off or unknown: the object may be there, and may still appear
                self._remember_garbage(key)
        reach("copy.committed")
        return checked.entry

    async def _commit(self, entry: RemoteSegment) -> None:
        partition = self._partition
        log_start = partition.log_start_offset

        def name_it(manifest: Manifest) -> Manifest:
            if entry.base_offset > manifest.remote_end_offset:
                manifest = manifest.set_log_start(log_start)  # all that is skipped lies below it
            return manifest.add(entry)

        try:
            await partition.commit(name_it)
        except EditRefused as refused:
            raise Retryable(f"{partition.name}: the manifest moved on: {refused}") from refused

    async def _check(self, key: SegmentKey, wanted: CopyRange) -> Checked:
        """First pass over the local bytes, in a worker: every batch, the checksums, the footer."""
        partition = self._partition
        local = partition.log
        ranges = local.batch_ranges(wanted.start_offset, wanted.end_offset)
        lineage = local.epochs.truncate_from_end(wanted.end_offset)
        return await partition.world.workers.run(
            check_range, local, key, partition.config.topic, tuple(ranges), wanted, lineage, lane=Lane.COPY
        )

    async def _upload(self, key: SegmentKey, upload: Upload) -> None:
        partition = self._partition
        try:
            async with asyncio.timeout(partition.limits.upload_timeout_s):
                info = await partition.store.put_segment(str(key), upload)
        except TimeoutError as late:
            raise StoreUnavailable(f"PUT {key}: no answer in {partition.limits.upload_timeout_s} s") from late
        if info.size != upload.size or info.crc32c not in (None, upload.crc32c):
            raise StoreUnavailable(f"PUT {key}: the store says {info.size} bytes, {upload.size} were sent")

    async def _verify_after_commit(self, key: SegmentKey, entry: RemoteSegment) -> None:
        """Failing to verify costs nothing but time: expiry verifies again before local bytes go."""
        try:
            await self.verify(entry, read_back=True)
        except (Corrupt, ObjectMissing) as damaged:
            log.error("%s: committed object %s is not what was sent: %s", self._partition.name, key, damaged)
        except Retryable as unanswered:
            log.warning("%s: %s not verified yet: %s", self._partition.name, key, unanswered)
        else:
            reach("copy.verified")

    async def verify(self, entry: RemoteSegment, *, read_back: bool = False) -> None:
        """See the object in the store, after the commit that names it; `read_back`: see the commit as well.

        Raises ObjectMissing or Corrupt (also noted as what blocks the partition), Retryable, Fenced.
        """
        partition = self._partition
        era = partition.verified.era
        try:
            async with asyncio.timeout(partition.limits.store_timeout_s):
                if read_back:
                    await partition.manifests.reload_if_changed()
                named = await partition.manifests.find(entry.base_offset)
            if named is None or named.uuid != entry.uuid:
                raise Corrupt(f"{partition.name}: the manifest does not name {entry.uuid} at {entry.base_offset}")
            key = str(entry.key(partition.topic_id, partition.partition))
            if partition.limits.verify_by_head:
                async with asyncio.timeout(partition.limits.store_timeout_s):
                    by_head = await verify_head(partition.store, key, entry)
            else:
                by_head = False
            if not by_head:
                await self._verify_whole(key, entry)
        except TimeoutError as late:
            raise StoreUnavailable(f"{partition.name}: verifying {entry.uuid} took too long") from late
        except (Corrupt, ObjectMissing) as damaged:
            if isinstance(damaged, ObjectMissing):
                await self._check_named(entry)
            partition.blocks[Block.DAMAGED] = str(damaged)
            raise
        partition.verified.note(entry, era)
        self._counters.verified_segments += 1

    async def _check_named(self, entry: RemoteSegment) -> None:
        """An object that is gone is damage only where the newest root still names it, and is ours: a newer leader may
        have deleted it (T4). Raises Fenced, Retryable."""
        partition = self._partition
        try:
            async with asyncio.timeout(partition.limits.store_timeout_s):
                await partition.manifests.reload_if_changed()
                named = await partition.manifests.find(entry.base_offset)
        except TimeoutError as late:
            raise StoreUnavailable(f"{partition.name}: reading the root took too long") from late
        manifest = partition.manifest
        if manifest is not None and manifest.leader_epoch > partition.epoch:
            raise partition.fence(
                Fenced(f"{partition.name}: epoch {partition.epoch} superseded by {manifest.leader_epoch}")
            )
        if named is None or named.uuid != entry.uuid:
            raise Retryable(f"{partition.name}: {entry.uuid} was expired while it was verified")

    async def _verify_whole(self, key: str, entry: RemoteSegment) -> None:
        partition = self._partition
        crc = position = 0
        while position < entry.object_bytes:
            length = min(READ_BACK_BYTES, entry.object_bytes - position)
            async with asyncio.timeout(partition.limits.store_timeout_s):
                got = await partition.store.get(key, position, length)
            if got.size != entry.object_bytes or len(got.data) != length:
                raise Corrupt(f"object {key} has {got.size} bytes, {entry.object_bytes} were written")
            crc = await partition.world.workers.run(crc32c, got.data, crc, lane=Lane.COPY)
            position += length
        if crc != entry.crc32c:
            raise Corrupt(f"object {key} has CRC32C {crc:#010x}, {entry.crc32c:#010x} was written")

    def _remember_garbage(self, key: SegmentKey) -> None:
        self._counters.garbage_objects += 1
        if len(self._garbage) < GARBAGE_MAX:
            self._garbage.append(key)

    @property
    def has_garbage(self) -> bool:
        """Whether failed attempts' objects wait for their deletion."""
        return bool(self._garbage)

    async def collect_garbage(self) -> None:
        """Delete what failed attempts left, where no commit of ours can still name it. Raises Retryable, Fenced."""
        partition = self._partition
        while self._garbage:
            key = self._garbage[-1]
            if await partition.manifests.may_delete(key):
                await partition.store.delete([str(key)])
            else:
                named = await partition.manifests.find(key.base_offset)
                if named is None or named.uuid != key.uuid:
                    return  # an attempt that names it may still land: ask again later
            self._garbage.pop()


async def verify_head(store: ObjectStore, key: str, entry: RemoteSegment) -> bool:
    """Whether a HEAD proved the object; False: the store keeps no CRC of it, read it. Raises Corrupt, ObjectMissing."""
    info = await store.head(key)
    if info.size != entry.object_bytes:
        raise Corrupt(f"object {key} has {info.size} bytes, {entry.object_bytes} were written")
    if info.crc32c is None:
        return False
    if info.crc32c != entry.crc32c:
        raise Corrupt(f"object {key} has CRC32C {info.crc32c:#010x}, {entry.crc32c:#010x} was written")
    return True


def check_range(
    local: PartitionLog,
    key: SegmentKey,
    topic: str,
    ranges: Sequence[ByteRange],
    wanted: CopyRange,
    lineage: LeaderEpochs,
) -> Checked:
    """Blocking: prove the range's bytes and make all that the object and the manifest say of them.

    Raises Corrupt with the offset of the first batch that is not what was appended; OSError.
    """
    scan = scan_range(ranges, wanted.start_offset, wanted.end_offset, lineage)
    producers = local.producer_snapshot_at(wanted.end_offset)
    if producers is None:
        # Recovery writes one for every roll point: somebody removed it. Records matter more than resends.
        log.warning("%s at %d: no producer state, resends will not be known after a lost disk", key, wanted.end_offset)
        producers = ProducerState(wanted.end_offset, ())
    footer = build_footer(key, topic, scan, lineage=lineage, producers=producers)
    size = scan.log_bytes + len(footer)
    crc = object_crc32c(scan.log_crc32c, footer)
    return Checked(footer, entry_of(key, scan, size, crc), Upload(size, crc, lambda: _body(ranges, footer)))


def scan_range(ranges: Sequence[ByteRange], start_offset: int, end_offset: int, lineage: LeaderEpochs) -> Scan:
    """Blocking: one pass in pieces of 1 MiB through one buffer."""
    scanner = SegmentScanner(start_offset, sum(r.length for r in ranges), lineage=lineage)
    buffer = memoryview(bytearray(PIECE_BYTES))
    for file, position, length in ranges:
        end = position + length
        while position < end:
            piece = buffer[: min(PIECE_BYTES, end - position)]
            if file.read_into(position, piece) != len(piece):
                raise Corrupt(f"{file.path}: ends before position {end}; the log says it holds more")
            scanner.feed(piece)
            position += len(piece)
    return scanner.finish(end_offset)


def entry_of(key: SegmentKey, scan: Scan, object_bytes: int, crc: int) -> RemoteSegment:
    """The manifest's entry for an object of `scan`'s bytes."""
    return RemoteSegment(
        uuid=key.uuid,
        base_offset=scan.base_offset,
        end_offset=scan.end_offset,
        leader_epoch=key.epoch,
        log_bytes=scan.log_bytes,
        object_bytes=object_bytes,
        records=scan.records,
        min_timestamp_ms=scan.min_timestamp_ms,
        max_timestamp_ms=scan.max_timestamp_ms,
        crc32c=crc,
        epochs=scan.epochs,
        gaps=scan.gaps,
    )


def _body(ranges: Sequence[ByteRange], footer: bytes) -> Iterator[Buffer]:
    """Second pass: the object's bytes. What changed since the first fails the checksum that travels with them."""
    for file, position, length in ranges:
        end = position + length
        while position < end:
            piece = file.read_at(position, min(PIECE_BYTES, end - position))
            if not piece:
                raise Corrupt(f"{file.path}: ends before position {end}; the log says it holds more")
            yield piece
            position += len(piece)
    yield footer
