"""The records of a produced batch: without key, or refused because readers and the cleaner could not read them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logformat.record_batch import HEADER_SIZE, Codec, CorruptBatch, TimestampType
from logformat.record_check import check_records
from logformat.records import InvalidRecord, Record, encode_batch, iter_records
from tests.fuzz.targets.records import _batch

T0 = 1_700_000_000_000

records = st.lists(
    st.tuples(
        st.integers(-(2**40), 2**40),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=70).map(tuple),
    ),
    min_size=1,
    max_size=150,
)


@settings(max_examples=60)
@given(records, st.sampled_from(Codec))
def test_what_is_found_is_what_a_reader_of_every_record_finds(
    found: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]], codec: Codec
) -> None:
    """Of any keys, values, headers and times, in every codec."""
    batch = encode_batch([Record(n, T0 + ms, *rest) for n, (ms, *rest) in enumerate(found)], codec=codec)
    times = [record.timestamp for record in iter_records(batch)]
    keyless = [n for n, record in enumerate(iter_records(batch)) if record.key is None]
    assert check_records(batch, keyless_max=3) == (min(times), max(times), len(keyless), tuple(keyless[:3]))


def _compare(batch: bytes) -> tuple[int, int] | None:
    """Refused is what a reader of every record refuses, and nothing else. The number of records that the reader read,
    and the index of the record that is refused; None: neither refuses."""
    read = 0
    try:
        for record in iter_records(batch):
            if record.offset != read:
                raise CorruptBatch("produced offsets are dense")
            read += 1
    except CorruptBatch:
        with pytest.raises(InvalidRecord) as refused:
            check_records(batch)
        return read, refused.value.record_index
    check_records(batch)
    return None


@settings(max_examples=300)
@given(st.binary(min_size=7, max_size=40), st.integers(1, 3))
def test_any_bytes_are_refused_where_a_reader_refuses_them(body: bytes, count: int) -> None:
    """But for times below -1, which are judged elsewhere."""
    _compare(_batch(0, count, count - 1, body))


def test_each_record_damaged_in_each_byte_is_judged_as_a_reader_judges_it() -> None:
    """Every byte of a batch of ugly records, set to every value that lengths turn on. Bytes after the last record are
    its error."""
    batch = encode_batch(
        [Record(0, T0, b"k", b"v"), Record(1, T0 + 70, None, None, (("h", b"x"), ("g", None))), Record(2, T0, b"", b"")]
    )
    body = batch[HEADER_SIZE:]
    for at in range(len(body)):
        for value in (0, 1, 2, 3, 63, 64, 127, 128, 129, 255):
            refused = _compare(_batch(0, 3, 2, body[:at] + bytes([value]) + body[at + 1 :]))
            assert refused is None or refused[1] == min(refused[0], 2), (at, value)


def test_offset_deltas_are_dense() -> None:
    """Gaps are for what the cleaner wrote itself."""
    gap = encode_batch([Record(0, T0, b"a", b""), Record(2, T0, b"b", b"")])
    with pytest.raises(InvalidRecord, match="record 1: offset delta 2"):
        check_records(gap)


def test_of_log_append_time_the_headers_time_counts() -> None:
    """The records' own deltas say nothing then."""
    stamped = TimestampType.LOG_APPEND_TIME
    batch = encode_batch([Record(0, 5, b"a", b""), Record(1, 9, b"b", b"")], timestamp_type=stamped)
    assert check_records(batch)[:2] == (9, 9)


def test_a_bomb_is_refused_within_its_bound() -> None:
    """Bounded by the caller's number of bytes."""
    batch = encode_batch([Record(0, T0, b"k", bytes(1 << 20))], codec=Codec.ZSTD)
    assert check_records(batch).keyless_count == 0
    with pytest.raises(InvalidRecord, match="more than 1000"):
        check_records(batch, bytes_max=1000)


def test_more_records_than_the_last_offset_delta_allows_are_refused() -> None:
    """As `iter_records` refuses them (found by the fuzz target `records`: a header that says 0, before 7 records)."""
    body = encode_batch([Record(n, T0, b"k", b"v") for n in range(7)])[HEADER_SIZE:]
    assert check_records(_batch(0, 7, 6, body)).keyless_count == 0
    for last_delta in (0, 5):
        with pytest.raises(InvalidRecord, match="last offset delta"):
            check_records(_batch(0, 7, last_delta, body))
