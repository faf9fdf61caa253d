"""Every filter by time and offset against a reading of every record, over logs as ugly as they come.

Indexes only say where to begin and to stop: whoever asks for rows of a time gets exactly those that a reader of
everything would keep. At the plan, through `thermocline.read`, as Spark plans it, and for ListOffsets in both tiers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import thermocline
from hotstore.log.log_config import LogConfig
from logformat.errors import InvalidRequest
from logformat.record_batch import NO_TIMESTAMP, read_header
from logformat.records import Record, encode_batch
from seams.loop.tasks import Tasks
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import append, flush, new_log, open_log, seal
from tests.support.fast_loop import run_fast
from tests.support.pipeline.decode_logs import read_slowly
from tests.support.pipeline.history_bucket import HistoryBucket
from tests.support.pipeline.ugly_logs import T0, UglyLog, bounds, offsets_for, ticks, ugly_logs
from tests.support.store.memory_store import MemoryStore
from tests.support.tier.cold_log import ColdLog, FixedManifests, manifest_of, put, reading
from tests.support.tier.cold_objects import MadeObject, object_of
from tests.support.tier.packed_footers import packing, thin
from tests.support.workers import LoopWorkers
from thermocline.pipeline import plan as planning
from thermocline.pipeline.plan import OffsetSpan, TimeRange, plan
from thermocline.pipeline.read import _milliseconds
from thermocline.pipeline.scan import scan
from thermocline.pipeline.spark.options import parse_options
from thermocline.pipeline.spark.planning.filters import Bounds
from thermocline.pipeline.spark.planning.offsets import TopicPartition
from thermocline.pipeline.spark.planning.planner import plan_tasks
from thermocline.pipeline.spark.tiers import Tiers
from thermocline.pipeline.split import Split

pytestmark = pytest.mark.not_fast

TOPIC_ID = UUID(int=5)
intervals = st.sampled_from([0, 100, 500, 65536])
"""Of the offset index, in bytes: an entry a batch, every few, or none at all."""
forms = st.sampled_from([None, "packed", "thin"])
"""Of the footers: as short ones are; with packed indexes; and these as a reader sees them that knows only thin ones."""
lateness = st.one_of(st.none(), st.sampled_from([0, 1, 1000]))
"""Added to how late records of the log are; None: nothing is said about it."""


def objects_of(log: UglyLog, interval: int, form: str | None = None) -> list[MadeObject]:
    made = []
    for number, batches in enumerate(log.segments):
        base, end = read_header(batches[0]).base_offset, read_header(batches[-1]).next_offset
        with packing(always=form is not None):
            one = object_of(batches, base, end - base, 1, number + 1, interval=interval)
        made.append(replace(one, footer=thin(one.footer)) if form == "thin" else one)
    return made


def one_segment_of(*batches: list[int]) -> UglyLog:
    """A record a timestamp."""
    made, base = [], 0
    for times in batches:
        records = [Record(base + n, at, b"k", b"v") for n, at in enumerate(times)]
        made.append(encode_batch(records, base_offset=base, leader_epoch=1))
        base += len(times)
    return UglyLog((tuple(made),))


@settings(max_examples=200)
@given(
    log=ugly_logs(),
    interval=intervals,
    form=forms,
    low=bounds,
    high=bounds,
    late=lateness,
    asked=st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 20)),
    target=st.sampled_from([200, 2000, 1 << 20]),
    max_records=st.sampled_from([None, 7, 100]),
)
@example(one_segment_of([T0, T0, T0]), 100, None, T0, None, None, (0, 3), 200, None)
@example(one_segment_of([NO_TIMESTAMP, T0], [T0 + 2000]), 100, None, None, T0 + 1, 0, (0, 3), 200, None)
def test_a_plan_holds_every_wanted_row_once(
    log: UglyLog,
    interval: int,
    form: str | None,
    low: int | None,
    high: int | None,
    late: int | None,
    asked: tuple[int, int],
    target: int,
    max_records: int | None,
) -> None:
    """The rows that the splits' bytes and filters give are those of a reader of everything: none lost, none twice."""
    start, end = offsets_for(log, asked)
    assume(start < end)
    made = objects_of(log, interval, form)
    times = TimeRange(low, high, None if late is None else log.lateness_ms + late)
    entries = tuple(one.entry for one in made if one.entry.end_offset > start and one.entry.base_offset < end)
    span = OffsetSpan("events", TOPIC_ID, 0, start, end, 0, log.end, entries)
    footers = {one.entry.uuid: one.footer for one in made}
    logs = {one.entry.uuid: one.log for one in made}
    for known in (footers, {}):
        splits = plan([span], known, times, target_bytes=target, max_records=max_records).splits
        rows = []
        for split in splits:
            for piece in split.pieces:
                data = logs[piece.segment.uuid][piece.log_start : piece.log_end]
                found, poison = read_slowly(data, split.rows)
                assert poison is None, "cut inside a batch"
                rows += [row["offset"] for row in found]
        assert rows == log.wanted(start, end, low, high)


# ── through the readers ──────────────────────────────────────────────────────────────────────────────────────────────
@contextmanager
def bucket_of(log: UglyLog, interval: int, *, pages: bool, packed: bool) -> Iterator[HistoryBucket]:
    """A bucket with the log; every footer is worth its request, and windows are small."""
    worth = mock.patch.object(planning, "INDEX_WORTH_BYTES", 0)
    with tempfile.TemporaryDirectory() as place, worth, packing(always=packed):
        bucket = HistoryBucket(Path(place), pages=pages)
        bucket.topic("t", 1)
        for batches in log.segments:
            bucket.append("t", 0, batches, interval=interval)
        yield bucket


@settings(max_examples=40)
@given(
    log=ugly_logs(segments_max=3, batches_max=8),
    interval=intervals,
    low=bounds,
    high=bounds,
    late=lateness,
    asked=st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 20)),
    pages=st.booleans(),
    packed=st.booleans(),
    at=ticks,
)
def test_read_and_spark_give_every_wanted_row_once(
    log: UglyLog,
    interval: int,
    low: int | None,
    high: int | None,
    late: int | None,
    asked: tuple[int, int],
    pages: bool,
    packed: bool,
    at: int,
) -> None:
    """`thermocline.read`, a Spark batch with these filters pushed, and `startingTimestamp`."""
    start, end = offsets_for(log, asked)
    late_ms = None if late is None else log.lateness_ms + late
    wanted = log.wanted(start, end, low, high)
    with bucket_of(log, interval, pages=pages, packed=packed) as bucket:
        found = thermocline.read(
            bucket.url,
            "t",
            start,
            end,
            start_timestamp=low,
            end_timestamp=high,
            late_ms=late_ms,
            columns=("offset",),
            threads=1,
        ).to_table()
        assert found["offset"].to_pylist() == wanted
        assert spark_rows(bucket, Bounds(start, end, low, high), late_ms) == wanted
        assert starting_offset(bucket, at) == next(iter(log.wanted(low=at)), None)


def test_a_clock_of_whole_seconds_loses_no_row_and_is_read_sparsely(tmp_path: Path) -> None:
    """20 seconds of 1 000 records each, 50 to a batch. A time index names the last record of the batch with a new
    second: taken for the first one, 49 rows of every second but the first were gone."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("t", 1)
    made = []
    for base in range(0, 20_000, 50):
        records = [Record(n, T0 + n // 1000 * 1000, b"%d" % n, b"v" * 300) for n in range(base, base + 50)]
        made.append(encode_batch(records, base_offset=base, leader_epoch=1))
    bucket.append("t", 0, made, interval=65536)
    for second in range(20):
        at = T0 + 1000 * second
        reader = thermocline.read(bucket.url, "t", start_timestamp=at, columns=("offset",))
        assert reader.to_table()["offset"].to_pylist() == list(range(1000 * second, 20_000))
        assert starting_offset(bucket, at) == 1000 * second
        wanted = sum(map(len, made)) * (20 - second) // 20
        assert reader.bytes_fetched < wanted + 65536 + 3 * len(made[0]) + 16384, "an index interval, batches, metadata"


def spark_rows(bucket: HistoryBucket, wanted: Bounds, late_ms: int | None) -> list[int]:
    """Offsets that the tasks of a Spark batch give, in order."""
    options = {"bucket": bucket.url, "subscribe": "t", "targetPartitionBytes": "1m"}
    parsed = parse_options(options if late_ms is None else {**options, "lateMs": str(late_ms)})
    tiers = Tiers(parsed)
    try:
        states = tiers.states(tiers.partitions())
        ranges = {tp: (state.extent.start, state.extent.end) for tp, state in states.items()}
        parts = [part for task in plan_tasks(tiers, states, ranges, wanted, parsed) for part in task]
        assert all(isinstance(part, Split) for part in parts), "no cluster was named"
        store = tiers.history.store
        return [o for part in parts for b in scan(store, part, ("offset",)) for o in b.column(0).to_pylist()]
    finally:
        tiers.close()


def starting_offset(bucket: HistoryBucket, timestamp: int) -> int | None:
    """Where `startingTimestamp` begins."""
    tiers = Tiers(parse_options({"bucket": bucket.url, "subscribe": "t"}))
    try:
        place = TopicPartition("t", 0)
        return tiers.first_at(tiers.states(tiers.partitions()), {place: timestamp})[place]
    finally:
        tiers.close()


# ── ListOffsets ──────────────────────────────────────────────────────────────────────────────────────────────────────
@settings(max_examples=100, deadline=None)
@given(
    log=ugly_logs(),
    interval=intervals,
    timestamps=st.lists(st.one_of(ticks, ticks.map(lambda at: at + 1)), min_size=1, max_size=4),
    log_start=st.integers(0, 1 << 20),
    before=st.integers(0, 1 << 20),
    packed=st.booleans(),
)
def test_the_cold_tier_finds_the_first_record_of_a_time(
    log: UglyLog, interval: int, timestamps: list[int], log_start: int, before: int, packed: bool
) -> None:
    made = objects_of(log, interval, "packed" if packed else None)
    start, end = offsets_for(log, (log_start, before))
    manifests = FixedManifests(manifest_of(made).set_log_start(start))

    async def main() -> list[tuple[int, int] | None]:
        store = MemoryStore()
        await put(store, ColdLog(made, manifests))
        async with reading(store, CrashDisk(), LoopWorkers(), Tasks()) as reader:
            return [await reader.offset_for_timestamp(manifests, at, end) for at in timestamps]

    with packing(always=packed):
        answers = run_fast(main())
    for at, found in zip(timestamps, answers, strict=True):
        offset = log.first_at(at, start)
        assert (None if found is None else found[1]) == (offset if offset is not None and offset < end else None)


@settings(max_examples=100, deadline=None)
@given(
    log=ugly_logs(only_produced=True),
    interval=st.sampled_from([0, 100, 4096]),
    timestamps=st.lists(st.one_of(ticks, ticks.map(lambda at: at + 1)), min_size=1, max_size=4),
    sealed=st.booleans(),
    reopened=st.booleans(),
)
def test_the_local_log_finds_the_first_record_of_a_time(
    log: UglyLog, interval: int, timestamps: list[int], sealed: bool, reopened: bool
) -> None:
    """With indexes in memory, in files, and after a restart. The newest record too (ListOffsets −3)."""
    disk = CrashDisk()
    config = LogConfig(index_interval_bytes=interval)
    directory, local = new_log(disk, config)
    for batches in log.segments:
        for batch in batches:
            append(local, bytearray(batch), leader_epoch=1)
        local.roll()
    flush(local)
    if sealed:
        seal(local)
    if reopened:
        local.close(clean=True)
        directory.checkpoints.sample([local]).run()
        directory.mark_clean()
        _, local = open_log(disk.kill(), config)
    for at in timestamps:
        found = local.offset_for_timestamp(at)
        assert (None if found is None else found.offset) == log.first_at(at)
    newest = local.max_timestamp()
    assert (None if newest is None else (newest.offset, newest.timestamp)) == log.newest()


# ── moments ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@given(st.integers(-(10**9), 4 * 10**15), st.integers(-14 * 60, 14 * 60))
def test_a_moment_is_the_first_millisecond_that_is_not_before_it(microseconds: int, zone_minutes: int) -> None:
    """A log has whole milliseconds: `[start, end)` of moments between two of them begins and ends at the later one."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    asked = moment.astimezone(timezone(timedelta(minutes=zone_minutes)))
    assert _milliseconds("start_timestamp", asked) == -(-microseconds // 1000)


def test_a_moment_needs_a_zone() -> None:
    with pytest.raises(InvalidRequest, match="no time zone"):
        _milliseconds("start_timestamp", datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point
