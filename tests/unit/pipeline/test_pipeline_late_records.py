"""Records that stand behind younger ones: an upper bound of time never loses them unless the caller says how late they
may be.

A segment's smallest timestamp is that of its batches' first records, so inside a batch anything may follow.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import thermocline
from logformat.records import Record, encode_batch
from tests.support.pipeline.history_bucket import T0, HistoryBucket
from thermocline.pipeline.history import History
from thermocline.pipeline.scan import scan
from thermocline.pipeline.spark.options import parse_options
from thermocline.pipeline.spark.planning.filters import Bounds
from thermocline.pipeline.spark.planning.planner import plan_tasks
from thermocline.pipeline.spark.tiers import Tiers
from thermocline.pipeline.split import Split

BACK_FILL = [[T0 + 300, T0 + 100], [T0 + 400, T0 + 50, T0 + 500]]  # two threads and one producer; event time


def bucket_of(place: Path, batches: list[list[int]], *, pages: bool = False) -> HistoryBucket:
    """One segment a batch, one record a timestamp."""
    bucket = HistoryBucket(place, pages=pages)
    bucket.topic("t", 1)
    base = 0
    for times in batches:
        made = [Record(base + n, at, b"k", b"v") for n, at in enumerate(times)]
        bucket.append("t", 0, [encode_batch(made, base_offset=base, leader_epoch=1)])
        base += len(times)
    return bucket


@pytest.mark.parametrize("pages", [False, True])
def test_finding_1_an_upper_bound_finds_older_records_inside_a_batch(tmp_path: Path, pages: bool) -> None:
    """A batch holds 300 then 100: below 200 is the second one. In the root's tail, and in pages alone."""
    bucket = bucket_of(tmp_path, BACK_FILL + [[T0 + 1000]] * (40 if pages else 0), pages=pages)
    with History.open(bucket.url) as history:
        part = history.partition("t", 0)
        assert bool(part.manifest.pages) is pages
        splits = history.plan({("t", 0): (0, part.remote_end)}, max_timestamp_ms=T0 + 200)
        found = [o for s in splits for b in scan(history.store, s, ("offset",)) for o in b.column(0).to_pylist()]
        assert found == [1, 3]
        assert [s.base_offset for s in part.segments(0, 5, None, T0 + 200)] == [0, 2]


def test_finding_1_read_without_a_bound_on_lateness_finds_them(tmp_path: Path) -> None:
    bucket = bucket_of(tmp_path, BACK_FILL)
    table = thermocline.read(bucket.url, "t", end_timestamp=T0 + 200, late_ms=None, columns=("offset",)).to_table()
    assert table["offset"].to_pylist() == [1, 3]


@pytest.mark.parametrize(("batches", "within_5_min"), [([[T0 + 3_600_000], [T0]], [1]), ([[T0 + 3_600_000, T0]], [])])
def test_finding_8_read_by_default_finds_a_back_fill(
    tmp_path: Path, batches: list[list[int]], within_5_min: list[int]
) -> None:
    """An hour late, in an object of its own or inside a batch. With `late_ms` what begins later is not opened."""
    bucket = bucket_of(tmp_path, batches)

    def rows(**more: int) -> list[int]:
        table = thermocline.read(bucket.url, "t", end_timestamp=T0 + 1000, columns=("offset",), **more).to_table()
        return [int(offset) for offset in table["offset"].to_pylist()]

    assert rows() == rows(late_ms=3_600_000) == [1]
    assert rows(late_ms=300_000) == within_5_min


def planned(bucket: HistoryBucket, **options: str) -> list[int]:
    """First offsets of the objects that a Spark batch `WHERE timestamp < T0 + 200` opens."""
    parsed = parse_options({"bucket": bucket.url, "subscribe": "t", **options})
    tiers = Tiers(parsed)
    try:
        states = tiers.states(tiers.partitions())
        ranges = {tp: (state.extent.start, state.extent.end) for tp, state in states.items()}
        tasks = plan_tasks(tiers, states, ranges, Bounds(max_timestamp_ms=T0 + 200), parsed)
    finally:
        tiers.close()
    splits = [part for task in tasks for part in task if isinstance(part, Split)]
    return [piece.segment.base_offset for split in splits for piece in split.pieces]


def test_finding_1_spark_prunes_by_an_upper_bound_only_with_late_ms(tmp_path: Path) -> None:
    """Unset, nothing is too young; with `lateMs`, what begins so much later is not opened."""
    bucket = bucket_of(tmp_path, [*BACK_FILL, [T0 + 551], [T0 + 5000]])
    assert planned(bucket) == [0, 2, 5, 6]
    assert planned(bucket, lateMs="350") == [0, 2]
    assert planned(bucket, lateMs="0") == []
