"""Scanning splits: each row once and in order; what is lost is named, and stepped over exactly when that is wanted."""

from __future__ import annotations

import os
import re
import struct
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import thermocline
from coldstore.keys import SegmentKey
from coldstore.segments.segment_object import DecidedTransaction, TransactionOutcome
from logformat.errors import InvalidRequest
from logformat.gap import gap_batches
from logformat.record_batch import HEADER_SIZE, Codec, read_header, walk
from logformat.records import Record, encode_batch
from logformat.values import TopicPartition
from tests.support.pipeline.history_bucket import T0, HistoryBucket, batch, records
from thermocline.pipeline import plan as planning
from thermocline.pipeline.arrow_store import ArrowStore, open_arrow_store
from thermocline.pipeline.history import History
from thermocline.pipeline.scan import scan
from thermocline.pipeline.spark.options import parse_options
from thermocline.pipeline.spark.tiers import Tiers
from thermocline.pipeline.split import DataLoss, Loss

COLUMNS = ("offset", "key", "value")


def a_bucket(path: Path, segments: list[list[int]], **options: int) -> tuple[HistoryBucket, list[SegmentKey]]:
    bucket = HistoryBucket(path)
    bucket.topic("events")
    return bucket, bucket.fill("events", 0, segments, **options)


def rows(
    bucket: HistoryBucket, *, fail: bool = True, loss: Loss | None = None, window_bytes: int = 2000, **asked: object
) -> list[tuple[int, bytes, bytes]]:
    """All rows of events-0 (or of the range asked), scanned as one task after the other would."""
    found: list[tuple[int, bytes, bytes]] = []
    how = {"window_bytes": window_bytes, "prefetch": asked.pop("prefetch", None)}
    loss = Loss() if loss is None else loss
    with History.open(bucket.url) as history:
        part = history.partition("events", 0)
        start, end = asked.pop("start", part.log_start), asked.pop("end", part.remote_end)
        splits = history.plan({("events", 0): (start, end)}, fail_on_data_loss=fail, loss=loss, **asked)
        for split in splits:
            scanned = scan(history.store, split, COLUMNS, fail_on_data_loss=fail, loss=loss, **how)
            for made in scanned:
                assert made.schema.names == list(COLUMNS)
                found += zip(*(column.to_pylist() for column in made.columns), strict=True)
    return found


def expected(first: int, end: int) -> list[tuple[int, bytes, bytes]]:
    return [(r.offset, r.key, r.value) for r in records(first, end - first)]


def offsets(found: list[tuple[int, bytes, bytes]]) -> list[int]:
    return [row[0] for row in found]


@given(
    segments=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=40), min_size=1, max_size=4),
    bounds=st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)),
    target=st.integers(500, 20_000),
    window=st.sampled_from([1, 700, 3000, 1 << 20]),
    prefetch=st.sampled_from([0, 1, 2]),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_row_once_and_in_order(tmp_path_factory, segments, bounds, target, window, prefetch):
    """Whatever the objects, the cuts and the windows: exactly the rows asked for."""
    bucket, _ = a_bucket(tmp_path_factory.mktemp("b"), segments)
    total = sum(map(sum, segments))
    start, end = sorted((bounds[0] % (total + 1), bounds[1] % (total + 1)))
    got = rows(bucket, start=start, end=end, target_bytes=target, window_bytes=window, prefetch=prefetch)
    assert got == expected(start, end)


def test_all_codecs_in_one_segment(tmp_path):
    """Compressed batches come out as the others do."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("events")
    made = [
        encode_batch(records(n * 50, 50), base_offset=n * 50, leader_epoch=1, codec=codec)
        for n, codec in enumerate(Codec)
    ]
    bucket.append("events", 0, made)
    assert rows(bucket) == expected(0, 250)


def test_a_declared_gap_is_counted_and_no_error(tmp_path):
    """Offsets that hold nothing by declaration are told in the summary; rows before and behind come."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("events")
    bucket.append("events", 0, [batch(0, 10), *gap_batches(10, 5000, 1), batch(5000, 10)])
    loss = Loss()
    assert rows(bucket, loss=loss) == expected(0, 10) + expected(5000, 5010)
    assert loss.gaps == [("events", 0, 10, 5000)] and not loss.damage


def with_transactions(path: Path) -> tuple[HistoryBucket, SegmentKey, int]:
    """One object: producer 7 aborted offsets 0 to 4, producer 8 committed 5 to 9, 10 to 14 are plain. And its key and
    log bytes."""
    bucket = HistoryBucket(path)
    bucket.topic("events")

    def of(producer: int, base: int) -> bytes:
        return encode_batch(
            records(base, 5), base_offset=base, leader_epoch=1, producer_id=producer, producer_epoch=0, base_sequence=0,
            transactional=True,
        )  # fmt: skip

    decided = [
        DecidedTransaction(7, 0, 0, 20, TransactionOutcome.ABORTED),
        DecidedTransaction(8, 0, 5, 21, TransactionOutcome.COMMITTED),
    ]
    batches = [of(7, 0), of(8, 5), batch(10, 5)]
    key = bucket.append("events", 0, batches, transactions=decided)
    return bucket, key, sum(map(len, batches))


def test_aborted_records_are_not_seen(tmp_path):
    """The footer's decided transactions say whose records nobody may see; committed ones stay."""
    bucket, _, _ = with_transactions(tmp_path)
    assert offsets(rows(bucket)) == list(range(5, 15))


def test_all_records_are_seen_where_they_are_asked_for(tmp_path):
    bucket, _, _ = with_transactions(tmp_path)
    with thermocline.read(bucket.url, "events", isolation_level="read_uncommitted") as reader:
        assert reader.to_table()["offset"].to_pylist() == list(range(15))
    with thermocline.read(bucket.url, "events") as reader:
        assert reader.to_table()["offset"].to_pylist() == list(range(5, 15))
    with pytest.raises(InvalidRequest, match="read_committed"):
        thermocline.read(bucket.url, "events", isolation_level="serializable")


def test_without_its_footer_an_object_with_transactions_is_not_shown(tmp_path):
    """TX45: only the footer knows what was aborted. Damage allowed, the object is stepped over, and never guessed."""
    bucket, key, log_bytes = with_transactions(tmp_path)
    bucket.flip(key, log_bytes + 5)
    with pytest.raises(DataLoss, match="footer is damaged"):
        rows(bucket)
    loss = Loss()
    assert rows(bucket, fail=False, loss=loss) == [] and "2 transactions" in loss.damage[0]
    with thermocline.read(bucket.url, "events", isolation_level="read_uncommitted", fail_on_data_loss=False) as reader:
        assert reader.to_table()["offset"].to_pylist() == list(range(15))


@pytest.mark.parametrize(("level", "first"), [("read_uncommitted", 0), ("read_committed", 5)])
def test_a_starting_time_finds_the_records_that_are_read(tmp_path, level, first):
    """Regression: with read_uncommitted the aborted records before the first committed one were left out."""
    bucket, _, _ = with_transactions(tmp_path)
    tiers = Tiers(parse_options({"bucket": bucket.url, "subscribe": "events", "isolation.level": level}))
    try:
        place = TopicPartition("events", 0)
        assert tiers.first_at(tiers.states(tiers.partitions()), {place: T0}) == {place: first}
    finally:
        tiers.close()


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def positions(bucket: HistoryBucket, key: SegmentKey, log_bytes: int) -> list[tuple[int, int, int, int]]:
    """(position, size, base offset, next offset) of each batch of an object."""
    data = bucket.object_path(key).read_bytes()[:log_bytes]
    return [(at, header.size, header.base_offset, header.next_offset) for at, header in walk(data)]


@pytest.fixture(scope="module")
def three_segments(tmp_path_factory):
    return a_bucket(tmp_path_factory.mktemp("three"), [[5] * 30] * 3)


@given(
    place=st.floats(0, 1, exclude_max=True),
    mask=st.sampled_from([1, 2, 0x10, 0x80]),
    window=st.sampled_from([700, 3000, 1 << 20]),
)
@settings(max_examples=100, deadline=None)
def test_a_flipped_bit_never_passes_silently(three_segments, place, mask, window):
    """A bit of the log flipped: an error that names object and offsets, and without it a loss of about a batch.

    Every row that comes is right; what does not come is inside the range that was named. (Four bytes of a header, the
    leader epoch, say nothing about rows: flipped, they may pass.)
    """
    bucket, keys = three_segments
    log_bytes = len(b"".join(batch(base, 5) for base in range(150, 300, 5)))
    at = int(place * log_bytes)
    hit = next(b for b in positions(bucket, keys[1], log_bytes) if b[0] <= at < b[0] + b[1])
    bucket.flip(keys[1], at, mask)
    try:
        check_flip(bucket, keys[1], at, hit, window)
    finally:
        bucket.flip(keys[1], at, mask)


def check_flip(bucket: HistoryBucket, key: SegmentKey, at: int, hit: tuple[int, int, int, int], window: int) -> None:
    loss = Loss()
    got = rows(bucket, fail=False, loss=loss, window_bytes=window)
    assert set(got) <= set(expected(0, 450)) and offsets(got) == sorted(offsets(got))
    missing = sorted(set(range(450)) - set(offsets(got)))
    if not missing:
        assert 12 <= at - hit[0] < 16, "a flip in a batch's header that nobody noticed"
        return
    assert set(range(hit[2], hit[3])) <= set(missing) and len(missing) <= 30, (hit, missing)
    assert all(str(key) in told for told in loss.damage)
    named = [tuple(map(int, re.search(r"offsets \[(\d+), (\d+)\)", told).groups())) for told in loss.damage]
    assert set(missing) <= {offset for start, end in named for offset in range(start, end)}
    if not 23 <= at - hit[0] < 27:  # where the batch ends: the window before it may take itself for damaged too
        assert named == [(missing[0], missing[-1] + 1)]
    with pytest.raises(DataLoss) as caught:
        rows(bucket, window_bytes=window)
    for word in ("events-0", str(key), f"[{named[0][0]}, ", "thermocline scrub", "failOnDataLoss"):
        assert word in str(caught.value)


@pytest.mark.parametrize("mask", [1, 0x80])
def test_a_flipped_bit_where_the_read_ends_never_passes_silently(three_segments, mask):
    """The header of the last wanted batch says where it ends, before its CRC is known: no bit of it misleads."""
    bucket, keys = three_segments
    log_bytes = len(b"".join(batch(base, 5) for base in range(150, 300, 5)))
    last = next(b for b in positions(bucket, keys[1], log_bytes) if b[2] == 200)
    for at in range(last[0], last[0] + 100):
        bucket.flip(keys[1], at, mask)
        try:
            got = rows(bucket, window_bytes=700, end=203)
        except DataLoss:
            continue
        finally:
            bucket.flip(keys[1], at, mask)
        assert got == expected(0, 203), at - last[0]


@pytest.mark.parametrize("large", [False, True])
def test_a_read_that_ends_inside_an_object_fetches_little_behind_its_end(tmp_path, monkeypatch, large):
    """The index names a batch at or behind the end: no more than it is read, at once unless it is a large one."""
    sizes = [5] * 30
    sizes[20] = 40 if large else 5
    bucket, (key,) = a_bucket(tmp_path, [sizes], interval=2000)
    fetched: list[tuple[int, int]] = []
    read = ArrowStore.read
    monkeypatch.setattr(
        ArrowStore, "read", lambda self, name, at, size: fetched.append((at, at + size)) or read(self, name, at, size)
    )
    assert rows(bucket, window_bytes=5000, end=102) == expected(0, 102)
    placed = positions(bucket, key, sum(len(batch(n, size)) for n, size in zip(starts(sizes), sizes, strict=True)))
    average = (placed[-1][0] + placed[-1][1]) // len(placed)
    log = [span for span in fetched if span[1] < bucket.object_path(key).stat().st_size]
    ends = next(at + size for at, size, _, after in placed if after >= 102)
    assert max(end for _, end in log) <= ends + 2000 + 2 * average, (log, ends)


def test_a_last_batch_larger_than_guessed_costs_its_rest(tmp_path, monkeypatch):
    """One more request for what is missing of it: of what was fetched only headers between windows come twice."""
    monkeypatch.setattr(planning, "INDEX_WORTH_BYTES", 0)
    sizes = [5] * 30
    sizes[20] = 40
    bucket, (key,) = a_bucket(tmp_path, [sizes], interval=1)
    fetched: list[tuple[int, int]] = []
    read = ArrowStore.read
    monkeypatch.setattr(
        ArrowStore, "read", lambda self, name, at, size: fetched.append((at, at + size)) or read(self, name, at, size)
    )
    assert rows(bucket, window_bytes=5000, end=102) == expected(0, 102)
    log_bytes = bucket.segments("events", 0)[0].log_bytes
    ends = next(at + size for at, size, _, after in positions(bucket, key, log_bytes) if after >= 102)
    log = sorted(span for span in fetched if span[1] <= log_bytes)
    assert log[-1][1] == ends and len(log) == 3
    assert all(one[1] - two[0] <= HEADER_SIZE for one, two in pairwise(log))


def starts(sizes: list[int]) -> list[int]:
    return [sum(sizes[:at]) for at in range(len(sizes))]


def test_rows_before_the_damage_come_first(tmp_path):
    """A reader that fails has given what lies before; so a task's progress is honest."""
    bucket, keys = a_bucket(tmp_path, [[5] * 30])
    segment = bucket.segments("events", 0)[0]
    position, _, base, _ = positions(bucket, keys[0], segment.log_bytes)[17]
    bucket.flip(keys[0], position + 70)
    seen: list[int] = []
    with History.open(bucket.url) as history:
        (split,) = history.plan({("events", 0): (0, 150)})
        with pytest.raises(DataLoss):
            for made in scan(history.store, split, ("offset",)):
                seen += made.column(0).to_pylist()
    assert seen == list(range(base))


@pytest.mark.parametrize("fail", [True, False])
def test_an_object_that_is_gone(tmp_path, fail):
    """The manifest still names it: loss of exactly its offsets."""
    bucket, keys = a_bucket(tmp_path, [[5] * 10] * 3)
    bucket.object_path(keys[1]).unlink()
    loss = Loss()
    if fail:
        with pytest.raises(DataLoss, match=r"offsets \[50, 100\).*missing, and the manifest still names it"):
            rows(bucket)
        return
    assert offsets(rows(bucket, fail=False, loss=loss)) == [*range(50), *range(100, 150)]
    assert len(loss.damage) == 1 and str(keys[1]) in loss.damage[0]


def test_an_object_that_expires_while_it_is_read(tmp_path):
    """The plan was made before retention moved the log's start: the reason is told, not corruption."""
    bucket, _ = a_bucket(tmp_path, [[5] * 10] * 3)
    with History.open(bucket.url) as history:
        splits = history.plan({("events", 0): (0, 150)}, target_bytes=3200)
        assert len(splits) == 3
        bucket.expire("events", 0, 100)
        with pytest.raises(DataLoss, match=r"expired while reading: the log starts at 100 now.*earliest"):
            list(scan(history.store, splits[0], COLUMNS))
        assert sum(made.num_rows for split in splits[-1:] for made in scan(history.store, split, COLUMNS)) == 50


def test_a_topic_that_is_deleted_while_it_is_read(tmp_path):
    """Manifest and objects are gone."""
    bucket, keys = a_bucket(tmp_path, [[5] * 10])
    with History.open(bucket.url) as history:
        splits = history.plan({("events", 0): (0, 50)})
        bucket.object_path(keys[0]).unlink()
        bucket.manifest_path("events", 0).unlink()
        with pytest.raises(DataLoss, match="the topic was deleted while it was read"):
            list(scan(history.store, splits[0], COLUMNS))


@pytest.mark.parametrize("fail", [True, False])
def test_a_truncated_object(tmp_path, fail):
    """Bytes are short: with the footer gone the batches that are left are found by their headers."""
    bucket, keys = a_bucket(tmp_path, [[5] * 30] * 2)
    segment = bucket.segments("events", 0)[0]
    cut, _, base, _ = positions(bucket, keys[0], segment.log_bytes)[20]
    path = bucket.object_path(keys[0])
    path.write_bytes(path.read_bytes()[: cut + 30])
    loss = Loss()
    if fail:
        with pytest.raises(DataLoss, match="were committed"):
            rows(bucket)
        return
    got = rows(bucket, fail=False, loss=loss)
    assert offsets(got) == [*range(base), *range(150, 300)]
    assert any(f"offsets [{base}, 150) are lost" in line for line in loss.damage), loss.damage


def test_a_damaged_footer_loses_no_row_to_a_reader_that_goes_on(tmp_path):
    """The footer is not the log: with damage allowed all rows come, and the damage is told."""
    bucket, keys = a_bucket(tmp_path, [[5] * 30] * 2)
    segment = bucket.segments("events", 0)[0]
    bucket.flip(keys[0], segment.log_bytes + 5)
    with pytest.raises(DataLoss, match="footer is damaged"):
        rows(bucket)
    loss = Loss()
    assert rows(bucket, fail=False, loss=loss) == expected(0, 300)
    assert len(loss.damage) == 1 and "read without an index" in loss.damage[0]


def test_swapped_objects_are_not_read(tmp_path):
    """Whole objects under each other's names: their rows are not the ones that were asked for."""
    bucket, keys = a_bucket(tmp_path, [[5] * 30] * 2)
    one, other = (bucket.object_path(key) for key in keys)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    loss = Loss()
    assert not rows(bucket, fail=False, loss=loss)
    assert len(loss.damage) == 2
    with pytest.raises(DataLoss):
        rows(bucket)


@pytest.mark.parametrize("window", [700, 1 << 20])
def test_an_undeclared_hole_inside_an_object(tmp_path, window):
    """A batch that is cut out (all that is left is whole, and has its CRC): its offsets are named."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("events")
    made = [batch(n * 5, 5) for n in range(40)]
    at = sum(len(one) for one in made[:20])
    log = bytearray(b"".join(made))
    # In its place, of the same size, its neighbour's content under the neighbour's offsets: bytes fit, offsets do not.
    log[at : at + len(made[20])] = made[20][:8] + made[20][8:]
    struct.pack_into(">q", log, at, 105)
    bucket.append("events", 0, made, damage=bytes(log))
    loss = Loss()
    got = rows(bucket, fail=False, loss=loss, window_bytes=window)
    assert offsets(got) == [*range(100), *range(105, 200)]
    assert len(loss.damage) == 1 and "offsets [100, 105)" in loss.damage[0]
    with pytest.raises(DataLoss, match=r"offsets \[100, 105\)"):
        rows(bucket, window_bytes=window)


def test_a_poisonous_batch_with_a_right_checksum(tmp_path):
    """A client's nonsense, well sealed: the batch is named, and stepped over when that is wanted."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("events")
    bad = bytearray(batch(50, 5))
    bad[61] ^= 0x02  # the first record's length
    from crc32c import crc32c

    bad[17:21] = crc32c(memoryview(bad)[21:]).to_bytes(4, "big")
    bucket.append("events", 0, [batch(0, 50), bytes(bad), batch(55, 45)])
    loss = Loss()
    got = rows(bucket, fail=False, loss=loss)
    assert offsets(got) == [*range(50), *range(55, 100)], loss
    assert len(loss.damage) == 1 and "offsets [50, 55)" in loss.damage[0]
    with pytest.raises(DataLoss, match=r"offsets \[50, 55\)"):
        rows(bucket)


def test_time_range_rows_and_bytes(tmp_path):
    """An hour out of a month, records in order: exactly its rows, and hardly more bytes than its own."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("events")
    for number in range(40):
        base = number * 2000
        bucket.append("events", 0, [batch(base + n, 50, value_bytes=400) for n in range(0, 2000, 50)], interval=8192)
    low, high = T0 + 21_000, T0 + 24_000
    got, fetched = [], 0
    with History.open(bucket.url) as history:
        before = history.store.bytes_read
        splits = history.plan(
            {("events", 0): (0, 80_000)},
            min_timestamp_ms=low,
            max_timestamp_ms=high,
            late_ms=0,
            target_bytes=1 << 20,
        )
        for split in splits:
            for made in scan(history.store, split, ("offset",), window_bytes=1 << 18):
                got += made.column(0).to_pylist()
        fetched = history.store.bytes_read - before
    assert got == list(range(21_000, 24_000))
    of_that_hour = sum(len(batch(n, 50, value_bytes=400)) for n in range(21_000, 24_000, 50))
    assert fetched < 1.2 * of_that_hour + 64 * 1024 * 3, (fetched, of_that_hour)


def test_records_out_of_order_in_time(tmp_path):
    """Timestamps that jump: the prefix that is skipped holds no wanted record."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("events")
    stamps = [T0 + (n * 7919) % 1000 for n in range(600)]
    made = []
    for base in range(0, 600, 10):
        some = [Record(n, stamps[n], b"k", b"v" * 50) for n in range(base, base + 10)]
        some.sort(key=lambda r: r.timestamp)
        some = [Record(base + i, r.timestamp, r.key, r.value) for i, r in enumerate(some)]
        made.append(encode_batch(some, base_offset=base, leader_epoch=1))
    for at in range(0, 60, 20):
        bucket.append("events", 0, made[at : at + 20])
    wanted = sorted(stamp for stamp in stamps if T0 + 200 <= stamp < T0 + 300)
    times: list[int] = []
    with History.open(bucket.url) as history:
        for split in history.plan({("events", 0): (0, 600)}, min_timestamp_ms=T0 + 200, max_timestamp_ms=T0 + 300):
            for found in scan(history.store, split, ("timestamp",), window_bytes=1000):
                times += [int(t.timestamp() * 1000 + 0.5) for t in found.column(0).to_pylist()]
    assert sorted(times) == wanted


def test_a_directory_is_read_by_the_thread_that_decodes(tmp_path, monkeypatch):
    """What it reads is in its cache then. The kernel is told of each window before: from a disk it comes meanwhile."""
    bucket, _ = a_bucket(tmp_path, [[5] * 100] * 2)
    told: list[tuple[int, int]] = []
    read: list[tuple[int, int]] = []
    advise, answer = os.posix_fadvise, ArrowStore.read

    def noted(self: ArrowStore, key: str, at: int, size: int) -> pa.Buffer:
        assert threading.current_thread() is threading.main_thread()
        read.append((at, size))
        assert len(read) <= 2 or (at, size) in told or at + size == self.size(key)
        return answer(self, key, at, size)

    monkeypatch.setattr(
        os, "posix_fadvise", lambda fd, at, size, how: told.append((at, size)) or advise(fd, at, size, how)
    )
    monkeypatch.setattr(ArrowStore, "read", noted)
    before = threading.active_count()
    store = open_arrow_store(bucket.url)
    with History(store) as history:
        splits = history.plan({("events", 0): (0, 500)})
        planning_threads = threading.active_count() - before
        (split,) = splits
        assert sum(made.num_rows for made in scan(store, split, COLUMNS, window_bytes=2000)) == 500
        assert threading.active_count() == before + planning_threads
    assert len(told) == len(set(told)) > 10


def test_closing_early_ends_the_threads(tmp_path):
    """A task that stops in the middle (a LIMIT) leaves nothing running."""
    bucket, _ = a_bucket(tmp_path, [[5] * 100] * 5)
    store = open_arrow_store(bucket.url)
    with History(store) as history:
        (split,) = history.plan({("events", 0): (0, 2500)})
        scanned: Any = scan(store, split, COLUMNS, window_bytes=500, prefetch=2)
        assert isinstance(next(scanned), pa.RecordBatch)
        scanned.close()
    for thread in threading.enumerate():
        if thread.name.startswith("scan"):
            thread.join(5)
            assert not thread.is_alive()


def test_a_header_tells_its_segment(tmp_path):
    """`read_header` of what the support module writes: the base offset is where the plan thinks it is."""
    bucket, keys = a_bucket(tmp_path, [[5] * 3, [5] * 3])
    assert read_header(bucket.object_path(keys[1]).read_bytes()).base_offset == 15
