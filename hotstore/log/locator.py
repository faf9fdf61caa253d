"""Segments of one log in order, and remembered positions of offsets in their files.

Two bounded maps from offsets to positions save index look-ups. The ends of recent appends are for tail readers and the
high watermark, which is the end of an append. The ends of recent reads are for sequential readers. A batch with exactly
the remembered offset begins at a remembered position. Segments are contiguous. The last one is active.

`slice` runs on the loop, so it uses only indexes in memory. If it needs another one, it raises IndexNeeded.

Hot path: a `slice` takes about 3 µs with a remembered position.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from hotstore.errors import DamagedLog
from hotstore.log.batch_walk import find_batch, whole_batches
from hotstore.log.segment import IndexCache, LoadedIndexes, Segment, SegmentIndexes
from logformat.indexes.offset_index import OffsetIndex
from logformat.indexes.time_index import TimeIndex
from seams.files.disk import File, FileRange

APPEND_ENDS_MAX: Final = 1024  # remembered ends of appends, 0.1 MB a log; a reader further behind uses the index
READ_ENDS_MAX: Final = 128  # remembered ends of reads, one for each sequential reader of a log


class LogSlice(NamedTuple):
    """Complete batches to send. `sealed`: they may not be in the page cache (C25). `cut`: more batches follow that the
    reader may read."""

    file: File
    position: int
    length: int
    segment_base: int
    sealed: bool
    cut: bool


class Locator:
    """Segments and positions of one log."""

    __slots__ = ("_append_ends", "_bases", "_loaded", "_read_ends", "cache", "segments")

    def __init__(self, segments: Sequence[Segment], cache: IndexCache) -> None:
        assert segments
        self.segments: list[Segment] = list(segments)
        self.cache = cache
        self._loaded = LoadedIndexes(cache)
        self._bases = [segment.base_offset for segment in segments]
        self._append_ends: dict[int, int] = {}
        self._read_ends: dict[int, int] = {}

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    def add(self, segment: Segment) -> None:
        """Add a new active segment at the log's end."""
        assert segment.base_offset >= self.segments[-1].end_offset, (segment, self.segments[-1])
        self.segments.append(segment)
        self._bases.append(segment.base_offset)
        # The remembered position of the log's end is that in the old file.
        self._append_ends[segment.base_offset] = 0
        self._read_ends.pop(segment.base_offset, None)

    def drop_first(self, count: int) -> list[Segment]:
        """Remove and return the oldest `count` segments."""
        dropped = self.segments[:count]
        del self.segments[:count], self._bases[:count]
        for segment in dropped:
            self.cache.drop(segment)
        return dropped

    def replace(self, segments: Sequence[Segment]) -> None:
        """Take other segments after a truncation, and forget all positions."""
        for segment in self.segments:
            self.cache.drop(segment)
        self.segments[:] = segments
        self._bases[:] = [segment.base_offset for segment in segments]
        self._append_ends.clear()
        self._read_ends.clear()

    def swap(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace the run of sealed segments `old` by `new`, which covers their offsets."""
        at = self.segments.index(old[0])
        for segment in old:
            self.cache.drop(segment)
        self.segments[at : at + len(old)] = [new]
        self._bases[at : at + len(old)] = [new.base_offset]
        for ends in (self._append_ends, self._read_ends):
            for offset in [offset for offset in ends if new.base_offset <= offset < new.end_offset]:
                del ends[offset]

    def appended(self, end_offset: int, end_position: int) -> None:
        """Batches were written to the active segment up to `end_position`."""
        ends = self._append_ends
        ends[end_offset] = end_position
        if len(ends) > APPEND_ENDS_MAX:
            self._append_ends = dict(islice(ends.items(), APPEND_ENDS_MAX // 2, None))

    def segment_of(self, offset: int) -> Segment:
        """The last segment whose base is ≤ `offset`."""
        active = self.segments[-1]
        if offset >= active.base_offset:
            return active
        return self.segments[bisect_right(self._bases, offset) - 1]

    def between(self, start: int, end: int) -> list[Segment]:
        """The segments that may hold offsets of [start, end)."""
        first = max(bisect_right(self._bases, start) - 1, 0)
        return self.segments[first : bisect_left(self._bases, end)]

    def from_offset(self, offset: int) -> Iterator[Segment]:
        """The segment that holds `offset`, and the segments after it."""
        first = max(bisect_right(self._bases, offset) - 1, 0)
        return islice(self.segments, first, None)

    def end_of(self, found: LogSlice, limit_offset: int) -> int:
        """The offset after `found`. If the segment was replaced, this is the read's `limit_offset`."""
        segment = self.segment_at(found.segment_base)
        if segment.file is not found.file:
            return limit_offset
        stop = found.position + found.length
        behind = self._batch_at(segment, stop) if stop < segment.size else None
        return min(segment.end_offset if behind is None else behind[0], limit_offset)

    def remembered(self, offset: int) -> int | None:
        position = self._append_ends.get(offset)
        return self._read_ends.get(offset) if position is None else position

    def position_of(self, segment: Segment, offset: int) -> int:
        """Position of the batch that holds `offset`; `size` at the segment's end. Raises IndexNeeded, DamagedLog."""
        if offset <= segment.base_offset:
            return 0
        if offset >= segment.end_offset:
            return segment.size
        position = self.remembered(offset)
        if position is None:
            found = segment.locate(offset, self._loaded)
            position = found.position
            if found.base_offset == offset:
                self._remember(offset, position)
        return position

    def slice(self, offset: int, bytes_max: int, limit_offset: int, *, min_one: bool) -> LogSlice | None:
        """Complete batches of one segment: from the batch that holds `offset` to the one before `limit_offset`, at most
        `bytes_max`.

        With `min_one` the first batch is returned even if it is larger. Without `min_one`, `length` may be 0. None if
        no batch is below the limit. Raises IndexNeeded, DamagedLog."""
        segment = self.segments[-1]
        sealed = offset < segment.base_offset
        if sealed:
            segment = self.segments[bisect_right(self._bases, offset) - 1]
        # `position_of` is inlined for tail readers.
        position = self._append_ends.get(offset)
        if position is None:
            position = self.position_of(segment, offset)
        if limit_offset >= segment.end_offset:
            stop = segment.size
        else:
            known = self._append_ends.get(limit_offset)
            stop = self.position_of(segment, limit_offset) if known is None else known
        length = stop - position
        if length <= 0:
            return None
        cut = length > bytes_max
        if cut:
            length = self._cut(segment, position, bytes_max, stop, min_one)
        return LogSlice(segment.file, position, length, segment.base_offset, sealed, cut)

    def segment_at(self, base_offset: int) -> Segment:
        """The segment that begins at `base_offset`. If it was deleted meanwhile, this is another segment."""
        return self.segments[max(bisect_right(self._bases, base_offset) - 1, 0)]

    def ranges(self, start_offset: int, end_offset: int) -> list[FileRange]:
        """All complete batches with an offset in [start_offset, end_offset), as one range for each file. Blocking, if
        the range begins or ends within a segment. Raises DamagedLog."""
        ranges: list[FileRange] = []
        for segment in list(self.segments):
            if segment.end_offset <= start_offset or segment.base_offset >= end_offset or segment.size == 0:
                continue
            is_inside = start_offset > segment.base_offset
            position = segment.locate(start_offset, self.cache).position if is_inside else 0
            stop = segment.size
            if end_offset < segment.end_offset:
                last = segment.locate(end_offset - 1, self.cache)
                stop = last.position + last.size
            ranges.append(FileRange(segment.file, position, stop - position))
        return ranges

    def indexes_of(self, batches: FileRange, apart_max: int) -> SegmentIndexes | None:
        """Index entries of a range. Blocking. Positions are relative to the range's first byte, offsets to the
        segment's base.

        None if entries are more than `apart_max` bytes apart, or no segment has this file any more."""
        segment = next((one for one in list(self.segments) if one.file is batches.file), None)
        if segment is None or segment.interval_bytes > apart_max:
            return None
        base, (offset_index, time_index, _) = segment.base_offset, segment.indexes(self.cache)
        offsets, positions = offset_index.columns
        timestamps, time_offsets = time_index.columns
        first = bisect_right(positions, batches.position)
        end = bisect_left(positions, batches.position + batches.length)
        if first < end:
            times = slice(bisect_left(time_offsets, offsets[first]), bisect_right(time_offsets, offsets[end - 1]))
        else:
            times = slice(0)
        return SegmentIndexes(
            OffsetIndex.from_columns(
                base, offsets[first:end], array("i", [position - batches.position for position in positions[first:end]])
            ),
            TimeIndex.from_columns(base, timestamps[times], time_offsets[times]),
        )

    def _cut(self, segment: Segment, position: int, bytes_max: int, stop: int, min_one: bool) -> int:
        """The length to send, up to the end of a batch: at most `bytes_max`, or one batch. If the index has such an
        end, that is used.
        """
        indexes = segment.indexes(self._loaded)
        while (entry := indexes.offsets.lookup_position(position + bytes_max)).position > position:
            batch = self._batch_at(segment, entry.position)
            if batch is not None and batch[1] == entry.offset + 1:
                self._remember(batch[0], entry.position)
                return entry.position - position
            if indexes.rebuilt_end:
                break
            indexes = self._loaded.rebuilt(segment, segment.base_offset)
        length = whole_batches(segment.file, position, bytes_max) if bytes_max > 0 else 0
        if length == 0 and min_one:
            first = find_batch(segment.file, position, stop, -1)
            assert first is not None
            length = first.size
        if length and position + length < stop:
            batch = self._batch_at(segment, position + length)
            if batch is not None:
                self._remember(batch[0], position + length)
        return length

    def _batch_at(self, segment: Segment, position: int) -> tuple[int, int] | None:
        """Base and end offset of the batch at `position`; None if no batch begins there."""
        try:
            found = find_batch(segment.file, position, segment.size, -1, 64)
        except DamagedLog:
            return None
        return None if found is None else (found.base_offset, found.end_offset)

    def _remember(self, offset: int, position: int) -> None:
        ends = self._read_ends
        if len(ends) >= READ_ENDS_MAX:
            del ends[next(iter(ends))]
        ends[offset] = position
