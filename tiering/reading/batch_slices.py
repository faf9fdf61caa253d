"""Selects complete batches in loaded chunks.

Pure except for reading their bytes. A slice begins and ends at batch borders within the segment's log bytes, so a
footer is never sent. Every byte comes from a chunk whose CRC was checked in this process.

Hot path: a slice costs one bisection in the segment's index and one read of 8 bytes from the page cache. Without an
index entry in range (there is one every 64 KiB), it walks at most 64 KiB of headers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest_entries import RemoteSegment
from coldstore.segments.segment_object import SegmentFooter
from logformat.errors import Corrupt
from logformat.record_batch import LENGTH_MIN, LOG_OVERHEAD, MAGIC, Buffer
from seams.files.disk import FileRange

WALK_BYTES: Final = 64 << 10
_BASE_OFFSET: Final = struct.Struct(">q")
_PLACE: Final = struct.Struct(
    ">qiibIhi"
)  # base offset, length, leader epoch, magic, CRC, attributes, last offset delta
PLACE_BYTES: Final = _PLACE.size


class ColdSlice(msgspec.Struct, frozen=True):
    """Whole batches to send: `length` bytes in `ranges`, from the batch that holds the requested offset."""

    length: int
    ranges: tuple[FileRange, ...]
    aborted: tuple[tuple[int, int], ...] = ()
    """(producer id, first offset) of the aborted transactions that overlap it, each once."""


NOTHING: Final = ColdSlice(0, ())


class OpenSegment(msgspec.Struct, frozen=True, eq=False):
    """A segment whose footer is loaded."""

    key: SegmentKey
    entry: RemoteSegment
    footer: SegmentFooter

    def chunk_at(self, position: int) -> int:
        return position // self.footer.chunk_bytes


class BatchBorder(NamedTuple):
    """A batch's position in a segment's log bytes and its base offset; or the log's end and the offset after it."""

    position: int
    offset: int


class TooLarge(NamedTuple):
    """The first batch ends at `end`, beyond the limit or the loaded bytes."""

    end: int
    next_offset: int


ReadAt = Callable[[int, int], bytes]
"""Reads `length` log bytes at `position`, all of them."""


def cut(opened: OpenSegment, start: int, limit: int, read: ReadAt) -> BatchBorder | TooLarge | None:
    """The end of the last batch that ends in (start, limit]. A batch begins at `start`; the bytes of [start, limit) are
    loaded.

    None if not even the first header is loaded. Raises Corrupt where no batch can begin."""
    footer = opened.footer
    if limit >= footer.log_bytes:
        return BatchBorder(footer.log_bytes, opened.entry.end_offset)
    indexed = footer.offset_index.lookup_position(limit - _BASE_OFFSET.size).position
    if indexed > start:
        (offset,) = _BASE_OFFSET.unpack(read(indexed, _BASE_OFFSET.size))
        if not opened.entry.base_offset < offset < opened.entry.end_offset:
            raise Corrupt(f"{opened.key}: no batch begins at position {indexed}, where the index has one")
        return BatchBorder(indexed, offset)
    if limit - start < PLACE_BYTES:
        return None
    window = read(start, min(WALK_BYTES, limit - start))
    return _walk(opened, window, start)


def _walk(opened: OpenSegment, window: Buffer, start: int) -> BatchBorder | TooLarge:
    unpack = _PLACE.unpack_from
    at = 0
    stop = len(window) - PLACE_BYTES
    after = start
    next_offset = -1
    while at <= stop:
        base, length, _, magic, _, _, delta = unpack(window, at)
        at += length + LOG_OVERHEAD
        if magic != MAGIC or length < LENGTH_MIN or delta < 0 or start + at > opened.footer.log_bytes:
            raise Corrupt(f"{opened.key}: no batch begins at position {after}")
        if at > len(window):
            return TooLarge(start + at, base + delta + 1) if after == start else BatchBorder(after, next_offset)
        after, next_offset = start + at, base + delta + 1
    return BatchBorder(after, next_offset)
