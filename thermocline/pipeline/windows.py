"""A piece of a segment as windows: byte ranges that can be fetched, proven and decoded each for itself.

Owns the cutting and what is known about a window before its bytes are. Always true: a window begins where the offset
index says that a batch begins, and its neighbour begins where it ends; with the header of the batch behind it (fetched
along: 61 bytes) or the segment's end it is known at which offset it ends. So windows need no order among themselves.
The last one of a piece may be cut short: where the index names the batch that ends it, that batch's header says where.
Must not know how bytes are fetched or decoded.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from coldstore.keys import SegmentKey
from logformat.offset_index import OffsetIndex
from logformat.record_batch import HEADER_SIZE, LENGTH_MIN, MAGIC, Buffer, read_header
from thermocline.pipeline.split import Piece

WINDOW_BYTES: Final = 4 * 1024 * 1024
_GUESS: Final = 1.25  # average batches that a last one is guessed to have at most; a larger one costs a request


@dataclass(frozen=True, slots=True)
class OpenPiece:
    """A piece whose object was found to be the one that the manifest names.

    `log_bytes` and `end_offset` are where the segment ends (or where its sound beginning does); `aborted` are (producer
    id, first offset, marker's offset) of transactions whose records nobody may see; `whole` are the object's bytes
    where it is so small that one request brought them all; `batch_bytes` is the average batch's size, 0 unknown.
    """

    piece: Piece
    key: SegmentKey
    index: OffsetIndex
    log_bytes: int
    end_offset: int
    aborted: tuple[tuple[int, int, int], ...] = ()
    whole: pa.Buffer | None = None
    batch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """Log bytes `[start, end)` of a segment: whole batches.

    `anchors` are (position, last offset) of batches that the index names, in order, the first one at `start` unless
    that is 0. `first` is the offset where it begins, known at the segment's base only; `after` where it ends, known at
    the segment's end only; elsewhere `next_last` is the last offset of the batch that begins at `end`.

    `last` is (position, last offset) of a batch behind which nothing is wanted, and `guess_bytes` what to fetch of it:
    once they are there, `cut` gives the window that ends with it.
    """

    start: int
    end: int
    first: int | None
    after: int | None
    next_last: int | None
    anchors: tuple[tuple[int, int], ...] = ()
    last: tuple[int, int] | None = None
    guess_bytes: int = 0

    @property
    def fetch_bytes(self) -> int:
        """How many bytes from `start` on are needed: the header behind the window too, unless `after` is known."""
        if self.last is not None:
            return self.last[0] - self.start + self.guess_bytes
        return self.end - self.start + (HEADER_SIZE if self.after is None else 0)

    @property
    def offsets(self) -> tuple[int, int]:
        """First and end, as near as is known without the bytes: neighbours' touch."""
        first = self.anchors[0][1] if self.first is None else self.first
        end = self.next_last if self.after is None else self.after
        assert end is not None
        return first, end

    @property
    def uncut(self) -> Window:
        return replace(self, last=None)

    def cut(self, data: Buffer) -> Window | None:
        """The window that ends behind `last`; None where that header does not say what the index does."""
        assert self.last is not None
        position, last_offset = self.last
        header = read_header(data, position - self.start)
        end = position + header.size
        if header.magic != MAGIC or header.length < LENGTH_MIN or header.last_offset != last_offset or end > self.end:
            return None
        anchors = self.anchors[: bisect_right(self.anchors, self.last)]
        return Window(self.start, end, self.first, last_offset + 1, None, anchors)

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
    if windows:
        windows[-1] = _ending(windows[-1], opened, entries)
    return windows


def _ending(window: Window, opened: OpenPiece, entries: list[tuple[int, int]]) -> Window:
    """The last window, told to end with the first batch of the index behind which the piece wants nothing."""
    at = bisect_left(entries, opened.piece.end_offset - 1, key=lambda entry: entry[1])
    guess = int(_GUESS * opened.batch_bytes)
    if guess < HEADER_SIZE or at == len(entries) or not window.start <= entries[at][0] < window.end - guess:
        return window
    return replace(window, last=entries[at], guess_bytes=guess)
