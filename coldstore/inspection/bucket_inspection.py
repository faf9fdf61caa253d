"""Inspection of a bucket, with or without a running broker: the I/O around `audit`.

The order of reads makes the results safe. For gc the listing is read first, root and pages after it (C2). For verify,
damage is read again: a commit of a running broker may look like damage. Only `delete` changes the bucket: it deletes a
plan's deletable objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final
from uuid import UUID

import msgspec
from crc32c import crc32c

from coldstore.checked_get import get_range
from coldstore.inspection.audit import (
    Finding,
    FindingKind,
    GcPlan,
    NamedKeys,
    audit_chunks,
    audit_footer,
    audit_listing,
    audit_manifest,
    audit_scan,
    gc_plan,
    named_by,
    orphan_findings,
    partitions_in,
)
from coldstore.inspection.marker_audit import MarkerWalk
from coldstore.inspection.orphan_safety import keep_by_manifest
from coldstore.keys import TOPICS_PREFIX, PageKey, SegmentKey, parse_key, partition_prefix
from coldstore.manifest.manifest import Manifest, RemoteSegment
from coldstore.manifest.manifest_reader import ManifestReader
from coldstore.object_store import ObjectInfo, ObjectMissing, ObjectStore
from coldstore.segments.segment_object import SegmentFooter
from coldstore.segments.segment_reader import chunk_ref, fetch_footer
from coldstore.segments.segment_scanner import SegmentScanner
from logformat.errors import Corrupt
from logformat.values import NewerFormat
from seams.loop.workers import Lane, Workers

_VERIFY_TRIES: Final = 3  # views read until two in a row are equal, while a broker commits
_DELETE_AT_ONCE: Final = 1000
_DIFFERENCES_MAX: Final = 100  # reported for one object
_GC_PIECE: Final = 10_000  # listed objects in one piece: ten LISTs, a few MB


class PartitionView(msgspec.Struct, frozen=True):
    """A partition's manifest with its live segments in order, and the lengths of its pages by key."""

    manifest: Manifest
    live: tuple[RemoteSegment, ...]
    page_sizes: dict[str, int]

    def key(self, segment: RemoteSegment) -> SegmentKey:
        return segment.key(self.manifest.topic_id, self.manifest.partition)

    @property
    def named(self) -> NamedKeys:
        return named_by(self.manifest, self.live, self.page_sizes)


class BucketInspector:
    """Reads partitions of the bucket behind `store`."""

    def __init__(self, store: ObjectStore, workers: Workers) -> None:
        self._store = store
        self._workers = workers

    async def partitions(self) -> Sequence[tuple[UUID, int]]:
        """The partitions (topic id, index) of all keys below `topics/`, sorted, also those without a root. This takes
        one listing."""
        return list(partitions_in([info.key async for info in self._store.list(TOPICS_PREFIX)]))

    async def view(self, topic_id: UUID, partition: int) -> PartitionView | None:
        """The partition's current root and pages; None if it has no root.

        Raises Corrupt, NewerFormat, ObjectMissing (a page is gone), StoreError."""
        for attempt in range(_VERIFY_TRIES):
            reader = ManifestReader(self._store, topic_id, partition, workers=self._workers)
            manifest = await reader.load()
            if manifest is None:
                return None
            try:
                live = (await reader.segments(manifest, 0, manifest.remote_end_offset)).segments
                return PartitionView(manifest, live, await reader.page_sizes(manifest))
            except ObjectMissing:  # the page was replaced meanwhile: a new root names another one
                if attempt + 1 == _VERIFY_TRIES:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def plan_gc(self, topic_id: UUID, partition: int, *, piece_deadline_s: float | None = None) -> GcPlan:
        """The plan for listed objects that root and pages, read after the listing, do not name. Raises the errors of
        `view`, and TimeoutError if a piece takes too long.

        The listing is processed in pieces, so memory does not grow with the partition. For each piece the root is read
        again: an object that this root does not name cannot be named later."""
        reader = ManifestReader(self._store, topic_id, partition, workers=self._workers)
        listing = self._store.list(partition_prefix(topic_id, partition))
        plan = GcPlan((), (), ())
        while True:
            async with asyncio.timeout(piece_deadline_s):
                piece = [info async for info in _first(listing, _GC_PIECE)]
                if not piece:
                    return plan
                plan += await self._workers.run(gc_plan, piece, await self._named(reader, piece))

    async def _named(self, reader: ManifestReader, piece: Sequence[ObjectInfo]) -> NamedKeys | None:
        """The keys that the current root names in the range of `piece`; None without a root."""
        bases, has_pages = await self._workers.run(_places, piece)
        for attempt in range(_VERIFY_TRIES):
            manifest = await reader.load()
            if manifest is None:
                return None
            try:
                live = (await reader.segments(manifest, min(bases), max(bases) + 1)).segments if bases else ()
                pages = await reader.page_sizes(manifest) if has_pages else {}
                return await self._workers.run(named_by, manifest, live, pages)
            except ObjectMissing:  # the page was replaced meanwhile: a new root names another one
                if attempt + 1 == _VERIFY_TRIES:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def delete(self, plan: GcPlan, may_send: Callable[[], None] = lambda: None) -> int:
        """Delete the plan's deletable objects. Returns their number. A store may falsely report success; only a new
        listing proves a deletion. `may_send` is called before each request."""
        keys = [info.key for info in plan.deletable]
        for at in range(0, len(keys), _DELETE_AT_ONCE):
            may_send()
            await self._store.delete(keys[at : at + _DELETE_AT_ONCE])
        return len(keys)

    async def verify(self, topic_id: UUID, partition: int, *, deep: bool = False) -> list[Finding]:
        """All findings of one partition. With `deep` every byte is read. Damage in the manifest is read again before it
        is reported.

        Raises NewerFormat (an unknown format is not damage), StoreError."""
        try:
            view, plan, findings = await self._compare(topic_id, partition)
            for _ in range(_VERIFY_TRIES - 1):
                if not any(finding.kind.is_damage for finding in findings):
                    break
                before = view
                view, plan, findings = await self._compare(topic_id, partition)
                if view == before:
                    break
            findings += orphan_findings(await keep_by_manifest(self._store, topic_id, partition, plan, self._workers))
        except NewerFormat:
            raise
        except (Corrupt, ObjectMissing) as broken:
            return [Finding(FindingKind.UNREADABLE, None, None, str(broken))]
        if view is None:
            return findings
        known = {finding.key for finding in findings if finding.kind.is_damage}
        for segment in view.live:
            key = view.key(segment)
            # Objects below the log start are not checked, because they may be deleted at any moment.
            if str(key) not in known and segment.end_offset > view.manifest.log_start_offset:
                findings += await self._verify_segment(key, segment, deep=deep)
        return await self._without_expired(topic_id, partition, findings)

    async def _compare(self, topic_id: UUID, partition: int) -> tuple[PartitionView | None, GcPlan, list[Finding]]:
        """One view of the partition, its unnamed objects, and the findings."""
        listing = await self._list(topic_id, partition)
        view = await self.view(topic_id, partition)
        if view is None:
            return None, gc_plan(listing, None), []
        findings = audit_manifest(view.manifest, view.live)
        findings += audit_listing(view.manifest, view.live, view.page_sizes, listing)
        return view, gc_plan(listing, view.named), findings

    async def _without_expired(self, topic_id: UUID, partition: int, findings: list[Finding]) -> list[Finding]:
        """Drop the damage of objects that are not named any more, because they expired during the check."""
        if not any(finding.kind.is_damage and finding.key is not None for finding in findings):
            return findings
        view = await self.view(topic_id, partition)
        named = frozenset() if view is None else view.named.keys
        return [f for f in findings if not f.kind.is_damage or f.key is None or f.key in named]

    async def _verify_segment(self, key: SegmentKey, entry: RemoteSegment, *, deep: bool) -> list[Finding]:
        try:
            footer = await fetch_footer(self._store, key, entry.object_bytes, entry.log_bytes)
        except NewerFormat:
            raise
        except Corrupt as broken:
            return [Finding(FindingKind.DAMAGED, str(key), entry.base_offset, str(broken))]
        except ObjectMissing as gone:
            return [Finding(FindingKind.MISSING, str(key), entry.base_offset, str(gone))]
        findings = audit_footer(key, entry, footer)
        return findings + (await self._read_all(key, footer) if deep else [])

    async def _read_all(self, key: SegmentKey, footer: SegmentFooter) -> list[Finding]:
        """Check the CRC of every chunk and batch, the leader epochs, and section 7 against the markers."""
        said = footer.statistics
        scanner = SegmentScanner(
            said.base_offset, footer.log_bytes, lineage=footer.lineage, chunk_bytes=footer.chunk_bytes
        )
        markers = MarkerWalk()
        try:
            async for data in self.log_bytes(key, footer):
                await self._workers.run(scanner.feed, data, lane=Lane.COLD_READ)
                await self._workers.run(markers.feed, data, lane=Lane.COLD_READ)
            scan = scanner.finish(said.end_offset)
        except Corrupt as broken:
            # The scan ended at the first bad batch. The CRCs of chunks show further damage.
            crcs = [await self._chunk_crc(key, footer, index) for index in range(len(footer.chunk_crcs))]
            found = audit_chunks(key, footer, crcs)
            return found or [Finding(FindingKind.DAMAGED, str(key), scanner.next_offset, str(broken))]
        except ObjectMissing as gone:
            return [Finding(FindingKind.MISSING, str(key), said.base_offset, str(gone))]
        differing = markers.differences(footer)[:_DIFFERENCES_MAX]
        return (
            audit_chunks(key, footer, scan.chunk_crcs)
            or audit_scan(key, footer, scan)
            or [Finding(FindingKind.DAMAGED, str(key), said.base_offset, text) for text in differing]
        )

    async def log_bytes(self, key: SegmentKey, footer: SegmentFooter) -> AsyncIterator[bytes]:
        """The object's log bytes by chunks, unchecked."""
        for index in range(len(footer.chunk_crcs)):
            chunk = chunk_ref(footer, key, index)
            yield (await get_range(self._store, str(key), chunk.position, chunk.length)).data

    async def _chunk_crc(self, key: SegmentKey, footer: SegmentFooter, index: int) -> int:
        chunk = chunk_ref(footer, key, index)
        got = await get_range(self._store, str(key), chunk.position, chunk.length)
        value: int = await self._workers.run(crc32c, got.data, lane=Lane.COLD_READ)
        return value

    async def _list(self, topic_id: UUID, partition: int) -> list[ObjectInfo]:
        return [info async for info in self._store.list(partition_prefix(topic_id, partition))]


def _places(piece: Sequence[ObjectInfo]) -> tuple[list[int], bool]:
    """Base offsets of the segments among `piece`, and whether there are pages."""
    keys = [parse_key(info.key) for info in piece]
    bases = [key.base_offset for key in keys if isinstance(key, SegmentKey)]
    return bases, any(isinstance(key, PageKey) for key in keys)


async def _first(listing: AsyncIterator[ObjectInfo], count: int) -> AsyncIterator[ObjectInfo]:
    """The next `count` objects of a listing; fewer at its end."""
    while count and (info := await anext(listing, None)) is not None:
        count -= 1
        yield info
