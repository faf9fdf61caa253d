"""Windows of a piece: byte ranges of whole batches that are fetched, checked and decoded independently.

A window begins at a batch that the offset index names, and ends where the next window begins. Its end offset comes from
the header of the next batch (61 bytes, fetched with the window) or from the segment's end. The last window of a piece
may be shortened to end with a batch that the index names, because that batch's header gives the position of its end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from coldstore.keys import SegmentKey
from logformat.indexes.offset_index import OffsetIndex
from logformat.record_batch import HEADER_SIZE, LENGTH_MIN, MAGIC, Buffer, read_header
from thermocline.pipeline.split import SplitPart

WINDOW_BYTES: Final = 4 * 1024 * 1024
_GUESS: Final = 1.25  # guess for the last batch, in average batch sizes; a larger batch costs a second request


@dataclass(frozen=True, slots=True)
class OpenPiece:
    """A piece whose object is the one that the manifest names.

    `log_bytes` and `end_offset`: position and offset at which the segment, or its sound prefix, ends. `aborted`:
    (producer id, first offset, marker's offset) of aborted transactions. `whole`: all bytes of an object small enough
    for one request. `batch_bytes`: average size of a batch, 0 if unknown.
    """

    piece: SplitPart
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

    `anchors`: (position, last offset) of batches that the index names, in order; the first is at `start` unless that is
    0. `first`: the start offset, known only at the segment's base. `after`: the end offset, known only at the segment's
    end; elsewhere `next_last` is the last offset of the batch that begins at `end`.

    `last`: (position, last offset) of the last wanted batch; `guess_bytes`: how much of it to fetch. After the fetch,
    `cut` returns the window that ends with this batch.
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
        """Bytes to fetch from `start` on, including the header after the window unless `after` is known."""
        if self.last is not None:
            return self.last[0] - self.start + self.guess_bytes
        return self.end - self.start + (HEADER_SIZE if self.after is None else 0)

    @property
    def offsets(self) -> tuple[int, int]:
        """Offsets (first, end) by the index, so they are approximate; the ranges of neighbours touch."""
        first = self.anchors[0][1] if self.first is None else self.first
        end = self.next_last if self.after is None else self.after
        assert end is not None
        return first, end

    @property
    def uncut(self) -> Window:
        return replace(self, last=None)

    def cut(self, data: Buffer) -> Window | None:
        """The window that ends after `last`. None when the batch header there contradicts the index."""
        assert self.last is not None
        position, last_offset = self.last
        header = read_header(data, position - self.start)
        end = position + header.size
        if header.magic != MAGIC or header.length < LENGTH_MIN or header.last_offset != last_offset or end > self.end:
            return None
        anchors = self.anchors[: bisect_right(self.anchors, self.last)]
        return Window(self.start, end, self.first, last_offset + 1, None, anchors)

    def end_offset(self, data: Buffer) -> int | None:
        """The offset after the window's last batch, or None when data and index disagree. `data` has `fetch_bytes`
        bytes."""
        if self.after is not None:
            return self.after
        header = read_header(data, self.end - self.start)
        return header.base_offset if header.last_offset == self.next_last else None

    def starts_as_indexed(self, data: Buffer) -> bool:
        """Whether the first batch has the expected offsets. (Its base offset is under no CRC.)"""
        header = read_header(data)
        if self.first is not None:
            return header.base_offset == self.first
        return bool(self.anchors) and header.last_offset == self.anchors[0][1]


def windows_of(opened: OpenPiece, window_bytes: int) -> list[Window]:
    """The windows of a piece, in order. Each has `window_bytes` or up to one index interval more; the last may be
    shorter."""
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
        windows[-1] = _shorten_last(windows[-1], opened, entries)
    return windows


def _shorten_last(window: Window, opened: OpenPiece, entries: list[tuple[int, int]]) -> Window:
    """The last window, ending with the first indexed batch that reaches the piece's end offset."""
    at = bisect_left(entries, opened.piece.end_offset - 1, key=lambda entry: entry[1])
    guess = int(_GUESS * opened.batch_bytes)
    if guess < HEADER_SIZE or at == len(entries) or not window.start <= entries[at][0] < window.end - guess:
        return window
    return replace(window, last=entries[at], guess_bytes=guess)
