"""Local retention: decides which local segments may be deleted (Kafka's UnifiedLog.deleteOldSegments, KIP-405). Pure.

- A tiered log deletes only segments below the remote end. These are in the committed manifest and verified. Other logs
  follow their total retention.
- Records at or above the high watermark are never deleted. The active segment is not deleted; it is rolled first.
- Segments are deleted oldest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from hotstore.log.log_config import LogConfig
from hotstore.log.segment import SegmentInfo


class LocalExpiry(NamedTuple):
    """The decision to delete the oldest `segment_count` segments. The local log then begins at `offset`."""

    segment_count: int
    offset: int


def expirable(
    segments: Sequence[SegmentInfo],
    remote_end: int,
    high_watermark: int,
    now_ms: int,
    config: LogConfig,
    pressure_bytes: int = 0,
    *,
    log_start: int = 0,
    active_bytes: int = 0,
) -> LocalExpiry:
    """Which of the sealed `segments` (oldest first) to delete from this disk. `remote_end`: exclusive end of the
    verified objects in the bucket; ignored unless the log is tiered. `pressure_bytes`: bytes to free in addition to
    retention, only in tiered logs. `log_start`: segments below it have only deleted records. `active_bytes`: size of
    the active segment, for retention by size. Times are in ms."""
    allowed = _allowed(segments, max(remote_end, log_start) if config.tiered else high_watermark, high_watermark)
    by_time = _expired_by_time(segments[:allowed], config.local_time_limit_ms, now_ms)
    by_size = _over_size(segments, active_bytes, config.local_size_limit_bytes)
    deleted = sum(segment.end_offset <= log_start for segment in segments)
    by_pressure = _cover(segments, pressure_bytes) if config.tiered else 0
    count = min(allowed, max(by_time, by_size, deleted, by_pressure))
    start = segments[0].base_offset if segments else log_start
    return LocalExpiry(count, segments[count - 1].end_offset if count else start)


def active_expired(active: SegmentInfo, high_watermark: int, now_ms: int, config: LogConfig) -> bool:
    """Whether the active segment has expired by time. As in Kafka, it is then rolled, so that it can be deleted."""
    if active.bytes == 0 or active.end_offset > high_watermark:
        return False
    return _expired_by_time([active], config.local_time_limit_ms, now_ms) == 1


def _allowed(segments: Sequence[SegmentInfo], safe_end: int, high_watermark: int) -> int:
    """Number of segments that end at or below both bounds."""
    bound = min(safe_end, high_watermark)
    return sum(1 for _ in takewhile(lambda segment: segment.end_offset <= bound, segments))


def _expired_by_time(segments: Sequence[SegmentInfo], limit_ms: int, now_ms: int) -> int:
    """Number of oldest segments whose youngest record is older than the limit. If records have no timestamps, the time
    of the first append is used.
    """
    if limit_ms < 0:
        return 0
    count = 0
    for segment in segments:
        youngest = segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else segment.first_append_ms
        if now_ms - youngest <= limit_ms:
            break
        count += 1
    return count


def _over_size(segments: Sequence[SegmentInfo], active_bytes: int, limit_bytes: int) -> int:
    """Number of oldest segments that may be deleted while at least `limit_bytes` stay, counted as Kafka does."""
    if limit_bytes < 0:
        return 0
    excess = active_bytes + sum(segment.bytes for segment in segments) - limit_bytes
    count = 0
    for segment in segments:
        excess -= segment.bytes
        if excess < 0:
            break
        count += 1
    return count


def _cover(segments: Sequence[SegmentInfo], wanted_bytes: int) -> int:
    """Smallest number of oldest segments that free `wanted_bytes`."""
    count = 0
    for segment in segments:
        if wanted_bytes <= 0:
            break
        wanted_bytes -= segment.bytes
        count += 1
    return count
