"""Local retention: what may go, what must stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstore.log.local_retention import active_expired, expirable
from hotstore.log.log_config import AS_TOTAL, UNLIMITED, LogConfig
from hotstore.log.segment import SegmentInfo

DAY = 86_400_000


def run(*ends: int, size: int = 100, stamp: int = 0) -> list[SegmentInfo]:
    """Segments that end at `ends`, each `size` bytes; the n-th one's youngest record is at stamp + n."""
    starts = [0, *ends]
    return [SegmentInfo(starts[n], end, size, stamp + n, stamp + n) for n, end in enumerate(ends)]


TIERED = LogConfig(tiered=True, retention_ms=7 * DAY, local_retention_ms=100, local_retention_bytes=UNLIMITED)
SIZED = LogConfig(tiered=True, retention_ms=UNLIMITED, local_retention_ms=UNLIMITED, local_retention_bytes=250)
PLAIN = LogConfig(retention_ms=100, retention_bytes=UNLIMITED)


@pytest.mark.parametrize(
    ("config", "remote_end", "high_watermark", "now_ms", "pressure", "count"),
    [
        (TIERED, 40, 40, 10_000, 0, 4),
        (TIERED, 25, 40, 10_000, 0, 2),  # only what the bucket holds
        (TIERED, 40, 15, 10_000, 0, 1),  # only what is below the high watermark
        (TIERED, 40, 40, 102, 0, 2),  # older than the limit, not as old
        (TIERED, 40, 40, 50, 150, 2),  # disk pressure takes what is in the bucket earlier
        (TIERED, 10, 40, 50, 10**9, 1),  # and nothing else
        (SIZED, 40, 40, 0, 0, 1),  # at least the limit stays
        (LogConfig(tiered=True, retention_ms=100, local_retention_ms=AS_TOTAL), 40, 40, 10_000, 0, 4),
        (PLAIN, 0, 40, 10_000, 0, 4),  # no bucket, no remote end
        (PLAIN, 0, 40, 102, 0, 2),
        (PLAIN, 0, 40, 50, 10**9, 0),  # pressure never takes what is nowhere else
        (LogConfig(retention_ms=UNLIMITED, retention_bytes=299), 0, 40, 10**12, 0, 1),
        (LogConfig(retention_ms=UNLIMITED), 0, 40, 10**15, 0, 0),
    ],
)
def test_what_may_go(
    config: LogConfig, remote_end: int, high_watermark: int, now_ms: int, pressure: int, count: int
) -> None:
    """Four segments of 100 bytes, ending at 10, 20, 30, 40, youngest records at 0, 1, 2, 3 ms."""
    found = expirable(run(10, 20, 30, 40), remote_end, high_watermark, now_ms, config, pressure)
    assert found == (count, 10 * count)


def test_deleted_records_go_from_either_kind() -> None:
    """Segments wholly below the log start need no copy and no age."""
    for config in (TIERED, PLAIN):
        assert expirable(run(10, 20, 30), 0, 30, 0, config, log_start=25).segment_count == 2


def test_the_active_segment_counts_towards_size() -> None:
    """retention.bytes is about the whole log on this disk."""
    assert expirable(run(10, 20), 20, 20, 0, SIZED, active_bytes=150).segment_count == 1
    assert expirable(run(10, 20), 20, 20, 0, SIZED, active_bytes=250).segment_count == 2


def test_records_without_timestamps_age_by_their_append() -> None:
    """A segment of gaps, or of producers that send no timestamps."""
    segment = SegmentInfo(0, 10, 100, -1, 5_000)
    assert expirable([segment], 0, 10, 5_100, PLAIN).segment_count == 0
    assert expirable([segment], 0, 10, 5_101, PLAIN).segment_count == 1


def test_an_idle_active_segment_is_due_by_time() -> None:
    """Otherwise the last records of a silent topic would stay for ever (KAFKA-15272)."""
    active = SegmentInfo(30, 40, 10, 3, 3)
    assert active_expired(active, 40, 104, PLAIN)
    assert not active_expired(active, 40, 103, PLAIN)
    assert not active_expired(active, 39, 104, PLAIN)
    assert not active_expired(SegmentInfo(40, 40, 0, -1, 0), 40, 10**9, PLAIN)


@given(
    sizes=st.lists(st.integers(1, 300), max_size=8),
    remote_end=st.integers(0, 90),
    high_watermark=st.integers(0, 90),
    now_ms=st.integers(0, 500),
    pressure=st.integers(0, 2_000),
    tiered=st.booleans(),
    limit_ms=st.integers(-1, 300),
    limit_bytes=st.integers(-1, 1_000),
)
def test_nothing_goes_that_must_stay(
    sizes: list[int],
    remote_end: int,
    high_watermark: int,
    now_ms: int,
    pressure: int,
    tiered: bool,
    limit_ms: int,
    limit_bytes: int,
) -> None:
    """A prefix only, below the high watermark, below the remote end when tiered, and only for a reason."""
    config = LogConfig(
        tiered=tiered,
        retention_ms=limit_ms,
        retention_bytes=limit_bytes,
        local_retention_ms=limit_ms,
        local_retention_bytes=limit_bytes,
    )
    segments = [SegmentInfo(10 * n, 10 * n + 10, size, 20 * n, 20 * n) for n, size in enumerate(sizes)]
    count, offset = expirable(segments, remote_end, high_watermark, now_ms, config, pressure)
    gone, left = segments[:count], segments[count:]
    assert offset == (gone[-1].end_offset if gone else 0)
    assert all(segment.end_offset <= high_watermark for segment in gone)
    assert not tiered or all(segment.end_offset <= remote_end for segment in gone)
    if gone:
        by_time = limit_ms >= 0 and now_ms - gone[-1].max_timestamp_ms > limit_ms
        by_size = 0 <= limit_bytes <= sum(segment.bytes for segment in left)
        by_pressure = tiered and sum(segment.bytes for segment in gone[:-1]) < pressure
        assert by_time or by_size or by_pressure
