"""A piece of a segment as windows: byte ranges that can be fetched, proven and decoded each for itself.

Owns the cutting and what is known about a window before its bytes are. Always true: a window begins where the offset
index says that a batch begins, and its neighbour begins where it ends; with the header of the batch behind it (fetched
along: 61 bytes) or the segment's end it is known at which offset it ends. So windows need no order among themselves.
Must not know how bytes are fetched or decoded.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from coldstore.keys import SegmentKey
from logformat.offset_index import OffsetIndex
from logformat.record_batch import HEADER_SIZE, Buffer, read_header
from thermocline.pipeline.split import Piece

WINDOW_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class OpenPiece:
    """A piece whose object was found to be the one that the manifest names.

    `log_bytes` and `end_offset` are where the segment ends (or where its sound beginning does); `aborted` are (producer
    id, first offset, marker's offset) of transactions whose records nobody may see; `whole` are the object's bytes
    where it is so small that one request brought them all.
    """

    piece: Piece
    key: SegmentKey
    index: OffsetIndex
    log_bytes: int
    end_offset: int
    aborted: tuple[tuple[int, int, int], ...] = ()
    whole: pa.Buffer | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """Log bytes `[start, end)` of a segment: whole batches.

    `anchors` are (position, last offset) of batches that the index names, in order, the first one at `start` unless
    that is 0. `first` is the offset where it begins, known at the segment's base only; `after` where it ends, known at
    the segment's end only; elsewhere `next_last` is the last offset of the batch that begins at `end`.
    """

    start: int
    end: int
    first: int | None
    after: int | None
    next_last: int | None
    anchors: tuple[tuple[int, int], ...] = ()

    @property
    def fetch_bytes(self) -> int:
        """How many bytes from `start` on are needed: the header behind the window too, unless `after` is known."""
        return self.end - self.start + (HEADER_SIZE if self.after is None else 0)

    @property
    def offsets(self) -> tuple[int, int]:
        """First and end, as near as is known without the bytes: neighbours' touch."""
        first = self.anchors[0][1] if self.first is None else self.first
        end = self.next_last if self.after is None else self.after
        assert end is not None
        return first, end

    def end_offset(self, data: Buffer) -> int | None:
        """The offset behind its last batch; `data` are its `fetch_bytes`. None when they and the index disagree."""
        if self.after is not None:
            return self.after
        header = read_header(data, self.end - self.start)
        return header.base_offset if header.last_offset == self.next_last else None

    def begins_well(self, data: Buffer) -> bool:
        """Whether the first batch has the offsets it should. (Its base offset is under no CRC.)"""
        header = read_header(data)
        if self.first is not None:
            return header.base_offset == self.first
        return bool(self.anchors) and header.last_offset == self.anchors[0][1]


def windows_of(opened: OpenPiece, window_bytes: int = WINDOW_BYTES) -> list[Window]:
    """The windows of a piece, in order: of `window_bytes` and up to an index interval more, the last one shorter."""
    piece, log_bytes = opened.piece, opened.log_bytes
    entries = [(entry.position, entry.offset) for entry in opened.index.entries()]
    windows: list[Window] = []
    start = piece.log_start
    at = bisect_left(entries, (start, -1))
    while start < piece.log_end:
        stop = bisect_left(entries, (start + window_bytes, -1), lo=at)
        end = min(entries[stop][0] if stop < len(entries) else log_bytes, piece.log_end)
        stop = bisect_left(entries, (end, -1), lo=at)
        first = piece.segment.base_offset if start == 0 else None
        after = opened.end_offset if end == log_bytes else None
        next_last = entries[stop][1] if after is None else None
        windows.append(Window(start, end, first, after, next_last, tuple(entries[at:stop])))
        start, at = end, stop
    return windows
