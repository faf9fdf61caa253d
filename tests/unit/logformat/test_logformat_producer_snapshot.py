"""Producer state as bytes: Kafka's one batch and our five, checksums that notice every flipped bit."""

from __future__ import annotations

import contextlib
import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from logformat.errors import Corrupt
from logformat.producer_snapshot import (
    BatchRecord,
    ProducerEntry,
    ProducerState,
    decode_kafka_snapshot,
    decode_producer_state,
    encode_kafka_snapshot,
    encode_producer_state,
)
from logformat.record_batch import INT32_MAX
from logformat.values import NewerFormat

END = 2**40


@st.composite
def batch_records(draw: st.DrawFn) -> BatchRecord:
    first_sequence, delta = draw(st.integers(0, INT32_MAX)), draw(st.integers(0, 1000))
    first_offset = draw(st.integers(0, END - 1 - delta))
    last_sequence = (first_sequence + delta) & INT32_MAX
    return BatchRecord(first_sequence, last_sequence, first_offset, first_offset + delta, draw(st.integers(-1, 2**45)))


entries = st.builds(
    ProducerEntry,
    producer_id=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 32767),
    batches=st.lists(batch_records(), max_size=5).map(tuple),
    last_timestamp=st.integers(-1, 2**45),
    current_txn_first_offset=st.integers(-1, END),
    coordinator_epoch=st.integers(-1, INT32_MAX),
)
entry_lists = st.lists(entries, max_size=5, unique_by=lambda entry: entry.producer_id)


@given(entry_lists)
def test_our_file_keeps_everything(producers: list[ProducerEntry]):
    """All five batches and every number, whatever order the producers came in."""
    state = ProducerState(END, tuple(producers))
    raw = encode_producer_state(state)
    ordered = ProducerState(END, tuple(sorted(producers, key=lambda entry: entry.producer_id)))
    assert decode_producer_state(memoryview(raw)) == ordered
    assert encode_producer_state(ordered) == raw


@given(entry_lists)
def test_kafkas_snapshot_keeps_the_last_batch(producers: list[ProducerEntry]):
    """The last batch with its first sequence found again by Kafka's rule, its timestamp from the producer's."""
    found = decode_kafka_snapshot(encode_kafka_snapshot(producers))
    for before, after in zip(producers, found, strict=True):
        last = [batch._replace(timestamp=before.last_timestamp) for batch in before.batches[-1:]]
        assert after == ProducerEntry(
            before.producer_id, before.epoch, tuple(last), before.last_timestamp,
            before.current_txn_first_offset, before.coordinator_epoch,
        )  # fmt: skip


def test_kafkas_bytes():
    """Field by field as ProducerSnapshot.json orders them; −1 and 0 where there is no batch."""
    with_batch = ProducerEntry(7, 2, (BatchRecord(0, 1, 90, 91, 1), BatchRecord(2, 4, 95, 97, 5)), 5, 95, 3)
    without = ProducerEntry(8, 0, (), -1)
    body = struct.pack(">i", 2)
    body += struct.pack(">qhiqiqiq", 7, 2, 4, 97, 2, 5, 3, 95) + struct.pack(">qhiqiqiq", 8, 0, -1, -1, 0, -1, -1, -1)
    raw = struct.pack(">hI", 1, crc32c(body)) + body
    assert encode_kafka_snapshot([with_batch, without]) == raw
    found = decode_kafka_snapshot(raw)
    assert found[0].batches == (BatchRecord(2, 4, 95, 97, 5),)
    assert found[1] == without


def test_sequences_that_wrapped():
    """First sequence before, last after 2^31-1."""
    entry = ProducerEntry(1, 0, (BatchRecord(INT32_MAX - 1, 2, 10, 14, 5),), 5)
    assert decode_kafka_snapshot(encode_kafka_snapshot([entry])) == (entry,)


SAMPLE = ProducerState(100, (
    ProducerEntry(3, 0, tuple(BatchRecord(i, i, 10 + i, 10 + i, 1000 + i) for i in range(5)), 1004),
    ProducerEntry(9, 1, (), -1, 50, 2),
))  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "decode"),
    [
        (encode_producer_state(SAMPLE), decode_producer_state),
        (encode_kafka_snapshot(SAMPLE.producers), decode_kafka_snapshot),
    ],
    ids=["ours", "kafka"],
)
def test_every_damage_is_noticed(raw: bytes, decode):
    """Every flipped bit, every cut, every byte too many."""
    for bit in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            decode(changed)
    for cut in range(len(raw)):
        with pytest.raises(Corrupt):
            decode(raw[:cut])
    with pytest.raises(Corrupt):
        decode(raw + b"\0")


def sealed(body: bytes, *, version: int = 1, kafka: bool = False) -> bytes:
    """`body` under a right checksum: what an attacker or a bug could write."""
    if kafka:
        return struct.pack(">hI", version, crc32c(body)) + body
    return struct.pack(">4sHHI", b"TCPS", version, 0, crc32c(body)) + body


def test_newer_versions_are_refused_as_such():
    """So that nobody rewrites what a newer program wrote."""
    with pytest.raises(NewerFormat):
        decode_producer_state(sealed(bytes(12), version=2))
    with pytest.raises(NewerFormat):
        decode_kafka_snapshot(sealed(bytes(4), version=2, kafka=True))


ENTRY = struct.Struct(">qhiqqB")
BATCH = struct.Struct(">iiqqq")


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">qI", -1, 0),
        struct.pack(">qI", 100, 2**32 - 1),
        struct.pack(">qI", 100, 1) + ENTRY.pack(1, 0, 0, 0, 0, 1),
        struct.pack(">qI", 100, 1) + ENTRY.pack(1, 0, 0, 0, 0, 6) + BATCH.pack(0, 0, 0, 0, 0) * 6,
        struct.pack(">qI", 100, 1) + ENTRY.pack(1, 0, 0, 0, 0, 1) + BATCH.pack(0, 0, 5, 4, 0),
        struct.pack(">qI", 100, 1) + ENTRY.pack(1, 0, 0, 0, 0, 1) + BATCH.pack(0, 0, 5, 100, 0),
        struct.pack(">qI", 100, 1) + ENTRY.pack(1, 0, 0, 0, 0, 1) + BATCH.pack(0, 0, -1, 4, 0),
        struct.pack(">qI", 100, 1) + ENTRY.pack(1, 0, 0, 0, 0, 1) + BATCH.pack(-2, 0, 0, 0, 0),
        struct.pack(">qI", 100, 2) + ENTRY.pack(2, 0, 0, 0, 0, 0) + ENTRY.pack(1, 0, 0, 0, 0, 0),
        struct.pack(">qI", 100, 2) + ENTRY.pack(2, 0, 0, 0, 0, 0) * 2,
        struct.pack(">qI", 100, 1) + ENTRY.pack(-1, 0, 0, 0, 0, 0),
        struct.pack(">qI", 100, 1) + ENTRY.pack(1, 0, 0, 0, 0, 0) + b"\0",
    ],
)
def test_lies_under_a_right_checksum(body: bytes):
    """Counts beyond the bytes, six batches, offsets at or beyond the end, producers out of order or twice."""
    with pytest.raises(Corrupt):
        decode_producer_state(sealed(body))


@pytest.mark.parametrize("fields", [(1, 0, 5, 3, 4, 0, 0, -1), (1, 0, 5, 3, -1, 0, 0, -1), (1, 0, -2, 3, 0, 0, 0, -1)])
def test_lies_in_kafkas_snapshot(fields: tuple[int, ...]):
    """A batch that would begin before offset 0, end before it begins, or have a sequence below −1."""
    with pytest.raises(Corrupt):
        decode_kafka_snapshot(sealed(struct.pack(">i", 1) + struct.pack(">qhiqiqiq", *fields), kafka=True))
    for count in (-1, 1, 2**31 - 1):
        with pytest.raises(Corrupt):
            decode_kafka_snapshot(sealed(struct.pack(">i", count), kafka=True))


@given(st.binary(max_size=150))
def test_hostile_bytes_raise_corrupt_only(body: bytes):
    """Any bytes, also under a right checksum."""
    for raw in (body, sealed(body), sealed(struct.pack(">qI", 2**40, 1) + body)):
        with contextlib.suppress(Corrupt):
            assert encode_producer_state(decode_producer_state(raw)) == raw
    for raw in (body, sealed(body, kafka=True)):
        with contextlib.suppress(Corrupt):
            decode_kafka_snapshot(raw)
