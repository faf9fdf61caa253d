"""Loaded data of cold reads: open segments, checked chunks, and positions of batches.

Bounded LRU tables, no I/O. A segment is given to a read only if the manifest of that read names it: a segment that
compaction replaced is out of date, although its object exists until the grace is over. A chunk is pinned when it is
announced to a waiting reader: until it is read or 30 s pass, other chunks are evicted first. A prefetched chunk counts
as unread until it is read or dropped, or until 30 s pass. An answer in flight keeps its file even if the chunk is
dropped here (T23).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final

from coldstore.manifest.manifest import Manifest, PagePointer
from coldstore.segments.chunk_cache import MemoryFile
from seams.files.disk import FileRange
from tiering.reading.batch_slices import OpenSegment

SEGMENTS_BYTES_MAX: Final = 32 << 20  # bytes of footers: about 200 to 400 segments of 128 MiB
PLACES_MAX: Final = 16_384
# A chunk without disk space is in process memory, not in the page cache, so it counts as eight others.
_MEMORY_WEIGHT: Final = 8
CHUNKS_MAX: Final = 256  # each may keep a descriptor
PINNED_TIMES: Final = 4

# Ids are numbers because a fetch looks up dozens and a UUID is hashed by Python code (0.4 µs).
SegmentId = int  # RemoteSegment.uuid.int
ChunkId = tuple[SegmentId, int]  # segment, number of the chunk
LogPlace = tuple[int, int, int]  # topic_id.int, partition, offset


class HeldChunks:
    """Chunks by segment and number, at most `bytes_max` bytes. Pinned chunks may take `PINNED_TIMES` as much, so that
    one batch of that size fits. At most `unread_bytes_max` bytes of prefetched chunks wait for their readers."""

    def __init__(self, bytes_max: int, unread_bytes_max: int, pin_s: float) -> None:
        self._bytes_max = bytes_max
        self._pin_s = pin_s
        self._unread = Unread(unread_bytes_max, pin_s)
        self._bytes = 0
        self._free: OrderedDict[ChunkId, FileRange] = OrderedDict()
        self._pinned: OrderedDict[ChunkId, tuple[FileRange, float]] = OrderedDict()

    def __contains__(self, chunk_id: ChunkId) -> bool:
        return chunk_id in self._free or chunk_id in self._pinned

    def __len__(self) -> int:
        return len(self._free) + len(self._pinned)

    @property
    def nbytes(self) -> int:
        return self._bytes

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch whose chunks can be loaded all at once."""
        return PINNED_TIMES * self._bytes_max

    def room_ahead(self, now_s: float) -> int:
        """Bytes that may be prefetched now."""
        return self._unread.room(now_s)

    def peek(self, chunk_id: ChunkId) -> FileRange | None:
        """The chunk, without counting as a read of it."""
        pinned = self._pinned.get(chunk_id)
        return self._free.get(chunk_id) if pinned is None else pinned[0]

    def read(self, chunk_id: ChunkId) -> FileRange | None:
        """The chunk, for an answer; it is no longer pinned."""
        self._unread.read(chunk_id)
        pinned = self._pinned.pop(chunk_id, None)
        if pinned is not None:
            self._free[chunk_id] = pinned[0]
            return pinned[0]
        found = self._free.get(chunk_id)
        if found is not None:
            self._free.move_to_end(chunk_id)
        return found

    def sent(self, opened: OpenSegment, start: int, end: int) -> None:
        """The log bytes [start, end) of a segment are in an answer; chunks that end there are used up."""
        size, uuid = opened.footer.chunk_bytes, opened.entry.uuid.int
        for index in range(start // size, -(-end // size)):
            self.read((uuid, index))
            if end >= min((index + 1) * size, opened.footer.log_bytes):
                self.used_up((uuid, index))

    def add(self, chunk_id: ChunkId, chunk: FileRange, now_s: float, *, pinned: bool) -> None:
        """`pinned`: a reader waits for the chunk. Otherwise it was prefetched."""
        self.drop(chunk_id)
        self._bytes += _weight(chunk)
        if pinned:
            self._pinned[chunk_id] = (chunk, now_s)
        else:
            self._free[chunk_id] = chunk
            self._unread.add(chunk_id, chunk.length, now_s)
        self._unpin_old(now_s)
        while self._free and self._bytes > self._bytes_max:
            oldest = next(iter(self._free))
            if oldest == chunk_id:  # the newest chunk stays, even if it is too large
                break
            self.drop(oldest)
        while self._bytes > PINNED_TIMES * self._bytes_max or len(self) > CHUNKS_MAX:
            oldest = next(iter(self._free if self._free else self._pinned))
            if oldest == chunk_id:
                break
            self.drop(oldest)

    def pin(self, chunk_id: ChunkId, now_s: float) -> None:
        """Pin a chunk: a reader was notified that it is loaded, and has not read it yet."""
        found = self.read(chunk_id)
        if found is not None:
            del self._free[chunk_id]
            self._pinned[chunk_id] = (found, now_s)

    def used_up(self, chunk_id: ChunkId) -> None:
        """A sequential reader passed the chunk: evict it first."""
        if chunk_id in self._free:
            self._free.move_to_end(chunk_id, last=False)

    def drop(self, chunk_id: ChunkId) -> None:
        pinned = self._pinned.pop(chunk_id, None)
        chunk = self._free.pop(chunk_id, None) if pinned is None else pinned[0]
        if chunk is not None:
            self._bytes -= _weight(chunk)
            self._unread.read(chunk_id)

    def drop_segments(self, uuids: Collection[SegmentId]) -> None:
        for chunk_id in [chunk_id for chunk_id in (*self._free, *self._pinned) if chunk_id[0] in uuids]:
            self.drop(chunk_id)

    def _unpin_old(self, now_s: float) -> None:
        while self._pinned:
            chunk_id, (chunk, since_s) = next(iter(self._pinned.items()))
            if now_s - since_s < self._pin_s:
                return
            del self._pinned[chunk_id]
            self._free[chunk_id] = chunk
            self._free.move_to_end(chunk_id, last=False)


class Unread:
    """Prefetched chunks that no reader requested yet: at most `bytes_max`, each for at most `keep_s`."""

    def __init__(self, bytes_max: int, keep_s: float) -> None:
        self._bytes_max = bytes_max
        self._keep_s = keep_s
        self._bytes = 0
        self._chunks: OrderedDict[ChunkId, tuple[int, float]] = OrderedDict()

    @property
    def nbytes(self) -> int:
        return self._bytes

    def room(self, now_s: float) -> int:
        """Bytes that may be prefetched now. Drops expired chunks."""
        while self._chunks:
            length, since_s = next(iter(self._chunks.values()))
            if now_s - since_s < self._keep_s:
                break
            self._chunks.popitem(last=False)
            self._bytes -= length
        return self._bytes_max - self._bytes

    def add(self, chunk: ChunkId, length: int, now_s: float) -> None:
        self.read(chunk)
        self._chunks[chunk] = (length, now_s)
        self._bytes += length

    def read(self, chunk: ChunkId) -> None:
        """A reader requested the chunk, or it was dropped."""
        found = self._chunks.pop(chunk, None)
        if found is not None:
            self._bytes -= found[0]


class OpenSegments:
    """Segments with their footers, by id and by base offset; the time until which each object is assumed to exist; and
    the pages of the manifest that named it."""

    def __init__(self, bytes_max: int = SEGMENTS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._segments: OrderedDict[SegmentId, OpenSegment] = OrderedDict()
        self._bases: dict[LogPlace, SegmentId] = {}
        self._there_until_s: dict[SegmentId, float] = {}
        self._pages: dict[SegmentId, Sequence[PagePointer]] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def get(self, uuid: SegmentId) -> OpenSegment | None:
        found = self._segments.get(uuid)
        if found is not None:
            self._segments.move_to_end(uuid)
        return found

    def beginning_at(self, place: LogPlace) -> OpenSegment | None:
        """The open segment that begins at the offset of `place`."""
        uuid = self._bases.get(place)
        return None if uuid is None else self.get(uuid)

    def note_pages(self, uuid: SegmentId, pages: Sequence[PagePointer]) -> None:
        """A manifest with these pages names the segment."""
        if uuid in self._segments:
            self._pages[uuid] = pages

    def is_named(self, opened: OpenSegment, manifest: Manifest) -> bool:
        """Whether the manifest names the segment. False also if its pages changed: the segment's page is read again."""
        entry, tail = opened.entry, manifest.tail
        if tail and entry.base_offset >= tail[0].base_offset:
            at = manifest.tail_index(entry.base_offset)
            return at < len(tail) and tail[at].uuid == entry.uuid
        return self._pages.get(entry.uuid.int) == manifest.pages

    def add(self, opened: OpenSegment) -> None:
        uuid = opened.entry.uuid.int
        self.drop(uuid)
        self._segments[uuid] = opened
        self._bases[_base(opened)] = uuid
        self._bytes += opened.footer.nbytes
        while self._bytes > self._bytes_max and len(self._segments) > 1:
            self.drop(next(iter(self._segments)))

    def drop(self, uuid: SegmentId) -> None:
        opened = self._segments.pop(uuid, None)
        if opened is None:
            return
        self._bytes -= opened.footer.nbytes
        self._there_until_s.pop(uuid, None)
        self._pages.pop(uuid, None)
        if self._bases.get(_base(opened)) == uuid:
            del self._bases[_base(opened)]

    def seen(self, uuid: SegmentId, until_s: float) -> None:
        """The segment's object exists under its name; assume that until `until_s`."""
        if uuid in self._segments:
            self._there_until_s[uuid] = until_s

    def is_there(self, uuid: SegmentId, now_s: float) -> bool:
        """Whether the segment's object is assumed to exist under its name."""
        return self._there_until_s.get(uuid, float("-inf")) >= now_s


class Places:
    """Positions of batches that were requested or will be next: (segment, position) by offset."""

    def __init__(self, places_max: int = PLACES_MAX) -> None:
        self._places_max = places_max
        self._places: OrderedDict[LogPlace, tuple[SegmentId, int]] = OrderedDict()

    def get(self, place: LogPlace) -> tuple[SegmentId, int] | None:
        found = self._places.get(place)
        if found is not None:
            self._places.move_to_end(place)
        return found

    def add(self, place: LogPlace, uuid: SegmentId, position: int) -> None:
        self._places[place] = (uuid, position)
        self._places.move_to_end(place)
        if len(self._places) > self._places_max:
            self._places.popitem(last=False)

    def drop(self, place: LogPlace) -> None:
        self._places.pop(place, None)


class ChunkTable:
    """The three tables of one broker."""

    def __init__(self, bytes_max: int, unread_bytes_max: int, pin_s: float) -> None:
        self.chunks = HeldChunks(bytes_max, unread_bytes_max, pin_s)
        self.segments = OpenSegments()
        self.places = Places()

    def find(self, place: LogPlace, manifest: Manifest) -> tuple[OpenSegment, int] | None:
        """Segment and position of the batch that holds the offset, if known and named by `manifest`."""
        known = self.places.get(place)
        if known is not None:
            opened = self.segments.get(known[0])
            if opened is not None and self.segments.is_named(opened, manifest):
                return opened, known[1]
            self.places.drop(place)
        beginning = self.beginning_at(place, manifest)
        return None if beginning is None else (beginning, 0)

    def beginning_at(self, place: LogPlace, manifest: Manifest) -> OpenSegment | None:
        """The open segment that begins at the offset of `place`, if `manifest` names it."""
        opened = self.segments.beginning_at(place)
        return None if opened is None or not self.segments.is_named(opened, manifest) else opened

    def forget(self, uuids: Collection[SegmentId]) -> None:
        """The objects are, or will be, deleted."""
        for uuid in uuids:
            self.segments.drop(uuid)
        self.chunks.drop_segments(uuids)


def _base(opened: OpenSegment) -> LogPlace:
    return (opened.key.topic_id.int, opened.key.partition, opened.entry.base_offset)


def _weight(chunk: FileRange) -> int:
    return chunk.length * (_MEMORY_WEIGHT if isinstance(chunk.file, MemoryFile) else 1)
