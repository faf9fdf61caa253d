"""Read-only access to one partition's manifest: its root, and its segments by offset and time.

A returned manifest passed its checks and belongs to the partition. `segments` accounts for every offset of its range:
the offset is in a returned segment, or in a page that was skipped because of its times. The reader needs only a
`ReadStore`, because Spark executors may not write.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from coldstore.keys import manifest_key
from coldstore.manifest.manifest import Manifest, PagePointer, RemoteSegment
from coldstore.manifest.manifest_format import MANIFEST_FORMAT
from coldstore.manifest.page_reader import PageCache, PageReader
from coldstore.object_store import ObjectMissing, ReadStore
from coldstore.roots.root_format import Root, RootCodec
from coldstore.roots.root_reading import read_root
from logformat.errors import Corrupt
from seams.loop.workers import Workers


def check_manifest_root(key: str, root: Root[Manifest], topic_id: UUID, partition: int) -> None:
    """Raise Corrupt unless the root under `key` is a possible manifest of this partition."""
    content = root.content
    content.check()
    if (content.topic_id, content.partition) != (topic_id, partition):
        raise Corrupt(f"{key} holds the manifest of {content.topic_id}/{content.partition}")
    if content.leader_epoch != root.epoch:
        raise Corrupt(f"{key} has epoch {root.epoch}, but its manifest has epoch {content.leader_epoch}")


class LiveSegments(msgspec.Struct, frozen=True):
    """Live segments of a range, in order. `skipped`: ranges of pages that were not read because of their times."""

    segments: tuple[RemoteSegment, ...]
    skipped: tuple[tuple[int, int], ...] = ()


class ManifestReader:
    """The manifest of `partition` of the topic `topic_id`, read only."""

    def __init__(
        self,
        store: ReadStore,
        topic_id: UUID,
        partition: int,
        *,
        page_cache: PageCache | None = None,
        workers: Workers | None = None,
    ) -> None:
        self._store = store
        self._key = manifest_key(topic_id, partition)
        self._pages = PageReader(store, topic_id, partition, PageCache() if page_cache is None else page_cache, workers)
        self._place = (topic_id, partition)
        self._codec: RootCodec[Manifest] = RootCodec(MANIFEST_FORMAT, self._validate)
        self._root: Root[Manifest] | None = None

    def _validate(self, root: Root[Manifest]) -> None:
        check_manifest_root(self._key, root, *self._place)

    async def load(self) -> Manifest | None:
        """Read the current manifest, by a conditional GET if an older one is known. None if the partition has no
        manifest.

        Raises Corrupt, NewerFormat, StoreError, AccessRefused."""
        try:
            got = None
            if self._root is not None:
                got = await self._store.get_if_changed(self._key, self._root.etag)
                if got is None:
                    return self._root.content
            found = await read_root(self._store, self._key, self._codec.decode, got)
        except ObjectMissing:
            self._root = None
            return None
        if self._root is not None and found.version < self._root.version:
            raise Corrupt(
                f"root {self._key} fell from version {self._root.version} to {found.version}; was the bucket restored "
                "to an earlier state? Read it again"
            )
        self._root = found
        return found.content

    async def segments(
        self,
        manifest: Manifest,
        start: int,
        end: int,
        *,
        min_timestamp_ms: int | None = None,
        horizon_ms: int | None = None,
    ) -> LiveSegments:
        """Segments of `manifest` that overlap `[start, end)`. Times may exclude segments without wanted records.

        Two kinds of segments may be skipped: those without a record of `min_timestamp_ms` or later, and those whose
        batches all begin at `horizon_ms` or later. For `horizon_ms` the caller must allow for records that are older
        than the first record of their batch. Only complete pages are skipped (`skipped`). A page that is read gives
        every overlapping segment. Raises ObjectMissing for a page that a newer root replaced (the caller loads again),
        Corrupt, NewerFormat, StoreError.
        """
        start = max(start, manifest.deletion_cursor)
        found: list[RemoteSegment] = []
        skipped: list[tuple[int, int]] = []
        async for pointer in self._pages.leaves(manifest.pages, start):
            if pointer.first_offset >= end:
                break
            if _is_outside(pointer, min_timestamp_ms, horizon_ms):
                skipped.append((pointer.first_offset, pointer.end_offset))
                continue
            page = await self._pages.segments(pointer)
            found += await self._pages.blocking(page.between, start, end)
        for segment in manifest.tail[manifest.tail_index(start) :]:
            if segment.base_offset >= end:
                break
            found.append(segment)
        return LiveSegments(tuple(found), tuple(skipped))

    async def page_sizes(self, manifest: Manifest) -> dict[str, int]:
        """Length in bytes, by key, of all pages that `manifest` names directly or through a pointer page. Raises the
        errors of `segments`."""
        pointers = list(manifest.pages)
        for pointer in manifest.pages:
            if pointer.level:
                pointers.extend((await self._pages.pointers(pointer)).pointers)
        return {str(pointer.key(*self._place)): pointer.length for pointer in pointers}


def _is_outside(pointer: PagePointer, min_timestamp_ms: int | None, horizon_ms: int | None) -> bool:
    # If a segment of the page has no timestamp, the page's minimum is −1, and only its maximum can exclude it.
    too_old = min_timestamp_ms is not None and pointer.max_timestamp_ms < min_timestamp_ms
    return too_old or (horizon_ms is not None and pointer.min_timestamp_ms >= horizon_ms)
