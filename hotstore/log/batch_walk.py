"""Finds batches in a segment file by their headers: one batch by offset, or all batches of a range in order.

It reads small windows and skips the records. Results are completely inside the given range. DamagedLog is raised for
bytes that cannot begin a batch. CRCs are not checked here; recovery and the copier check them.

Hot path: if the position of a read is not remembered, `find_batch` runs after the index look-up. With 16 KB batches it
reads one or two windows, about 2 µs each from the page cache.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from hotstore.errors import DamagedLog
from logformat.record_batch import (
    HEADER_SIZE,
    INT32_MAX,
    LENGTH_MIN,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    read_header,
)
from seams.files.disk import File

FIND_WINDOW_BYTES: Final = 4096
WALK_WINDOW_BYTES: Final = 256 << 10
# Base offset, length, leader epoch, magic, CRC, attributes, last offset delta.
_PLACE: Final = struct.Struct(">qiibIhi")
RESTORE_HINT: Final = "restore this segment from a replica or the bucket; it was not changed"


class BatchPlace(NamedTuple):
    """`position` and `size` of a batch in bytes, and its offsets [`base_offset`, `end_offset`)."""

    position: int
    size: int
    base_offset: int
    end_offset: int


def find_batch(
    file: File,
    position: int,
    end: int,
    offset: int,
    window_bytes: int = FIND_WINDOW_BYTES,
    reach_bytes: int = INT32_MAX,
) -> BatchPlace | None:
    """The first batch from `position` on whose last offset is ≥ `offset`; None if there is none, or if it is not found
    in the first `reach_bytes` that are read. Of a large batch only a window is read. A batch begins at `position`.
    Raises DamagedLog."""
    unpack = _PLACE.unpack_from
    read_bytes = 0
    while position < end and read_bytes <= reach_bytes:
        window = file.read_at(position, min(window_bytes, end - position))
        read_bytes += len(window)
        at = 0
        last_start = len(window) - HEADER_SIZE
        if last_start < 0:
            raise _damaged(file, position, offset, end)
        while at <= last_start:
            base, length, _, magic, _, _, delta = unpack(window, at)
            if magic != MAGIC or length < LENGTH_MIN or delta < 0 or position + at + length + LOG_OVERHEAD > end:
                raise _damaged(file, position + at, offset, end)
            if base + delta >= offset:
                return BatchPlace(position + at, length + LOG_OVERHEAD, base, base + delta + 1)
            at += length + LOG_OVERHEAD
        position += at
    return None


def walk_headers(
    file: File, position: int, end: int, window_bytes: int = WALK_WINDOW_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every batch in [position, end), which must hold complete batches. Raises DamagedLog."""
    while position < end:
        window = file.read_at(position, min(window_bytes, end - position))
        at = 0
        if len(window) < HEADER_SIZE:
            raise _damaged(file, position, -1, end)
        while at + HEADER_SIZE <= len(window):
            header = read_header(window, at)
            size = header.length + LOG_OVERHEAD
            is_batch = window[at + MAGIC_AT] == MAGIC and header.length >= LENGTH_MIN and header.base_offset >= 0
            if not is_batch or position + at + size > end:
                raise _damaged(file, position + at, header.base_offset, end)
            yield position + at, header
            at += size
        position += at


def whole_batches(file: File, position: int, limit: int, window_bytes: int = 16 << 10) -> int:
    """Size of the complete batches from `position` on, at most `limit`. Only batches that begin within `window_bytes`
    count. 0 if the first batch is larger than `limit`; otherwise the first batch is included."""
    window = file.read_at(position, min(window_bytes, limit))
    at = 0
    while at + HEADER_SIZE <= len(window):
        _, length, _, magic, _, _, _ = _PLACE.unpack_from(window, at)
        if magic != MAGIC or length < LENGTH_MIN:
            raise _damaged(file, position + at, -1, position + limit)
        if at + length + LOG_OVERHEAD > limit:
            break
        at += length + LOG_OVERHEAD
    return at


def _damaged(file: File, position: int, offset: int, end: int) -> DamagedLog:
    return DamagedLog(file.path, position, offset, f"no whole batch begins here (range ends at {end})", RESTORE_HINT)
