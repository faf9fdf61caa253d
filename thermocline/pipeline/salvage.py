"""Salvages a damaged window: finds its sound batches and the offsets that are lost. Pure.

The runs and losses account for every offset of the window, in order. A sound batch has its CRC, and offsets that agree
with its neighbours and the offset index. After damage the walk resumes at the next batch, if the header's length leads
to one, otherwise at the next position in the offset index. Slow (a Python loop per batch); only damaged windows come
here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from logformat.record_batch import (
    HEADER_SIZE,
    LENGTH_MIN,
    MAGIC,
    BatchHeader,
    Buffer,
    CorruptBatch,
    check_stored,
    read_header,
)
from thermocline.pipeline.windows import Window


@dataclass(frozen=True, slots=True)
class Run:
    """Sound batches: bytes `[start, end)` of the window's data."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets `[first, end)` whose batches are damaged or absent, their `position` in the window's data, and the
    reason.
    """

    first: int
    end: int
    position: int
    why: str


def salvage(data: Buffer, window: Window) -> Iterator[Run | Lost]:
    """Sound runs and losses of the window, in order. `data` has `window.fetch_bytes` bytes."""
    size = window.end - window.start
    anchors = {position - window.start: last for position, last in window.anchors}
    places = sorted(anchors)
    expected = window.first
    lost: tuple[int, int, str] | None = None  # first offset, position, reason
    at = run = 0
    while at < size:
        header, why = _judge(data, at, size, expected, anchors)
        if header is not None and not why:
            if lost is not None:
                yield Lost(lost[0], header.base_offset, lost[1], lost[2])
                lost, run = None, at
            at += header.size
            expected = header.next_offset
            continue
        if run < at and lost is None:
            yield Run(run, at)
        if header is not None and expected is not None and header.base_offset > expected and lost is None:
            yield Lost(expected, header.base_offset, at, why)  # a hole; the batch after it is sound
            run, expected = at, header.base_offset
            continue
        if lost is None:
            lost = (_suspected(data, at, anchors) if expected is None else expected, at, why)
        expected = None
        at = run = _next_place(data, at, size, places)
    end = _end_offset(data, window)
    if lost is not None:
        yield Lost(lost[0], max(lost[0], end), lost[1], lost[2])
        return
    if run < at:
        yield Run(run, at)
    if expected is not None and end > expected:
        yield Lost(expected, end, size, "no batch holds them, and no gap was declared")


def _judge(
    data: Buffer, at: int, size: int, expected: int | None, anchors: dict[int, int]
) -> tuple[BatchHeader | None, str]:
    """Returns (header, "") for a sound batch, (header, reason) for a sound batch after a hole, otherwise (None,
    reason)."""
    try:
        header = check_stored(data, at, size)
    except CorruptBatch as broken:
        return None, str(broken)
    if at in anchors and header.last_offset != anchors[at]:
        return None, f"batch at position {at} ends at offset {header.last_offset}, but the index says {anchors[at]}"
    if header.base_offset == expected or (expected is None and at in anchors):
        return header, ""
    follower = _plausible(data, at + header.size)
    continued = follower is None or follower.base_offset == header.next_offset
    if not continued or (expected is not None and header.base_offset < expected):
        return (
            None,
            f"batch at position {at} begins at offset {header.base_offset}, which does not fit the batches around it",
        )
    return header, "" if expected is None else "no batch holds them, and no gap was declared"


def _plausible(data: Buffer, at: int) -> BatchHeader | None:
    if len(data) - at < HEADER_SIZE:
        return None
    header = read_header(data, at)
    return header if header.magic == MAGIC and header.length >= LENGTH_MIN and header.base_offset >= 0 else None


def _next_place(data: Buffer, at: int, size: int, places: list[int]) -> int:
    """Position to resume at after a bad batch. The index is trusted more than the batch's own length."""
    beyond = bisect_right(places, at)
    named = places[beyond] if beyond < len(places) else size
    header = _plausible(data, at)
    if header is None or at + header.size > named:
        return named
    after = at + header.size
    return after if after == named or _plausible(data, after) is not None else named


def _suspected(data: Buffer, at: int, anchors: dict[int, int]) -> int:
    """First offset of a bad batch without a sound batch before it."""
    if at in anchors:
        return _start_of(data, at, anchors[at])
    header = _plausible(data, at)
    return header.base_offset if header is not None else 0


def _end_offset(data: Buffer, window: Window) -> int:
    if window.after is not None:
        return window.after
    assert window.next_last is not None
    return _start_of(data, window.end - window.start, window.next_last)


def _start_of(data: Buffer, at: int, last: int) -> int:
    """First offset of the batch at `at` that ends at `last`, by the offset delta in its header if that is plausible."""
    delta = read_header(data, at).last_offset_delta if len(data) - at >= HEADER_SIZE else 0
    return last - delta if 0 <= delta <= last else last
