"""The batch header: what a produced and a stored batch must satisfy, the stamps, and walking a buffer."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from logformat.record_batch import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    CONTROL_BIT,
    CRC_AT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    INT32_MAX,
    INT64_MAX,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PLACE,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    BatchTooLarge,
    Codec,
    CorruptBatch,
    InvalidRecordBatch,
    InvalidTimestamp,
    TimestampType,
    TransactionalBatchRefused,
    UnsupportedCodec,
    UnsupportedMagic,
    check_batch,
    check_stored,
    read_header,
    stamp_log_append_time,
    stamp_max_timestamp,
    walk,
    whole_batches_end,
)
from logformat.records import Record, encode_batch, iter_records

GOOD = BatchHeader(0, 0, -1, 2, 0, 0, 0, 1_000, 1_000, -1, -1, -1, 1)


def batch(body: bytes = b"0123456789", **fields: int) -> bytearray:
    """A batch with the given header fields over GOOD's, its length and CRC right unless given."""
    header = GOOD._replace(length=HEADER_SIZE - 12 + len(body), **{k: v for k, v in fields.items() if k != "crc"})
    raw = bytearray(HEADER.pack(*header)) + body
    crc = fields.get("crc", crc32c(raw[ATTRIBUTES_AT:]))
    raw[CRC_AT:ATTRIBUTES_AT] = crc.to_bytes(4, "big")
    return raw


def check(raw: bytes | bytearray, **limits: int) -> BatchHeader:
    return check_batch(memoryview(raw), 0, len(raw), **limits)


def test_header_fields_lie_where_kafka_has_them():
    """Each field is read from its documented place."""
    raw = batch()
    for place, size, name in [
        (0, 8, "base_offset"), (8, 4, "length"), (LEADER_EPOCH_AT, 4, "leader_epoch"), (MAGIC_AT, 1, "magic"),
        (CRC_AT, 4, "crc"), (ATTRIBUTES_AT, 2, "attributes"), (LAST_OFFSET_DELTA_AT, 4, "last_offset_delta"),
        (27, 8, "base_timestamp"), (MAX_TIMESTAMP_AT, 8, "max_timestamp"), (PRODUCER_ID_AT, 8, "producer_id"),
        (51, 2, "producer_epoch"), (BASE_SEQUENCE_AT, 4, "base_sequence"), (RECORD_COUNT_AT, 4, "record_count"),
    ]:  # fmt: skip
        changed = bytearray(raw)
        changed[place : place + size] = (5).to_bytes(size, "big")
        assert getattr(read_header(changed), name) == 5, name
        assert sum(a != b for a, b in zip(read_header(changed), read_header(raw), strict=True)) == 1


def test_header_properties():
    """Size, offsets, codec and flags follow from the fields."""
    header = GOOD._replace(base_offset=100, length=70, last_offset_delta=9, attributes=0b0011_1011)
    assert (header.size, header.last_offset, header.next_offset) == (82, 109, 110)
    assert header.codec is Codec.LZ4
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.is_transactional and header.is_control
    plain = GOOD
    assert plain.timestamp_type is TimestampType.CREATE_TIME
    assert not plain.is_transactional and not plain.is_control
    with pytest.raises(UnsupportedCodec):
        _ = GOOD._replace(attributes=5).codec


def test_a_good_batch_passes_and_may_end_before_the_buffer_does():
    """`end` bounds the reading; what lies behind the batch is not looked at."""
    raw = batch()
    assert check(raw) == read_header(raw)
    assert check_batch(b"xx" + bytes(raw) + b"yy", 2, len(raw) + 4).size == len(raw)


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"magic": 1}, UnsupportedMagic, "magic 1"),
        ({"magic": 3}, UnsupportedMagic, "magic 3"),
        ({"crc": 1}, CorruptBatch, "CRC"),
        ({"record_count": 0, "last_offset_delta": -1}, InvalidRecordBatch, "count 0"),
        ({"record_count": 2}, InvalidRecordBatch, "count 2"),
        ({"record_count": 1, "last_offset_delta": 1}, InvalidRecordBatch, "count 1"),
        ({"record_count": -1, "last_offset_delta": -2}, InvalidRecordBatch, "count -1"),
        ({"record_count": -(2**31), "last_offset_delta": INT32_MAX}, InvalidRecordBatch, "count"),
        ({"attributes": 5}, UnsupportedCodec, "codec 5"),
        ({"attributes": 7}, UnsupportedCodec, "codec 7"),
        ({"attributes": CONTROL_BIT}, InvalidRecordBatch, "control"),
        ({"attributes": TIMESTAMP_TYPE_BIT}, InvalidTimestamp, "LogAppendTime"),
        ({"attributes": DELETE_HORIZON_BIT}, InvalidRecordBatch, "0x0040"),
        ({"attributes": 0x80}, InvalidRecordBatch, "0x0080"),
        ({"attributes": -0x8000}, InvalidRecordBatch, "0x8000"),
        ({"attributes": TRANSACTIONAL_BIT}, InvalidRecordBatch, "producer id"),
        ({"attributes": TRANSACTIONAL_BIT, "producer_id": 1, "producer_epoch": 0, "base_sequence": 0},
         TransactionalBatchRefused, "transaction"),
        ({"base_offset": 1}, InvalidRecordBatch, "base offset 1"),
        ({"producer_id": 1, "producer_epoch": -1, "base_sequence": 0}, InvalidRecordBatch, "epoch"),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": -1}, InvalidRecordBatch, "sequence"),
        ({"producer_id": -2}, InvalidRecordBatch, "producer id"),
        ({"base_timestamp": -2}, InvalidTimestamp, "-2"),
        ({"max_timestamp": -2}, InvalidTimestamp, "-2"),
    ],
)  # fmt: skip
def test_what_a_producer_must_not_send(fields: dict[str, int], error: type[Exception], words: str):
    """Every rule on a produced header refuses with its own error and names what it saw."""
    with pytest.raises(error, match=words) as caught:
        check(batch(**fields))
    assert type(caught.value) is error


@pytest.mark.parametrize(
    "fields",
    [
        {"producer_epoch": 0, "base_sequence": 0},  # KafkaJS without idempotence
        {"max_timestamp": -1},  # Sarama before 2025
        {"base_timestamp": -1, "max_timestamp": -1},
        {"attributes": 4},
        {"leader_epoch": 77},
        {"record_count": 3, "last_offset_delta": 2},
        {"producer_id": 0, "producer_epoch": 0, "base_sequence": 0},
        {"producer_id": INT64_MAX, "producer_epoch": 0x7FFF, "base_sequence": INT32_MAX},
    ],
)
def test_what_stock_clients_send_passes(fields: dict[str, int]):
    """Harmless differences between clients are taken as Kafka takes them."""
    assert check(batch(**fields)) == read_header(batch(**fields))


def test_a_header_that_cannot_know_its_maximum_says_so():
    """−1 (old Sarama) and a maximum below the first timestamp (KafkaJS) ask for the records."""
    assert GOOD._replace(max_timestamp=-1).lacks_max_timestamp
    assert GOOD._replace(max_timestamp=999).lacks_max_timestamp
    assert not GOOD.lacks_max_timestamp
    assert not GOOD._replace(base_timestamp=-1, max_timestamp=-1).lacks_max_timestamp
    kafkajs = GOOD._replace(producer_epoch=0, base_sequence=0, record_count=3, last_offset_delta=2)
    assert kafkajs.lacks_max_timestamp
    assert not kafkajs._replace(producer_id=5).lacks_max_timestamp


def test_limits_of_size_and_time():
    """max.message.bytes and the timestamp window are the caller's numbers, inclusive; −1 is no timestamp."""
    raw = batch(base_timestamp=500, max_timestamp=700)
    check(raw, bytes_max=len(raw), timestamp_min=500, timestamp_max=700)
    with pytest.raises(BatchTooLarge):
        check(raw, bytes_max=len(raw) - 1)
    with pytest.raises(InvalidTimestamp):
        check(raw, timestamp_min=501)
    with pytest.raises(InvalidTimestamp):
        check(raw, timestamp_max=699)
    check(batch(base_timestamp=-1, max_timestamp=-1), timestamp_min=500, timestamp_max=700)


def test_transactional_batches_pass_only_where_they_are_served():
    """The default refuses (C24)."""
    raw = batch(attributes=TRANSACTIONAL_BIT, producer_id=1, producer_epoch=0, base_sequence=0)
    assert check_batch(raw, 0, len(raw), allow_transactional=True).is_transactional


def test_short_buffers():
    """Nothing shorter than a whole batch passes, at any length; a short old message is told from a torn one."""
    raw = batch()
    for cut in range(len(raw)):
        with pytest.raises(CorruptBatch):
            check_batch(raw, 0, cut)
        with pytest.raises(CorruptBatch):
            check_stored(raw, 0, cut)
    old = bytes(16) + b"\x01" + bytes(10)
    with pytest.raises(UnsupportedMagic):
        check(old)
    with pytest.raises(CorruptBatch):
        read_header(raw, len(raw) - 60)
    with pytest.raises(CorruptBatch):
        read_header(raw, -1)


@pytest.mark.parametrize("length", [-(2**31), -13, -1, 0, 48, 2**31 - 1])
def test_lengths_that_cannot_be(length: int):
    """A length below a header's or beyond the buffer is refused before anything uses it."""
    raw = batch()
    raw[8:12] = length.to_bytes(4, "big", signed=True)
    for checker in (check_batch, check_stored):
        with pytest.raises(CorruptBatch):
            checker(raw, 0, len(raw))
    if length < 49:
        with pytest.raises(CorruptBatch):
            list(walk(raw))
        with pytest.raises(CorruptBatch):
            whole_batches_end(raw)
    else:
        assert list(walk(raw)) == []
        assert whole_batches_end(raw) == 0


def test_every_flipped_bit_is_noticed_or_outside_the_checksum():
    """Flips in the checksummed bytes, the CRC, the magic and the length are caught; base offset and leader epoch are
    the broker's own stamps and carry no checksum, so there a flip only ever changes those two values."""
    raw = batch(last_offset_delta=0)
    for bit in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        at = bit // 8
        if at < 8 or LEADER_EPOCH_AT <= at < MAGIC_AT:
            if at >= LEADER_EPOCH_AT:
                assert check_stored(changed, 0, len(changed))[3:] == read_header(raw)[3:]
            continue
        with pytest.raises(CorruptBatch):
            check_stored(changed, 0, len(changed))
        with pytest.raises((CorruptBatch, InvalidRecordBatch)):
            check(changed)


def test_stored_batches_keep_their_order():
    """A batch below the expected offset, beyond int64, or with more records than offsets is corrupt."""
    raw = batch(base_offset=100, last_offset_delta=9, record_count=10)
    assert check_stored(raw, 0, len(raw), offset_min=100).next_offset == 110
    for fields, offset_min in [
        ({"base_offset": 100}, 101),
        ({"base_offset": -1}, -5),
        ({"base_offset": INT64_MAX}, 0),
        ({"last_offset_delta": -1, "record_count": 0}, 0),
        ({"record_count": 2}, 0),
        ({"record_count": -1}, 0),
        ({"magic": 1}, 0),
    ]:
        bad = batch(**fields)
        with pytest.raises(CorruptBatch):
            check_stored(bad, 0, len(bad), offset_min=offset_min)


def test_stored_batches_may_be_what_clients_may_not_send():
    """Control batches, compacted ones (few records or none) and log append time are kept as they are."""
    for fields in [
        {"attributes": CONTROL_BIT},
        {"record_count": 0, "last_offset_delta": 5},
        {"record_count": 1, "last_offset_delta": INT32_MAX},
        {"attributes": TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT},
        {"base_offset": 2**40},
    ]:
        raw = batch(**fields)
        assert check_stored(raw, 0, len(raw)) == read_header(raw)


@given(st.integers(0, INT64_MAX - 1), st.integers(0, INT32_MAX))
def test_stamping_leaves_the_crc_right(base_offset: int, leader_epoch: int):
    """The broker's two fields change and nothing else does."""
    raw = bytearray(b"ab") + batch()
    PLACE.pack_into(raw, 2, base_offset, read_header(raw, 2).length, leader_epoch)
    header = check_stored(raw, 2, len(raw))
    assert header == read_header(batch())._replace(base_offset=base_offset, leader_epoch=leader_epoch)
    assert raw[:2] == b"ab"


def test_log_append_time_is_every_records_time():
    """After the stamp the batch is intact and each record shows the broker's time."""
    raw = bytearray(
        b"ab" + encode_batch([Record(0, 5, None, b"x"), Record(1, 9, None, b"y")], codec=Codec.GZIP) + b"cd"
    )
    stamp_log_append_time(memoryview(raw), 2, 777)
    header = check_stored(raw, 2, len(raw) - 2)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME and header.max_timestamp == 777
    assert header.codec is Codec.GZIP
    assert [r.timestamp for r in iter_records(raw, 2)] == [777, 777]
    assert (raw[:2], raw[-2:]) == (b"ab", b"cd")
    stamp_max_timestamp(raw, 2, 778)
    assert check_stored(raw, 2, len(raw)).max_timestamp == 778


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(0, 200), st.integers(0, 3))
def test_walking_finds_whole_batches_only(bodies: list[bytes], cut: int, before: int):
    """Wherever the buffer is cut, the walk yields the batches that are whole and ends where the next begins."""
    batches = [bytes(batch(body)) for body in bodies]
    raw = bytes(before) + b"".join(batches)
    end = max(before, len(raw) - cut)
    places = [before]
    for one in batches:
        places.append(places[-1] + len(one))
    whole = [place for place in places if place <= end]
    assert [(p, h.size) for p, h in walk(raw, before, end)] == [
        (p, after - p) for p, after in itertools.pairwise(whole)
    ]
    assert whole_batches_end(memoryview(raw), before, end) == whole[-1]
    assert whole_batches_end(raw[:end], before) == whole[-1]


def test_walking_refuses_what_is_no_batch():
    """A wrong magic is not walked over."""
    for magic in (0, 1, 3):
        with pytest.raises(CorruptBatch):
            list(walk(batch(magic=magic)))
        with pytest.raises(CorruptBatch):
            whole_batches_end(batch(magic=magic))


@given(st.binary(max_size=200))
def test_any_bytes_give_an_answer_or_a_named_error(data: bytes):
    """Hostile input never raises anything else."""
    for checker in (check_batch, check_stored):
        with contextlib.suppress(CorruptBatch, InvalidRecordBatch):
            checker(data, 0, len(data))
    try:
        for _ in walk(data):
            pass
        whole_batches_end(data)
    except CorruptBatch:
        pass
