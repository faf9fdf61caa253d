"""Plans cleaning: the dirty part of a compacted log, when a pass is due, and which segments are merged. Pure.

The active segment, uncommitted records, and records younger than `min.compaction.lag.ms` are never cleaned. Source:
Kafka's LogCleanerManager.cleanableOffsets and Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hotstore.log.log_append import ABORTED_MAX
from hotstore.log.log_config import LogConfig
from hotstore.log.segment import Segment, SegmentInfo
from logformat.record_batch import INT32_MAX


class Cleanable(NamedTuple):
    """The dirty part of a log on the disk or in the bucket, with the offsets [`first_dirty`, `end`). `is_due`: a pass
    should begin."""

    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    is_due: bool

    @property
    def dirty_ratio(self) -> float:
        """Dirty bytes ÷ all bytes below `end`."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def cleanable(
    segments: Sequence[SegmentInfo],
    cleaned_offset: int | None,
    committed_end: int,
    log_start: int,
    now_ms: int,
    config: LogConfig,
) -> Cleanable:
    """The part of the sealed `segments` (oldest first) that may be cleaned. Times are in ms. `cleaned_offset`: the log
    is clean below it, according to the checkpoint. `committed_end`: records at or above it may still be truncated.
    `log_start`: records below it are deleted."""
    start = max(log_start, segments[0].base_offset) if segments else log_start
    first_dirty = start if cleaned_offset is None else max(start, cleaned_offset)
    end, clean_bytes, dirty_bytes, oldest_ms = first_dirty, 0, 0, now_ms
    for segment in segments:
        if segment.end_offset > committed_end or _is_young(segment, first_dirty, now_ms, config):
            break
        if segment.end_offset <= first_dirty:
            clean_bytes += segment.bytes
            continue
        end = segment.end_offset
        dirty_bytes += segment.bytes
        oldest_ms = min(oldest_ms, segment.first_append_ms)
    return dirty_part(first_dirty, end, clean_bytes, dirty_bytes, now_ms - oldest_ms, config)


def dirty_part(
    first_dirty: int, end: int, clean_bytes: int, dirty_bytes: int, lag_ms: int, config: LogConfig
) -> Cleanable:
    """Decide by Kafka's rule whether a pass is due. `lag_ms`: for how long the oldest dirty record waits."""
    found = Cleanable(first_dirty, end, clean_bytes, dirty_bytes, is_due=False)
    is_overdue = lag_ms > config.max_compaction_lag_ms
    is_due = dirty_bytes > 0 and (is_overdue or found.dirty_ratio > config.min_cleanable_dirty_ratio)
    return found._replace(is_due=is_due)


def must_roll(active: SegmentInfo, now_ms: int, config: LogConfig) -> bool:
    """Whether the active segment has records older than `max.compaction.lag.ms`. Such a segment must be sealed, because
    an active segment is never cleaned."""
    return active.bytes > 0 and now_ms - active.first_append_ms > config.max_compaction_lag_ms


def _is_young(segment: SegmentInfo, first_dirty: int, now_ms: int, config: LogConfig) -> bool:
    """Whether `min.compaction.lag.ms` protects a record of the segment. If the records have no timestamps, their time
    of arrival is used."""
    if config.min_compaction_lag_ms <= 0 or segment.end_offset <= first_dirty:
        return False
    newest = segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else segment.first_append_ms
    return newest > now_ms - config.min_compaction_lag_ms


def groups(segments: Sequence[Segment], config: LogConfig) -> list[tuple[Segment, ...]]:
    """Runs of segments that are each merged into one. The result must be within `segment.bytes` and
    `segment.index.bytes`, and have relative offsets of 31 bits. It must be within the limit of aborted transactions of
    a segment (TX44), because their markers are kept. A segment that exceeds a limit is not merged."""
    runs: list[list[Segment]] = []
    size = aborted = 0
    for segment in segments:
        own = 0 if segment.aborted is None else len(segment.aborted)
        fits = (
            bool(runs)
            and aborted + own <= ABORTED_MAX
            and size + segment.size <= config.segment_bytes
            and _index_bytes(size + segment.size, config) <= config.segment_index_bytes
            and segment.end_offset - runs[-1][0].base_offset <= INT32_MAX
        )
        if fits:
            runs[-1].append(segment)
            size, aborted = size + segment.size, aborted + own
        else:
            runs.append([segment])
            size, aborted = segment.size, own
    return [tuple(run) for run in runs]


def _index_bytes(log_bytes: int, config: LogConfig) -> int:
    """Largest size of the time index for a number of log bytes: an entry of 12 bytes for each interval."""
    return 12 * (log_bytes // max(config.index_interval_bytes, 61) + 1)
