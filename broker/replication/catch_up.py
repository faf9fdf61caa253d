"""Start offset of a lagging follower: its own log's end, or the end of the bucket's verified objects (R3, R26, D34,
D79). Pure.

- The start uses the verified end, not the remote end, so a damaged object loses no record.
- A member of the in-sync set, committed or proposed, is never sent to the bucket. It holds every committed record and
  the bucket holds only committed ones, so its end is at or above the verified end. If its end is lower nevertheless,
  its report may be part of an acknowledgement, so it continues from its own end.
- A replica outside the set may skip to the bucket, because no acknowledgement used its reports. All records that it
  drops are below the verified end. It cannot become a member before its end reaches the high watermark. An unclean
  election may choose it before that, but an unclean start reads the bucket in any case.
- No replica starts below the log start or below its own end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from hotstore.log.segment import SegmentInfo

NOT_IN_BUCKET: Final = -1
"""The verified end of a topic that is not tiered, and of which the bucket has nothing."""
LEFT_IN_BUCKET: Final = -2
"""The verified end of a topic that is not tiered, while the bucket may have objects from before."""


class LaggingReplica(NamedTuple):
    """A fetching replica outside the set. `end`: its next offset. `is_empty`: it has no record below `end`.
    `copies_on`: it copies from the leader, because it could not use the bucket's data."""

    end: int
    is_empty: bool
    copies_on: bool = False


def skips_to_bucket(replica: LaggingReplica, verified_end: int, lacks: Callable[[int], int], skip_bytes: int) -> bool:
    """Whether the leader sends the replica to the bucket's `verified_end` although the leader's log has the bytes.
    `lacks`: approximate bytes between the replica's end and an offset. `skip_bytes`: a shorter distance is copied from
    the leader, which needs no request to the bucket."""
    if replica.end >= verified_end or replica.copies_on:
        return False
    return replica.is_empty or lacks(verified_end) > skip_bytes


class Start(NamedTuple):
    """The offset at which a replica's log restarts. `is_bare`: no tier holds records below it."""

    offset: int
    is_bare: bool


def start_of(end: int, verified_end: int, log_start: int) -> Start | None:
    """Offset at which a replica restarts if the leader has no bytes at the replica's `end`. None if the replica is at
    that offset already; it then fetches again. The offset is the log start if all objects in the bucket expired.
    `verified_end` < 0: the topic is not tiered.
    """
    offset = max(verified_end, log_start)
    return Start(offset, is_bare=verified_end < 0) if offset > end else None


def bytes_between(segments: Iterable[SegmentInfo], start: int, end: int) -> int:
    """Approximate bytes of these segments in [start, end). A partly contained segment counts in proportion to its
    offsets."""
    total = 0
    for segment in segments:
        span = segment.end_offset - segment.base_offset
        common = min(segment.end_offset, end) - max(segment.base_offset, start)
        if span > 0 and common > 0:
            total += segment.bytes * common // span
    return total


class ReplicationCounters:
    """Totals of one broker since its start. `bytes_in`: record bytes in leaders' responses, taken or not (Kafka's
    ReplicationBytesInPerSec). `begun`: number of restarts of a log at the bucket's end. `bytes_skipped`: approximate
    bytes that these restarts saved from copying."""

    __slots__ = ("begun", "bytes_in", "bytes_skipped")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_skipped = 0
        self.begun = 0
