"""Where a replica goes on that lacks what its leader has: after its own log's end, or where the bucket's verified
objects end (R3, R26, D34, D79).

Owns both halves of that choice: the leader's, who sends a replica on to the bucket instead of giving it bytes that lie
there, and the replica's, where it then begins. Always true: the verified end is what counts, never the remote end, so
that a damaged object costs no record; what a member of the in-sync set, or a proposed one, holds is never given up for
the bucket's copy; nobody begins below the log start, nor below its own end. Pure. Must not know requests, logs, nor
buckets.

Why only who is in no set is sent on. A member holds every committed record, and the bucket holds committed ones alone:
so its end is at or above the verified end, and there is nothing to send it on for. Where that is not so, something is
wrong with its log or with what its leader believes, and its report is part of what an acknowledgement was given on: it
goes on from its own end, and nothing of it is dropped on a leader's word. Nobody counted what a replica outside the set
reported; its end grows by the jump, what it drops lies below the verified end, and it joins when its end reached the
high watermark, as any other. Between the leader's word and the jump it cannot become a member: its report, which is
what it would be proposed on, is below the verified end, thus below the high watermark. An unclean election may choose
it meanwhile: its role ends when the jump is done, and then all it dropped is in the bucket, verified, where an unclean
start looks anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from hotstore.log.segment import SegmentInfo


class Behind(NamedTuple):
    """A replica in no set, as its fetch shows it. `end`: what it asks for next; `is_empty`: no record lies before that;
    `copies_on`: the bucket was of no use to it there."""

    end: int
    is_empty: bool
    copies_on: bool = False


def is_sent_on(replica: Behind, verified_end: int, lacks: Callable[[int], int], skip_bytes: int) -> bool:
    """Whether the leader, which has the bytes, tells it to begin at `verified_end` all the same. `lacks`: about how
    many lie from its end up to an offset; `skip_bytes`: up to so many it copies, which costs no request to the bucket
    and keeps what it has."""
    if replica.end >= verified_end or replica.copies_on:
        return False
    return replica.is_empty or lacks(verified_end) > skip_bytes


class Start(NamedTuple):
    """Where a replica's log begins anew. `is_bare`: nothing below it is in any tier."""

    offset: int
    is_bare: bool


def start_of(end: int, verified_end: int, log_start: int) -> Start | None:
    """Where one begins whose leader gives nothing at its `end`; None: it is there already, and asks again. Where all
    that the bucket held expired that is the log start; `verified_end` −1: the topic has no bucket."""
    offset = max(verified_end, log_start)
    return Start(offset, is_bare=verified_end < 0) if offset > end else None


def bytes_between(segments: Iterable[SegmentInfo], start: int, end: int) -> int:
    """About how many bytes of these lie in [start, end): of a segment that reaches out of it, its share by offsets."""
    total = 0
    for segment in segments:
        span = segment.end_offset - segment.base_offset
        common = min(segment.end_offset, end) - max(segment.base_offset, start)
        if span > 0 and common > 0:
            total += segment.bytes * common // span
    return total
