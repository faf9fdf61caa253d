"""Gap batches: they cover exactly their offsets, are recognised, and every client's decoder steps over them."""

from __future__ import annotations

import contextlib
import struct

import pytest
from aiokafka.record.control_record import ControlRecord
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from logformat.gap import GAP_KEY, GAP_OFFSETS_MAX, gap_batches, gap_range, looks_like_gap
from logformat.record_batch import INT32_MAX, INT64_MAX, CorruptBatch, check_batch, check_stored, read_header, walk
from logformat.records import Record, encode_batch, iter_records


@given(st.integers(0, 2**62), st.integers(0, 3 * 2**31), st.integers(0, INT32_MAX))
def test_batches_cover_the_gap_without_hole_or_overlap(first: int, length: int, epoch: int):
    """In order, each intact, each found again as the range it stands for; nothing at all for an empty gap."""
    at = first
    raw = b"".join(gap_batches(first, first + length, epoch))
    for pos, header in walk(raw):
        assert check_stored(raw, pos, len(raw), offset_min=at) == header
        assert gap_range(raw, pos) == (at, header.next_offset)
        assert header.next_offset - at <= GAP_OFFSETS_MAX
        assert (header.leader_epoch, header.record_count, header.max_timestamp) == (epoch, 1, -1)
        at = header.next_offset
    assert at == first + length


def test_the_widest_and_the_last():
    """2^31-1 offsets fit one batch, one more begins a second; the end of the offsets is reachable."""
    assert [read_header(b).last_offset_delta for b in gap_batches(0, INT32_MAX + 1, 0)] == [INT32_MAX - 1, 0]
    (last,) = gap_batches(INT64_MAX - 2, INT64_MAX, 0)
    assert gap_range(last) == (INT64_MAX - 2, INT64_MAX)


def test_the_one_record_is_the_last_offset():
    """A fetch from anywhere in the gap then finds a record at or above what it asked for."""
    (batch,) = gap_batches(100, 200, 3)
    (record,) = iter_records(batch)
    assert (record.offset, record.key, record.value) == (199, GAP_KEY, struct.pack(">hi", 0, 3))


@pytest.mark.parametrize("reader", [AiokafkaRecords, KafkaPythonRecords], ids=["aiokafka", "kafka-python"])
@pytest.mark.parametrize("end", [101, 200, 100 + INT32_MAX])
def test_clients_step_over(reader, end: int):
    """The decoders of two clients see a control batch of an unknown type that ends where the gap ends."""
    (raw,) = gap_batches(100, end, 3)
    batch = reader(raw + encode_batch([Record(end, 1, None, b"next")])).next_batch()
    assert batch.validate_crc()
    assert batch.is_control_batch
    assert not batch.is_transactional
    assert batch.next_offset == end
    (record,) = batch
    assert record.offset == end - 1
    assert record.key == GAP_KEY


def test_an_unassigned_control_type():
    """Neither commit (1) nor abort (0), nor one of Kafka's others up to 6; the key parses as every control key does."""
    marker = ControlRecord.parse(GAP_KEY)
    assert (marker.version, marker.type_) == (0, 0x7468)


def test_other_batches_are_no_gaps():
    """Not a producer's, not a transaction marker, not one with two records; a client cannot send one."""
    marker = encode_batch([Record(9, -1, struct.pack(">hh", 0, 1), bytes(6))], control=True, producer_id=5)
    plain = encode_batch([Record(9, -1, GAP_KEY, bytes(6))])
    other_type = encode_batch([Record(9, -1, struct.pack(">hh", 0, 4), bytes(6))], control=True)
    two = encode_batch([Record(8, -1, GAP_KEY, b""), Record(9, -1, GAP_KEY, b"")], control=True)
    early = encode_batch([Record(8, -1, GAP_KEY, b"")], last_offset=9, control=True)
    for batch in (marker, plain, other_type, two, early):
        assert gap_range(batch) is None
        assert gap_range(batch[:-1]) is None
    assert not looks_like_gap(read_header(marker))
    (gap,) = gap_batches(0, 1, 0)
    with contextlib.suppress(CorruptBatch):
        assert gap_range(gap[:-1]) is None
    with pytest.raises(Exception, match="control"):
        check_batch(gap, 0, len(gap))


@given(st.data())
def test_hostile_bytes_are_no_error(data: st.DataObject):
    """A damaged gap batch is a gap or it is not, but it never raises, and what it claims is a range."""
    raw = bytearray(b"".join(gap_batches(100, 200, 3)))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    found = gap_range(raw)
    assert found is None or found[0] < found[1]
    assert gap_range(data.draw(st.binary(max_size=100))) is None
