"""Offset, time and transaction index, and the indexer that builds them as Kafka would."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logformat.errors import Corrupt
from logformat.indexes.offset_index import OffsetIndex, OffsetPosition
from logformat.indexes.segment_index import SegmentIndexer
from logformat.indexes.time_index import TimeIndex, TimestampOffset
from logformat.indexes.transaction_index import AbortedTransaction, decode_aborted, encode_aborted
from logformat.record_batch import INT32_MAX, BatchHeader
from logformat.values import NewerFormat

BASE = 1_000


@st.composite
def rising_pairs(draw: st.DrawFn, first: int = 0) -> list[tuple[int, int]]:
    """Pairs of int32 that grow strictly in both columns."""
    steps = draw(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 5000)), max_size=20))
    pairs, offset, position = [], first - 1, first - 1
    for up, along in steps:
        offset, position = offset + up, position + along
        pairs.append((offset, position))
    return pairs


@given(rising_pairs(), st.integers(-5, 25_000))
def test_offset_index_against_a_list(pairs: list[tuple[int, int]], probe: int):
    """Bytes, lookups by offset and position: all as a plain scan over the entries says."""
    index = OffsetIndex(BASE)
    for offset, position in pairs:
        assert index.fits(BASE + offset)
        index.append(BASE + offset, position)
    raw = b"".join(struct.pack(">ii", *pair) for pair in pairs)
    assert index.to_bytes() == raw
    again = OffsetIndex(BASE, memoryview(raw))
    entries = [OffsetPosition(BASE + o, p) for o, p in pairs]
    assert list(again.entries()) == entries and len(again) == len(pairs)
    assert again.last == ([OffsetPosition(BASE, 0), *entries])[-1]
    assert again.lookup(BASE + probe) == max((e for e in entries if e.offset <= BASE + probe), default=(BASE, 0))
    assert again.lookup_position(probe) == max((e for e in entries if e.position <= probe), default=(BASE, 0))


def test_offset_index_limits():
    """Relative offsets are int32; segment.index.bytes rounds down to whole entries."""
    index = OffsetIndex(BASE)
    assert index.fits(BASE) and index.fits(BASE + INT32_MAX)
    assert not index.fits(BASE - 1) and not index.fits(BASE + INT32_MAX + 1)
    index.append(BASE + INT32_MAX, INT32_MAX)
    assert OffsetIndex(BASE, index.to_bytes()).lookup(2**62) == (BASE + INT32_MAX, INT32_MAX)
    assert index.is_full(15) and not index.is_full(16)


@pytest.mark.parametrize(
    "pairs",
    [
        [(0, 0), (0, 0)],
        [(5, 10), (5, 11)],
        [(5, 10), (6, 10)],
        [(5, 10), (4, 11)],
        [(5, 10), (6, 9)],
        [(-1, 0)],
        [(0, -1)],
    ],
)
def test_offset_index_out_of_order(pairs: list[tuple[int, int]]):
    """Also the zeros that Kafka's preallocated file ends with after a crash."""
    with pytest.raises(Corrupt):
        OffsetIndex(BASE, b"".join(struct.pack(">ii", *pair) for pair in pairs))


@given(rising_pairs(first=1), st.integers(-5, 25_000))
def test_time_index_against_a_list(pairs: list[tuple[int, int]], probe: int):
    """As for offsets; a timestamp that is not greater adds nothing."""
    index = TimeIndex(BASE)
    for timestamp, offset in pairs:
        assert index.maybe_append(timestamp, BASE + offset)
        assert not index.maybe_append(timestamp, BASE + offset + 1)
    raw = b"".join(struct.pack(">qi", *pair) for pair in pairs)
    assert index.to_bytes() == raw
    again = TimeIndex(BASE, memoryview(raw))
    entries = [TimestampOffset(t, BASE + o) for t, o in pairs]
    assert list(again.entries()) == entries and len(again) == len(pairs)
    assert again.last == ([TimestampOffset(-1, BASE), *entries])[-1]
    assert again.lookup(probe) == max((e for e in entries if e.timestamp <= probe), default=(-1, BASE))


def test_time_index_limits():
    """No entry for no timestamp, and one slot kept for the entry that rolling writes."""
    index = TimeIndex(BASE)
    assert not index.maybe_append(-1, BASE)
    assert index.is_full(12 + 11) and not index.is_full(24)
    assert index.maybe_append(0, BASE)
    assert index.is_full(24)


@pytest.mark.parametrize("pairs", [[(5, 1), (5, 2)], [(5, 2), (6, 1)], [(5, 1), (4, 2)], [(-1, 0)], [(5, -1)]])
def test_time_index_out_of_order(pairs: list[tuple[int, int]]):
    """Equal timestamps never get two entries, offsets never fall."""
    with pytest.raises(Corrupt):
        TimeIndex(BASE, b"".join(struct.pack(">qi", *pair) for pair in pairs))


@given(st.binary(max_size=80))
def test_hostile_indexes_raise_corrupt_only(data: bytes):
    """Any bytes: an index whose lookups stay within its entries, or Corrupt."""
    for kind in (OffsetIndex, TimeIndex):
        with contextlib.suppress(Corrupt):
            index = kind(BASE, data)
            assert index.to_bytes() == data
            assert index.lookup(BASE + 5) in [*index.entries(), (BASE, 0), (-1, BASE)]
    with contextlib.suppress(Corrupt):
        assert encode_aborted(decode_aborted(BASE, data)) == data


@dataclass
class KafkaSegment:
    """Kafka's LogSegment.append, written down a second time: the oracle of `SegmentIndexer`."""

    interval: int
    since: int = 0
    timestamp: int = -1
    timestamp_offset: int = BASE

    def __post_init__(self) -> None:
        self.offsets: list[tuple[int, int]] = []
        self.times: list[tuple[int, int]] = []

    def append(self, last_offset: int, timestamp: int, position: int, size: int) -> None:
        if timestamp > self.timestamp:
            self.timestamp, self.timestamp_offset = timestamp, last_offset
        if self.since > self.interval:
            self.offsets.append((last_offset, position))
            self.maybe_time()
            self.since = 0
        self.since += size

    def maybe_time(self) -> None:
        if self.timestamp > (self.times[-1][0] if self.times else -1):
            self.times.append((self.timestamp, self.timestamp_offset))


batches = st.lists(st.tuples(st.integers(61, 3000), st.integers(0, 9), st.integers(-1, 50)), max_size=40)


def feed(indexer: SegmentIndexer, segment: KafkaSegment, some: list[tuple[int, int, int]], at: tuple[int, int]):
    offset, position = at
    for size, delta, timestamp in some:
        header = BatchHeader(offset, size - 12, 0, 2, 0, 0, delta, timestamp, timestamp, -1, -1, -1, 1)
        indexer.add_run((header,), offset, position)
        segment.append(offset + delta, timestamp, position, size)
        offset, position = offset + delta + 1, position + size
    return offset, position


@given(batches, batches, st.integers(0, 5000))
def test_the_indexer_puts_entries_where_kafka_does(before, after, interval: int):
    """Batch by batch, also when a restart in between left only the two index files; sealing twice adds nothing."""
    indexer, segment = SegmentIndexer(BASE, interval), KafkaSegment(interval)
    place = feed(indexer, segment, before, (BASE, 0))
    indexer.seal()
    segment.maybe_time()
    again = SegmentIndexer.resume(
        OffsetIndex(BASE, indexer.offset_index.to_bytes()),
        TimeIndex(BASE, indexer.time_index.to_bytes()),
        place[1],
        interval,
    )
    feed(again, segment, after, place)
    for _ in range(2):
        again.seal()
        segment.maybe_time()
    assert list(again.offset_index.entries()) == segment.offsets
    assert list(again.time_index.entries()) == segment.times
    assert (again.max_timestamp, again.max_timestamp_offset) == (segment.timestamp, segment.timestamp_offset)


@given(batches, st.integers(0, 60), st.integers(0, 500))
def test_looking_up_never_skips_what_is_sought(some, timestamp: int, delta: int):
    """From a lookup's position on, a scan finds the offset, and the first record that is not older."""
    indexer = SegmentIndexer(BASE, 1000)
    feed(indexer, KafkaSegment(1000), some, (BASE, 0))
    indexer.seal()
    offset, position, starts, first_young = BASE, 0, [], None
    for size, span, time in some:
        starts.append((offset, offset + span, position))
        if first_young is None and time >= timestamp:
            first_young = position
        offset, position = offset + span + 1, position + size
    for first, last, place in starts:
        if first <= BASE + delta <= last:
            assert indexer.offset_index.lookup(BASE + delta).position <= place
    if first_young is not None:
        found = indexer.time_index.lookup(timestamp)
        assert indexer.offset_index.lookup(found.offset).position <= first_young


def test_full_when_either_index_is():
    """The time index keeps one slot back, so it is full first."""
    indexer = SegmentIndexer(BASE, 0)
    feed(indexer, KafkaSegment(0), [(100, 0, 5), (100, 0, 6)], (BASE, 0))
    assert len(indexer.offset_index) == 1 and len(indexer.time_index) == 1
    assert indexer.is_full(24) and not indexer.is_full(36)


ABORTED = [
    AbortedTransaction(1, 1010, 1020, 1005),
    AbortedTransaction(2, 1000, 1030, 1025),
    AbortedTransaction(1, 1040, 1050, 1045),
]


def test_transaction_index():
    """34 bytes an entry, back and forth."""
    raw = encode_aborted(ABORTED)
    assert raw[:34] == struct.pack(">hqqqq", 0, 1, 1010, 1020, 1005) and len(raw) == 3 * 34
    assert decode_aborted(1000, memoryview(raw)) == tuple(ABORTED)


def test_transaction_index_refuses():
    """Another version, a marker before the segment or out of order, half an entry."""
    raw = encode_aborted(ABORTED)
    with pytest.raises(NewerFormat):
        decode_aborted(1000, b"\0\1" + raw[2:])
    for bad in (raw[:-1], raw[34:68] + raw[:34], b"\xff" + raw[1:]):
        with pytest.raises(Corrupt):
            decode_aborted(1000, bad)
    with pytest.raises(Corrupt):
        decode_aborted(1021, raw)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.integers(49, 900), st.integers(-1, 50)), min_size=1, max_size=9),
        max_size=9,
    ),
    st.integers(0, 2_000),
    st.integers(-1, 60),
)
def test_a_run_is_indexed_as_its_batches_one_by_one(
    runs: list[list[tuple[int, int, int]]], interval: int, append_time_ms: int
) -> None:
    """Entries byte for byte, and what the next batch depends on; a leader's headers do not say their offsets yet."""
    by_run, singly = SegmentIndexer(BASE, interval), SegmentIndexer(BASE, interval)
    offset, position = BASE, 0
    for run in runs:
        headers = []
        first, at = offset, position
        for delta, length, timestamp in run:
            sent = BatchHeader(0, length, -1, 2, 0, 0, delta, timestamp, timestamp, -1, -1, -1, delta + 1)
            headers.append(tuple(sent))
            time_ms = timestamp if append_time_ms < 0 else append_time_ms
            singly.add_run((sent._replace(max_timestamp=time_ms),), offset, position)
            offset += delta + 1
            position += sent.size
        by_run.add_run(headers, first, at, append_time_ms)  # type: ignore[arg-type]
        assert by_run.offset_index.to_bytes() == singly.offset_index.to_bytes()
        assert by_run.time_index.to_bytes() == singly.time_index.to_bytes()
    by_run.seal()
    singly.seal()
    assert by_run.time_index.to_bytes() == singly.time_index.to_bytes()
    assert (by_run.max_timestamp, by_run.max_timestamp_offset) == (singly.max_timestamp, singly.max_timestamp_offset)
