"""Copies one range of a log to the bucket: upload, commit to the manifest, verify.

Every batch's CRC is checked in the pass that computes the object's checksums (C12, `segment_body`). The store confirms
them before the commit, and the object's name is new. The range is verified, so that local bytes may be deleted, only
after the commit was read back and the object seen again. The object of a failed attempt may appear later. It is deleted
once no attempt of ours can commit it; otherwise gc deletes it (C3).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest import EditRefused, Manifest, RemoteSegment
from coldstore.object_store import ObjectMissing, ObjectStore, StoreUnavailable, Upload, answered_within
from coldstore.segments.segment_sections import FooterOutgrown
from logformat.errors import Corrupt, Retryable
from seams.crash_points import reach
from seams.loop.workers import Lane
from tiering.copying.copy_plan import CopyRange
from tiering.copying.segment_body import Body, ProvenBody, RangeChanged, SegmentSource, checked_body, source_of
from tiering.partition_state import Block, TieredPartition

log = logging.getLogger(__name__)

READ_BACK_BYTES: Final = 8 << 20
GARBAGE_MAX: Final = 100  # failed attempts remembered for deletion; gc deletes the others


class NoLongerLive(Retryable):
    """The object was replaced by compaction, or expired, while it was verified: verify what the manifest names now."""


@dataclass(slots=True)
class CopyCounters:
    """Totals of a broker, for metrics."""

    copied_bytes: int = 0
    copied_segments: int = 0
    copy_errors: int = 0
    verified_segments: int = 0
    garbage_objects: int = 0


class Copier:
    """Copies ranges of one partition. `copy` never runs twice at once."""

    def __init__(self, partition: TieredPartition, counters: CopyCounters) -> None:
        self._partition = partition
        self._counters = counters
        self._garbage: list[SegmentKey] = []

    async def copy(self, wanted: CopyRange) -> RemoteSegment:
        """Copy one range. When this returns, the manifest names the object. The object is verified unless the store did
        not answer.

        Raises Retryable, Corrupt (local bytes are damaged), Fenced, OSError."""
        partition = self._partition
        copied = False
        try:
            try:
                entry = await self._attempt(wanted, one_pass=partition.limits.one_pass)
            except FooterOutgrown as outgrown:
                log.info("%s: %s; reading the range twice", partition.name, outgrown)
                entry = await self._attempt(wanted, one_pass=False)
            copied = True
        finally:
            self._counters.copy_errors += not copied
        self._counters.copied_segments += 1
        self._counters.copied_bytes += entry.log_bytes
        await self.verify_committed((entry,))
        return entry

    async def _attempt(self, wanted: CopyRange, *, one_pass: bool) -> RemoteSegment:
        partition = self._partition
        key = SegmentKey(
            partition.topic_id, partition.partition, wanted.start_offset, partition.epoch, partition.world.rng.uuid()
        )
        switch_offs = partition.switch_offs
        source = await self._source(wanted)
        try:
            return await self._send(key, source, one_pass, switch_offs)
        finally:
            source.release_files()

    async def _send(self, key: SegmentKey, source: SegmentSource, one_pass: bool, switch_offs: int) -> RemoteSegment:
        make: Callable[[SegmentKey, SegmentSource], Body | ProvenBody] = ProvenBody if one_pass else checked_body
        body = await self._partition.world.workers.run(make, key, source, lane=Lane.COPY)
        committed = False
        try:
            await self.upload(key, body.upload)
            reach("copy.uploaded")
            await self._commit(body.entry, switch_offs)
            committed = True
        finally:
            if not committed:  # refused, cancelled or unknown: the object may exist, or appear later
                self.remember_garbage(key)
        reach("copy.committed")
        return body.entry

    async def _commit(self, entry: RemoteSegment, switch_offs: int) -> None:
        partition = self._partition

        def name_it(manifest: Manifest) -> Manifest:
            if not partition.config.enabled or partition.switch_offs != switch_offs:
                # Compaction may have removed tombstones of records in the object from the local log since (ADR 32).
                raise RangeChanged(f"{partition.name}: tiering was switched off during the copy of {entry.base_offset}")
            # With the log start: all offsets that the copy skips are below it, and deleted records may be in the
            # object. The start may move on the disk alone until this attempt is made, but not while it is pending.
            return manifest.set_log_start(partition.log_start_offset).add(entry)

        try:
            await partition.commit(name_it)
        except EditRefused as refused:
            raise Retryable(f"{partition.name}: the manifest changed meanwhile: {refused}") from refused

    async def _source(self, wanted: CopyRange) -> SegmentSource:
        partition = self._partition
        partition.lease.check()
        local = partition.log
        lineage = local.epochs.truncate_from_end(wanted.end_offset)
        aborted = local.aborted_between(wanted.start_offset, wanted.end_offset)
        return await partition.lease.call(
            source_of, local, partition.config.topic, wanted, lineage, aborted, lane=Lane.COPY
        )

    async def upload(self, key: SegmentKey, upload: Upload) -> None:
        """Upload an object within the time-out, and compare its size and checksum in the store's answer. Raises
        Retryable."""
        partition = self._partition
        async with answered_within(partition.limits.upload_timeout_s, f"PUT {key}"):
            info = await partition.store.put_segment(str(key), upload)
        if info.size != upload.size or info.crc32c not in (None, upload.checksum()):
            raise StoreUnavailable(f"PUT {key}: the store reports {info.size} bytes, but {upload.size} were sent")

    async def verify_committed(self, entries: Sequence[RemoteSegment]) -> None:
        """Verify the objects of one commit, and read the commit back once. A failure is harmless, because expiry
        verifies again before local bytes are deleted. Raises Fenced."""
        is_read_back = False
        for entry in entries:
            try:
                await self.verify(entry, read_back=not is_read_back)
            except (Corrupt, ObjectMissing) as damaged:
                name = self._partition.name
                log.error("%s: committed object %s differs from its source: %s", name, entry.uuid, damaged)
            except Retryable as unanswered:
                log.warning("%s: %s not verified yet: %s", self._partition.name, entry.uuid, unanswered)
            else:
                is_read_back = True
                reach("copy.verified")

    async def verify(self, entry: RemoteSegment, *, read_back: bool = False) -> None:
        """Check the object in the store, after the commit that names it; `read_back`: check the commit too.

        Raises ObjectMissing or Corrupt (which also block the partition), Retryable, Fenced."""
        partition = self._partition
        era = partition.verified.era
        if partition.manifests.unanswered.withdraws:
            raise Retryable(f"{partition.name}: a commit with unknown outcome may withdraw {entry.uuid}")
        try:
            async with asyncio.timeout(partition.limits.store_timeout_s):
                if read_back:
                    await partition.manifests.reload_if_changed()
                named = await partition.manifests.find(entry.base_offset)
            partition.check_not_fenced()  # an object that a newer leader expired is not damaged
            if named is None or named.uuid != entry.uuid:
                self._check_live(entry)
                if partition.verified.era != era:
                    raise Retryable(f"{partition.name}: {entry.uuid} was withdrawn while it was verified")
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
                await self._check_still_live(entry)
            partition.blocks[Block.DAMAGED] = str(damaged)
            raise
        self._check_live(entry)  # otherwise it would count as verified, and its replacement may be damaged
        partition.verified.note(entry, era)
        partition.on_verified()
        self._counters.verified_segments += 1

    async def _check_still_live(self, entry: RemoteSegment) -> None:
        """Check that a missing object is damage. Raises as `TieredPartition.is_live`, Retryable, NoLongerLive."""
        is_live = await self._partition.is_live(entry)
        self._check_live(entry)
        if not is_live:
            raise Retryable(f"{self._partition.name}: the manifest no longer names {entry.uuid}")

    def _check_live(self, entry: RemoteSegment) -> None:
        """Check that the object was not replaced, and is not expired, as far as this process knows. Raises
        NoLongerLive."""
        partition, manifest = self._partition, self._partition.manifest
        if entry.end_offset <= partition.log_start_offset:
            raise NoLongerLive(f"{partition.name}: {entry.uuid} was expired while it was verified")
        is_replaced = manifest is not None and manifest.was_replaced(entry.uuid)
        if is_replaced or entry.uuid in partition.manifests.unanswered.replaces:
            raise NoLongerLive(f"{partition.name}: {entry.uuid} was replaced while it was verified")

    async def _verify_whole(self, key: str, entry: RemoteSegment) -> None:
        partition = self._partition
        crc = position = 0
        while position < entry.object_bytes:
            length = min(READ_BACK_BYTES, entry.object_bytes - position)
            async with asyncio.timeout(partition.limits.store_timeout_s):
                got = await partition.store.get(key, position, length)
            if got.size != entry.object_bytes or len(got.data) != length:
                raise Corrupt(f"object {key} has {got.size} bytes, but {entry.object_bytes} were written")
            crc = await partition.world.workers.run(crc32c, got.data, crc, lane=Lane.COPY)
            position += length
        if crc != entry.crc32c:
            raise Corrupt(f"object {key} has CRC32C {crc:#010x}, but {entry.crc32c:#010x} was written")

    def remember_garbage(self, key: SegmentKey) -> None:
        """Note an object for deletion: its commit failed or has an unknown outcome, and the object may exist or appear
        later."""
        self._counters.garbage_objects += 1
        if len(self._garbage) < GARBAGE_MAX:
            self._garbage.append(key)

    @property
    def has_garbage(self) -> bool:
        """Whether objects of failed attempts have to be deleted."""
        return bool(self._garbage)

    async def collect_garbage(self) -> None:
        """Delete objects of failed attempts that no commit of ours can still name. Raises Retryable, Fenced."""
        partition = self._partition
        while self._garbage:
            key = self._garbage[-1]
            if await partition.manifests.may_delete(key):
                partition.check_fresh()
                await partition.store.delete([str(key)])
            else:
                named, manifest = await partition.manifests.find(key.base_offset), partition.manifest
                is_replaced = manifest is not None and manifest.was_replaced(key.uuid)  # the grace deletes it
                if not is_replaced and (named is None or named.uuid != key.uuid):
                    return  # a commit that names it may still arrive: try again later
            self._garbage.remove(key)  # others may have been added


async def verify_head(store: ObjectStore, key: str, entry: RemoteSegment) -> bool:
    """Whether a HEAD proved the object; False: the store keeps no CRC, so the object must be read. Raises Corrupt,
    ObjectMissing."""
    info = await store.head(key)
    if info.size != entry.object_bytes:
        raise Corrupt(f"object {key} has {info.size} bytes, but {entry.object_bytes} were written")
    if info.crc32c is None:
        return False
    if info.crc32c != entry.crc32c:
        raise Corrupt(f"object {key} has CRC32C {info.crc32c:#010x}, but {entry.crc32c:#010x} was written")
    return True
