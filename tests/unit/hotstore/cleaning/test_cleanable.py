"""Which part of a compacted log is dirty, when it is cleaned, and which segments become one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hotstore.cleaning import cleanable as cleanable_room
from hotstore.cleaning.cleanable import cleanable, groups, must_roll
from hotstore.log.log_config import LogConfig
from hotstore.log.segment import Segment, SegmentInfo
from logformat.indexes.transaction_index import AbortedIndex, AbortedTransaction
from tests.support.disk.crash_disk import CrashDisk

CONFIG = LogConfig(compacts=True, min_cleanable_dirty_ratio=0.5, segment_bytes=1000)
NOW = 1_000_000
SEGMENTS = [SegmentInfo(base, base + 10, 100, NOW - 900 + base, NOW - 800 + base) for base in range(0, 50, 10)]


def found(cleaned: int | None = None, committed: int = 50, start: int = 0, config: LogConfig = CONFIG, now: int = NOW):  # type: ignore[no-untyped-def]
    return cleanable(SEGMENTS, cleaned, committed, start, now, config)


def test_a_log_that_was_never_cleaned_is_dirty_from_its_start() -> None:
    part = found()
    assert (part.first_dirty, part.end, part.clean_bytes, part.dirty_bytes) == (0, 50, 0, 500)
    assert part.dirty_ratio == 1.0 and part.is_due


@pytest.mark.parametrize(("cleaned", "is_due"), [(10, True), (20, True), (25, True), (30, False), (50, False)])
def test_a_pass_is_due_above_the_dirty_ratio(cleaned: int, is_due: bool) -> None:
    """A half-clean segment counts as dirty."""
    assert found(cleaned).is_due is is_due


def test_what_is_not_committed_waits() -> None:
    part = found(committed=35)
    assert (part.end, part.dirty_bytes) == (30, 300)


def test_young_records_wait_for_the_minimal_lag() -> None:
    """By the newest timestamp of a segment; a segment that was cleaned before is not asked."""
    config = replace(CONFIG, min_compaction_lag_ms=875)
    assert found(config=config).end == 30
    assert found(40, config=config)[:2] == (40, 40)


def test_the_maximal_lag_makes_a_pass_due_whatever_the_ratio() -> None:
    config = replace(CONFIG, max_compaction_lag_ms=765)
    assert found(40, config=config).is_due is False
    assert found(30, config=config).is_due is True
    assert found(50, config=config).is_due is False


def test_a_quiet_active_segment_must_roll_after_the_maximal_lag() -> None:
    config = replace(CONFIG, max_compaction_lag_ms=800)
    assert must_roll(SEGMENTS[0], NOW, config) is False
    assert must_roll(SEGMENTS[0], NOW + 1, config) is True
    assert must_roll(SEGMENTS[0]._replace(bytes=0), NOW + 1, config) is False


def test_a_checkpoint_below_the_log_start_counts_from_there() -> None:
    assert found(5, start=20).first_dirty == 20


def test_an_empty_log_is_clean() -> None:
    part = cleanable([], None, 0, 7, NOW, CONFIG)
    assert (part.first_dirty, part.end, part.dirty_ratio, part.is_due) == (7, 7, 0.0, False)


def segment(base: int, end: int, size: int) -> Segment:
    disk = CrashDisk()
    disk.make_dirs("/log")
    directory = disk.open_dir("/log")
    made = Segment(directory, base, directory.open(f"{base}.log", write=True, create=True), 4096)
    made.size, made.end_offset = size, end
    return made


def test_runs_stay_within_segment_bytes() -> None:
    segments = [
        segment(0, 10, 400),
        segment(10, 20, 600),
        segment(20, 30, 1),
        segment(30, 40, 2000),
        segment(40, 50, 5),
    ]
    assert [[one.base_offset for one in run] for run in groups(segments, CONFIG)] == [[0, 10], [20], [30], [40]]


def test_runs_stay_within_relative_offsets_of_31_bits() -> None:
    segments = [segment(0, 10, 4), segment(10, 2**31 - 1, 6), segment(2**31 - 1, 2**31, 1)]
    assert [[one.base_offset for one in run] for run in groups(segments, CONFIG)] == [[0, 10], [2**31 - 1]]


def test_runs_stay_within_an_index() -> None:
    config = LogConfig(segment_bytes=1 << 30, segment_index_bytes=108, index_interval_bytes=100)
    segments = [segment(base, base + 10, 300) for base in range(0, 60, 10)]
    assert [len(run) for run in groups(segments, config)] == [2, 2, 2]


def test_runs_stay_within_the_aborted_transactions_of_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: markers stay when their records go, so a merged segment could have millions. An object's footer names
    them all (TX44)."""
    monkeypatch.setattr(cleanable_room, "ABORTED_MAX", 4)
    segments = [segment(base, base + 10, 10) for base in range(0, 50, 10)]
    for one, count in zip(segments, (3, 1, 0, 5, 1), strict=True):
        entries = [AbortedTransaction(7, one.base_offset, one.base_offset + at, 0) for at in range(count)]
        one.aborted = AbortedIndex(entries) if entries else None
    assert [[one.base_offset for one in run] for run in groups(segments, CONFIG)] == [[0, 10, 20], [30], [40]]
