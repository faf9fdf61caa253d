"""Chooses the range of the log that is copied next. Pure.

A range begins at the manifest's remote end, or higher if all skipped offsets are below the log start. It ends where a
sealed local segment ends, and holds only flushed, committed offsets (C6). If a segment contains the remote end, only
the part above it is copied (C5).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from hotstore.log.segment import SegmentInfo


class CopyRange(msgspec.Struct, frozen=True):
    """Offsets [start, end) to copy as one object, and about how many bytes (a file that contains the remote end counts
    in full)."""

    start_offset: int
    end_offset: int
    bytes: int


class NoCopy(Enum):
    """The reason why no range can be copied now."""

    DONE = "everything sealed is in the bucket"
    UNSTABLE = "the sealed end is not flushed or not visible yet"
    HOLE = "local segments begin above the remote end"


def next_copy(
    sealed: Sequence[SegmentInfo], *, remote_end_offset: int, log_start_offset: int, stable_end_offset: int
) -> CopyRange | NoCopy:
    """The oldest range that is not in the bucket. `stable_end_offset`: min(last stable offset, flushed end)."""
    for segment in sealed:
        if segment.end_offset <= remote_end_offset or segment.end_offset <= log_start_offset:
            continue
        start = max(segment.base_offset, remote_end_offset)
        if start > remote_end_offset and start > log_start_offset:
            return NoCopy.HOLE
        if segment.end_offset > stable_end_offset:
            return NoCopy.UNSTABLE
        return CopyRange(start, segment.end_offset, segment.bytes)
    return NoCopy.DONE


class CopyLag(msgspec.Struct, frozen=True):
    """Segments that are sealed and not copied. `age_ms`: time since the first append to the oldest such segment."""

    bytes: int
    segments: int
    age_ms: int


def copy_lag(sealed: Sequence[SegmentInfo], remote_end_offset: int, log_start_offset: int, now_ms: int) -> CopyLag:
    waiting = [s for s in sealed if s.end_offset > remote_end_offset and s.end_offset > log_start_offset]
    if not waiting:
        return CopyLag(0, 0, 0)
    return CopyLag(sum(s.bytes for s in waiting), len(waiting), max(0, now_ms - waiting[0].first_append_ms))


def seal_in_ms(first_append_ms: int | None, now_ms: int, *, seal_ms: int, segment_ms: int) -> int | None:
    """Milliseconds until the active segment has to be sealed, 0 when it is due, None when it is empty.

    `first_append_ms` is by the broker's clock. If the clock has jumped back, the wait is at most the whole limit."""
    if first_append_ms is None:
        return None
    limit = min(seal_ms, segment_ms)
    return min(max(first_append_ms + limit - now_ms, 0), limit)
