"""Finds the end of a segment whose bytes are trusted: from its indexes if they agree with the log, otherwise by reading
the segment.

The last complete batch must end at the end of the file. In the last segment its CRC is checked too, because its header
gives the log's end. Files are not changed. All functions block.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from typing import Final, NamedTuple

from hotstore.file_names import OFFSET_INDEX, TIME_INDEX
from hotstore.log.batch_walk import find_batch, walk_headers
from hotstore.log.segment import Segment, build_indexer, load_indexes
from hotstore.recovery.scan import BatchScanner, Damage
from logformat.errors import Corrupt
from logformat.indexes.segment_index import SegmentIndexer
from logformat.indexes.time_index import TimestampOffset
from logformat.record_batch import HEADER_SIZE, INT64_MAX, NO_TIMESTAMP, BatchHeader, check_stored, read_header

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")


class SegmentEnd(NamedTuple):
    """The end of a segment. `last`: the last batch; None if it was not found because of `damage`. `scanned_bytes`: 0 if
    the indexes were enough."""

    last: BatchHeader | None
    scanned_bytes: int = 0
    damage: Damage | None = None


def find_end(segment: Segment, *, is_last: bool) -> SegmentEnd:
    """Set the end of a segment of known `size` that is not empty. If the segment has to be read, its indexer is set
    too."""
    last = _by_index(segment, is_last=is_last)
    if last is not None:
        segment.trusted_bytes = segment.size
        return SegmentEnd(last)
    headers: deque[BatchHeader] = deque(maxlen=1)
    scanned = BatchScanner(headers.append).scan(segment, segment.size, INT64_MAX)
    if scanned.damage is not None:
        return SegmentEnd(None, scanned.size, scanned.damage)
    segment.indexer = scanned.indexer
    segment.end_offset = scanned.end_offset
    return SegmentEnd(headers[0], scanned.size)


def resume(segment: Segment) -> None:
    """Continue the active segment with its index files after a clean stop."""
    try:
        offsets, times, _ = load_indexes(segment)
        segment.indexer = SegmentIndexer.resume(offsets, times, segment.size, segment.interval_bytes)
    except Corrupt:
        segment.indexer = build_indexer(segment)


def first_timestamp_ms(segment: Segment, now_ms: int) -> int:
    """A substitute for the time of the first append, which is not stored. It is never later than now."""
    data = segment.file.read_at(0, HEADER_SIZE)
    timestamp = read_header(data).max_timestamp if len(data) == HEADER_SIZE else -1
    return timestamp if 0 <= timestamp <= now_ms else now_ms


def date_back(segments: Sequence[Segment]) -> None:
    """Date segments that have only fillers or gaps, after `first_timestamp_ms`. They have no timestamp, and are older
    than the segment after them. If they counted as written now, each restart would begin the retention of all later
    segments anew."""
    following_ms: int | None = None
    for segment in reversed(segments):
        newest_ms: int | None = segment.max_timestamp.timestamp
        if newest_ms == NO_TIMESTAMP:
            newest_ms = segment.first_append_ms
            if newest_ms is not None and following_ms is not None and _begins_with_control(segment):
                newest_ms = segment.first_append_ms = min(newest_ms, following_ms)
        following_ms = newest_ms


def _begins_with_control(segment: Segment) -> bool:
    return read_header(segment.file.read_at(0, HEADER_SIZE)).is_control


def _by_index(segment: Segment, *, is_last: bool) -> BatchHeader | None:
    """Set the segment's end by the last entries of its index files. Returns its last batch; None if the entries do not
    agree with the log."""
    try:
        entry = _tail(segment, OFFSET_INDEX, _OFFSET_ENTRY)
        stamp = _tail(segment, TIME_INDEX, _TIME_ENTRY)
        relative, position = (0, 0) if entry is None else entry
        first = read_header(segment.file.read_at(0, HEADER_SIZE))
        if not 0 <= position < segment.size or first.base_offset != segment.base_offset:
            return None
        last: BatchHeader | None = None
        last_at, greatest = 0, -1
        for at, header in walk_headers(segment.file, position, segment.size, 16 << 10):
            if at == position > 0 and header.last_offset != segment.base_offset + relative:
                return None
            if last is not None and header.base_offset != last.next_offset:
                return None
            last, last_at, greatest = header, at, max(greatest, header.max_timestamp)
        if is_last and last is not None:
            check_stored(segment.file.read_at(last_at, last.size), 0, last.size, offset_min=last.base_offset)
    except (FileNotFoundError, Corrupt):
        return None
    assert last is not None  # a segment with bytes has a batch, or `walk_headers` raises
    timestamp, offset = (-1, segment.base_offset) if stamp is None else (stamp[0], segment.base_offset + stamp[1])
    # If batches were appended after a clean stop and the segment was not sealed again, the index files are those of
    # that stop.
    if timestamp < greatest or not segment.base_offset <= offset <= last.last_offset:
        return None
    # The time index has no checksum, and retention would delete a segment whose greatest timestamp is too low.
    if timestamp > greatest and _is_time_contradicted(segment, timestamp, offset):
        return None
    segment.end_offset = last.next_offset
    segment.release_indexes(TimestampOffset(timestamp, offset))
    return last


def _is_time_contradicted(segment: Segment, timestamp: int, offset: int) -> bool:
    """Whether the batch that holds `offset` has another greatest timestamp. Damage of the log or the offset index is no
    contradiction: a log is not refused because of one damaged batch. Reads few entries of the index, because a start
    does this for many segments."""
    try:
        with closing(segment.directory.open(segment.name_of(OFFSET_INDEX))) as index:
            low, high, position = 0, index.size() // _OFFSET_ENTRY.size, 0
            while low < high:
                middle = (low + high) // 2
                last, at = _OFFSET_ENTRY.unpack(index.read_at(middle * _OFFSET_ENTRY.size, _OFFSET_ENTRY.size))
                if segment.base_offset + last <= offset:
                    low, position = middle + 1, at
                else:
                    high = middle
        found = find_batch(segment.file, max(position, 0), segment.size, offset)
        if found is None or found.base_offset > offset:
            return False
        if read_header(segment.file.read_at(found.position, HEADER_SIZE)).max_timestamp == timestamp:
            return False
        check_stored(segment.file.read_at(found.position, found.size), 0, found.size)
    except (FileNotFoundError, Corrupt):
        return False
    return True


def _tail(segment: Segment, suffix: str, entry: struct.Struct) -> tuple[int, int] | None:
    """The last entry of an index file; None if it is empty. Raises FileNotFoundError, Corrupt."""
    with closing(segment.directory.open(segment.name_of(suffix))) as file:
        size = file.size()
        if size % entry.size:
            raise Corrupt(f"{file.path}: {size} bytes is not a multiple of {entry.size}")
        if size == 0:
            return None
        first, second = entry.unpack(file.read_at(size - entry.size, entry.size))
        return first, second
