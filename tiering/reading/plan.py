"""Plans a cold read: from an offset to ranges of files, or to the load that is needed first. Pure.

An answer begins and ends at batch borders, may cross chunks and segments, and has only bytes of checked chunks whose
object existed just before. Missing data is reported only if no answer is possible without it.

Hot path: an answer of 1 MiB costs about 20 µs.
"""

from __future__ import annotations

from typing import NamedTuple

from coldstore.manifest.manifest import Manifest
from logformat.errors import InvalidRequest, Retryable
from logformat.indexes.transaction_index import AbortedIndex
from logformat.record_batch import INT64_MAX
from seams.files.disk import FileRange
from tiering.reading.batch_slices import (
    NOTHING,
    PLACE_BYTES,
    BatchBorder,
    ColdSlice,
    OpenSegment,
    TooLarge,
    cut,
)
from tiering.reading.chunk_table import ChunkTable, LogPlace


class Missing(NamedTuple):
    """The needed load: chunk number `chunk` of `opened`; the place itself if `opened` is None."""

    place: LogPlace
    opened: OpenSegment | None
    chunk: int


class Answer(NamedTuple):
    """The ranges to send, empty if the first batch is too large, and the segment and place of their end."""

    found: ColdSlice
    opened: OpenSegment
    end: BatchBorder


class ChunkSpan:
    """The loaded contiguous chunks of a segment, from the one at `start` until `want` is reached."""

    __slots__ = ("_chunks", "_first", "_opened", "end")

    def __init__(self, table: ChunkTable, opened: OpenSegment, start: int, want: int, now_s: float) -> None:
        self._opened = opened
        self._first = index = opened.chunk_at(start)
        self._chunks: list[FileRange] = []
        self.end = start  # log bytes before it are loaded
        uuid = opened.entry.uuid.int
        if not table.segments.is_there(uuid, now_s):
            return
        while self.end < want:
            held = table.chunks.peek((uuid, index))
            if held is None:
                return
            self._chunks.append(held)
            self.end = index * opened.footer.chunk_bytes + held.length
            index += 1

    @property
    def next_chunk(self) -> int:
        """Number of the first chunk that is not loaded."""
        return self._first + len(self._chunks)

    def read(self, position: int, length: int) -> bytes:
        """Log bytes, from the page cache, on the loop."""
        parts: list[bytes] = []
        for part in self.ranges(position, position + length):
            data = part.file.read_at(part.position, part.length)
            if len(data) != part.length:
                raise Retryable(f"{self._opened.key} ended early at {position}; fetch again")
            parts.append(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def ranges(self, start: int, end: int) -> list[FileRange]:
        """File ranges of the log bytes [start, end)."""
        found: list[FileRange] = []
        size = self._opened.footer.chunk_bytes
        while start < end:
            index, skip = divmod(start, size)
            held = self._chunks[index - self._first]
            count = min(held.length - skip, end - start)
            found.append(FileRange(held.file, held.position + skip, count))
            start += count
        return found


def answer(
    table: ChunkTable,
    manifest: Manifest,
    place: LogPlace,
    bytes_max: int,
    min_one: bool,
    now_s: float,
    end_offset: int = INT64_MAX,
) -> Answer | Missing:
    """Whole batches from the one that holds `place`'s offset: at most `bytes_max` bytes; if `min_one`, the first batch
    may be larger. Only of segments that `manifest` names. No segment that begins at or above `end_offset` is added.

    Raises Corrupt where no batch can begin, InvalidRequest for a batch larger than can be loaded."""
    known = table.find(place, manifest)
    if known is None:
        return Missing(place, None, 0)
    opened, position = known
    end = BatchBorder(position, place[2])
    ranges: list[FileRange] = []
    aborted: dict[tuple[int, int], int] = {}  # the first offset, by producer id and marker
    total = 0
    while True:
        start = end.position
        part = _part(table, place, opened, start, bytes_max - total, min_one and not total, now_s)
        if isinstance(part, Missing) and not total:
            return part
        if part is None or isinstance(part, Missing):
            break
        span, end = part
        ranges += span.ranges(start, end.position)
        if opened.footer.aborted is not None:
            _unite(aborted, opened.footer.aborted, place[2], end.offset)
        table.chunks.sent(opened, start, end.position)
        total += end.position - start
        if end.position < opened.footer.log_bytes or total >= bytes_max or end.offset >= end_offset:
            break
        following = table.beginning_at((place[0], place[1], end.offset), manifest)
        if following is None:
            break
        opened, end = following, BatchBorder(0, end.offset)
    named = tuple((producer_id, first) for (producer_id, _), first in aborted.items())
    return Answer(ColdSlice(total, tuple(ranges), named) if total else NOTHING, opened, end)


def _unite(found: dict[tuple[int, int], int], aborted: AbortedIndex, first: int, end: int) -> None:
    """Add the aborted transactions to `found`, each marker once. Objects may have different beginnings of one
    transaction if a leader lost its producer state. A client removes one entry per marker, so it would mistake a second
    entry for a later transaction.
    """
    for entry in aborted.overlapping(first, end):
        key = entry.producer_id, entry.last_offset
        found[key] = min(entry.first_offset, found.get(key, entry.first_offset))


def _part(
    table: ChunkTable, place: LogPlace, opened: OpenSegment, start: int, room: int, force: bool, now_s: float
) -> tuple[ChunkSpan, BatchBorder] | Missing | None:
    """The answer's part in this segment from `start` on, and its end. None: the first batch does not fit."""
    if room <= 0 and not force:
        return None
    # Read the header even if the batch does not fit: it has the batch's size.
    want = min(start + max(room, PLACE_BYTES), opened.footer.log_bytes)
    span = ChunkSpan(table, opened, start, want, now_s)
    # None also if the header itself crosses into a chunk that is not loaded.
    found = None if span.end == start else cut(opened, start, min(want, span.end), span.read)
    if isinstance(found, TooLarge):
        size = found.end - start
        if size > room and not force:
            return None
        if size > table.chunks.batch_bytes_max:
            raise InvalidRequest(f"a batch of {size} bytes is more than cold reads hold at once")
        span = ChunkSpan(table, opened, start, found.end, now_s)
        found = BatchBorder(found.end, found.next_offset) if span.end >= found.end else None
    if found is None:
        return Missing(place, opened, span.next_chunk)
    return (span, found) if found.position - start <= room or force else None
