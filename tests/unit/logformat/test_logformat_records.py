"""Records inside batches, against the encoders and decoders of two independent Kafka clients."""

from __future__ import annotations

import contextlib
import sys
import tracemalloc
from collections.abc import Callable

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from logformat.indexes.time_index import TimestampOffset
from logformat.record_batch import (
    HEADER,
    HEADER_SIZE,
    INT32_MAX,
    Codec,
    CorruptBatch,
    TimestampType,
    check_batch,
    check_stored,
    read_header,
    stamp_max_timestamp,
)
from logformat.record_check import check_records
from logformat.records import (
    InvalidRecord,
    Record,
    encode_batch,
    encode_record,
    iter_records,
    offset_for_timestamp,
    records_since,
    timestamp_range,
)
from tests.support.stamped import stamp

maybe_bytes = st.none() | st.binary(max_size=70)
header_keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
headers = st.lists(st.tuples(header_keys, maybe_bytes), max_size=3).map(tuple)
timestamps = st.integers(0, 2**45)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    """Records at offsets 0, 1, 2…, as a producer sends them."""
    return [
        Record(offset, draw(timestamps), draw(maybe_bytes), draw(maybe_bytes), draw(headers))
        for offset in range(draw(st.integers(1, 5)))
    ]


# kafka-python's snappy needs a package we do not install.
PEERS = [(AiokafkaBuilder, AiokafkaRecords, set()), (KafkaPythonBuilder, KafkaPythonRecords, {Codec.SNAPPY})]


@pytest.mark.parametrize(("builder", "reader", "lacks"), PEERS, ids=["aiokafka", "kafka-python"])
@given(
    records=record_lists(),
    codec=st.sampled_from(list(Codec)),
    producer=st.none() | st.tuples(st.integers(0, 2**62), st.integers(0, 32767), st.integers(0, INT32_MAX)),
)
def test_the_peers_agree(builder, reader, lacks, records, codec, producer):
    """Uncompressed, our batch is byte for byte the peer's; compressed, each side reads what the other wrote."""
    if codec in lacks:
        return
    producer_id, producer_epoch, base_sequence = producer or (-1, -1, -1)
    peer = builder(2, int(codec), 0, producer_id, producer_epoch, base_sequence, 1 << 20)
    for record in records:
        assert peer.append(record.offset, record.timestamp, record.key, record.value, list(record.headers)) is not None
    theirs = bytes(peer.build())
    ours = encode_batch(
        records,
        codec=codec,
        leader_epoch=read_header(theirs).leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    # A peer leaves a batch that did not shrink uncompressed.
    if read_header(theirs).codec is Codec.NONE:
        assert encode_batch(records, leader_epoch=-1, producer_id=producer_id, producer_epoch=producer_epoch,
                            base_sequence=base_sequence)[16:] == theirs[16:]  # fmt: skip
    check_batch(theirs, 0, len(theirs))
    assert list(iter_records(theirs)) == records
    assert check_records(theirs).greatest == max(r.timestamp for r in records)

    shifted = bytearray(ours)
    stamp(shifted, 1_000, 7)
    seen = reader(bytes(shifted)).next_batch()
    assert seen.validate_crc()
    assert (seen.base_offset, seen.next_offset) == (1_000, 1_000 + len(records))
    assert [
        Record(r.offset - 1_000, r.timestamp, r.key, r.value, tuple((k, v) for k, v in r.headers)) for r in seen
    ] == records


@given(record_lists(), st.sampled_from(list(Codec)), st.integers(0, 2**60), st.integers(1, 1000))
def test_round_trip(records: list[Record], codec: Codec, base: int, step: int):
    """Also with holes between the offsets, as compaction leaves them, and a wider range than the records'."""
    placed = [r._replace(offset=base + 3 + r.offset * step) for r in records]
    batch = encode_batch(placed, base_offset=base, last_offset=placed[-1].offset + 4, codec=codec)
    header = check_stored(batch, 0, len(batch))
    assert (header.base_offset, header.last_offset) == (base, placed[-1].offset + 4)
    assert list(iter_records(b"??" + batch + b"!", 2)) == placed
    timestamps = [r.timestamp for r in records]
    assert timestamp_range(batch) == (min(timestamps), max(timestamps))
    assert header.max_timestamp == max(timestamps)


def test_header_keys_that_are_not_utf_8_survive():
    """Kafka does not check them; reading and writing gives the same bytes."""
    raw = encode_batch([Record(0, 1, None, None, (("\udcffa", b"v"),))])
    assert b"\xffa" in raw
    assert encode_batch(list(iter_records(raw))) == raw


def test_the_first_record_that_is_not_older():
    """By timestamp and from an offset on; the header's maximum spares the reading."""
    records = [Record(10 + i, t, None, b"v") for i, t in enumerate([50, 70, 60, 90])]
    batch = encode_batch(records, codec=Codec.ZSTD)
    assert offset_for_timestamp(batch, 0) == TimestampOffset(50, 10)
    assert offset_for_timestamp(batch, 51) == TimestampOffset(70, 11)
    assert offset_for_timestamp(batch, 60, offset_min=12) == TimestampOffset(60, 12)
    assert offset_for_timestamp(batch, 71) == TimestampOffset(90, 13)
    assert offset_for_timestamp(batch, 91) is None
    broken = batch[:HEADER_SIZE] + b"\0" * (len(batch) - HEADER_SIZE)
    assert offset_for_timestamp(broken, 91) is None


def batch_of(body: bytes, count: int = 1, codec: Codec = Codec.NONE, **overrides: int) -> bytes:
    """A batch whose header is right and whose records are `body`."""
    template = encode_batch([Record(0, 100, None, b"")], codec=codec)
    header = read_header(template)._replace(
        length=HEADER_SIZE - 12 + len(body), record_count=count, last_offset_delta=count - 1, **overrides
    )
    raw = bytearray(HEADER.pack(*header)) + body
    stamp_max_timestamp(raw, 0, header.max_timestamp)
    return bytes(raw)


ONE = encode_record(Record(0, 0, b"k", b"v", (("h", b"x"),)), 0, 0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "claims 1 records in 0"),
        (ONE[:-1], "claims"),
        (ONE + b"\0", "after the last record"),
        (b"\x01" + ONE[1:], "claims -1 bytes"),
        (b"\x7f" + ONE[1:], "claims -64 bytes"),
        (b"\xfe\xff\xff\xff\x0f" + ONE[1:], "claims 2147483647"),
        (b"\xff\xff\xff\xff\xff\xff" + ONE[1:], "varint"),
        (b"\xff\xff\xff\xff\x1f" + ONE[1:], "varint"),
        (ONE[:1] + b"\0\0\0" + b"\x7f" + ONE[5:], "claims -64"),
        (ONE[:1] + b"\0\0\0" + b"\x7e" + ONE[5:], "cut short"),
        (ONE[:1] + b"\0\0\0" + b"\x03" + ONE[5:], "claims -2"),
        (b"\x0e\0\0\0\x01\x01\x01\0", "claims -1 headers"),
        (b"\x12\0\0\0\x01\x01\x02\x02h\x06x", "cut short|claims"),  # the length and the last value agree on a lie
        (b"\x16\0\0\0\x01\x01\x02\x02h\x06x", "claims 11 bytes"),
        (b"\x0e\0\0\0\x01\x01\x02\0", "claims 1 headers"),
        (b"\x10\0\0\0\x01\x01\x02\x01\x01", "header without key"),
        (b"\x0e\0\0\0\x01\x01\0\0", "claims 7 bytes and has 6"),
    ],
)
def test_malformed_records(body: bytes, words: str):
    """Each lie inside a record is named: as corruption when read, as an invalid record when produced."""
    batch = batch_of(body)
    with pytest.raises(CorruptBatch, match=words):
        list(iter_records(batch))
    with pytest.raises(InvalidRecord, match=f"{words}|does not end where") as caught:
        check_records(batch)
    assert caught.value.record_index == 0


def test_offsets_must_be_dense_in_a_produced_batch():
    """Gaps are for compacted batches; repeats, falling offsets and such beyond the header's range for none."""
    gap = encode_batch([Record(0, 1, None, b"a"), Record(2, 1, None, b"b")])
    assert [r.offset for r in iter_records(gap)] == [0, 2]
    with pytest.raises(InvalidRecord, match="record 1: offset delta 2"):
        check_records(gap)
    for deltas in [(0, 0), (1, 0), (0, 2), (-1, 0)]:
        body = b"".join(encode_record(Record(0, 0, None, b"v"), delta, 0) for delta in deltas)
        with pytest.raises(CorruptBatch, match="offset delta"):
            list(iter_records(batch_of(body, count=2)))


def test_counts_must_match():
    """More or fewer records than the header says, and a count that could not fit."""
    body = ONE + encode_record(Record(0, 0, None, b"v"), 1, 0)
    for count, words in [(1, "after the last"), (3, "cut short"), (INT32_MAX, "claims 2147483647 records")]:
        with pytest.raises(CorruptBatch, match=words):
            list(iter_records(batch_of(body, count=count)))


def test_log_append_time_overrides_each_record():
    """The header's maximum is every record's timestamp."""
    batch = encode_batch(
        [Record(0, 5, None, b""), Record(1, 9, None, b"")], timestamp_type=TimestampType.LOG_APPEND_TIME
    )
    assert [r.timestamp for r in iter_records(batch)] == [9, 9]


@given(st.binary(max_size=120), st.sampled_from(list(Codec)), st.integers(-2, 40))
def test_hostile_records_raise_corrupt_only(body: bytes, codec: Codec, count: int):
    """Any bytes under a valid header, any claimed count."""
    with contextlib.suppress(CorruptBatch):
        list(iter_records(batch_of(body, count=count, codec=codec), bytes_max=10_000))


@given(st.data())
def test_damaged_records_raise_corrupt_only(data: st.DataObject):
    """A batch that was right once, a few bytes changed, its CRC ignored."""
    raw = bytearray(encode_batch(data.draw(record_lists()), codec=data.draw(st.sampled_from(list(Codec)))))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptBatch):
        list(iter_records(raw, bytes_max=100_000))


READERS = [check_records, lambda batch: offset_for_timestamp(batch, 1)]


@pytest.mark.parametrize("read", READERS, ids=["check", "by time"])
def test_many_headers_take_no_memory(read: Callable[[bytes], object]) -> None:
    """Regression: an object was made of each header, so a batch of 1.2 KB that decompresses to 12 MiB took 480 MiB."""
    batch = encode_batch([Record(0, 1, b"k", None, (("", None),) * 100_000)], codec=Codec.ZSTD)
    read(batch)  # what is imported late
    tracemalloc.start()
    try:
        read(batch)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


@given(st.lists(st.tuples(header_keys, maybe_bytes), min_size=1, max_size=70).map(tuple), st.data())
def test_headers_are_checked_as_if_they_were_read(
    found: tuple[tuple[str, bytes | None], ...], data: st.DataObject
) -> None:
    """Also in a damaged record."""
    batch = bytearray(encode_batch([Record(0, 0, b"k", b"v", found), Record(1, 0, b"k", b"v")]))
    batch[data.draw(st.integers(HEADER_SIZE, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        list(iter_records(batch))
    except CorruptBatch:
        with pytest.raises(InvalidRecord):
            check_records(batch)
    else:
        check_records(batch)


@given(record_lists(), timestamps, st.sampled_from(list(TimestampType)))
def test_records_since_are_those_of_a_reader_of_every_record(
    records: list[Record], since: int, kind: TimestampType
) -> None:
    batch = encode_batch(records, codec=Codec.LZ4, timestamp_type=kind)
    every = [TimestampOffset(record.timestamp, record.offset) for record in iter_records(batch)]
    is_stamped = kind is TimestampType.LOG_APPEND_TIME
    assert list(records_since(batch, since)) == [one for one in every if is_stamped or one.timestamp >= since]


def test_a_search_by_time_reads_times_only() -> None:
    """Regression: a lookup read every field of every record. In a batch of 1 MB that decompresses to 15 MiB it took
    three seconds of a thread that all consumers share."""
    batch = encode_batch([Record(n, n, b"k", b"v", (("h", b"x"),)) for n in range(1_000)])
    calls = 0

    def counted(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(counted)
    try:
        found = offset_for_timestamp(batch, 999)
    finally:
        sys.setprofile(None)
    assert found == TimestampOffset(999, 999)
    assert calls < 2_500
