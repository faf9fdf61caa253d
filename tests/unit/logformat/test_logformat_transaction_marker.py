"""Markers of transactions: Kafka's bytes, and what is none."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logformat.compaction.filler import filler_batch
from logformat.gap import gap_batches
from logformat.record_batch import CRC_AT, CorruptBatch, check_stored, read_header
from logformat.records import Record, encode_batch
from logformat.transaction_marker import MARKER_BYTES_MAX, TransactionMarker, marker_batch, marker_of, may_be_marker

MARKER = TransactionMarker(4_711, 3, True, 9)


def test_the_bytes_are_kafkas() -> None:
    """MemoryRecords.withEndTransactionMarker: transactional and control, no sequence, one record without deltas."""
    data = marker_batch(MARKER, 77, 5, 1_700_000_000_000)
    record = bytes([32, 0, 0, 0, 8]) + struct.pack(">hh", 0, 1) + bytes([12]) + struct.pack(">hi", 0, 9) + b"\0"
    after_crc = struct.pack(">hiqqqhii", 0x30, 0, 1_700_000_000_000, 1_700_000_000_000, 4_711, 3, -1, 1) + record
    assert len(data) == 78, "Kafka's batch of a marker has 78 bytes"
    assert data[:CRC_AT] == struct.pack(">qiib", 77, len(data) - 12, 5, 2)
    assert data[CRC_AT + 4 :] == after_crc
    assert check_stored(data, 0, len(data)).size == len(data)


@given(
    st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.booleans(), st.integers(-1, 2**31 - 1), st.integers(0, 99)
)
def test_what_was_written_is_read(producer_id: int, epoch: int, is_commit: bool, coordinator: int, pad: int) -> None:
    marker = TransactionMarker(producer_id, epoch, is_commit, coordinator)
    data = b"x" * pad + marker_batch(marker, 1, 1, 1)
    assert marker_of(data, pad) == marker
    assert may_be_marker(read_header(data, pad)) and len(data) - pad <= MARKER_BYTES_MAX


def test_other_control_batches_are_none() -> None:
    for data in (next(gap_batches(3, 9, 1)), filler_batch(3, 9, 1), encode_batch([Record(0, 1, b"k", b"v")])):
        assert marker_of(data) is None
    of_later = encode_batch([Record(0, 1, struct.pack(">hh", 0, 6), b"")], producer_id=1, control=True)
    assert marker_of(of_later) is None, "a control type that is no end of a transaction"


def test_a_marker_of_a_later_version_is_read() -> None:
    """Fields are only added."""
    record = Record(0, 1, struct.pack(">hh", 1, 0) + b"more", struct.pack(">hi", 1, 6) + b"more")
    data = encode_batch([record], producer_id=5, producer_epoch=2, control=True, transactional=True)
    assert marker_of(data) == TransactionMarker(5, 2, False, 6)


@pytest.mark.parametrize(("key", "value"), [(b"\0\0", b""), (struct.pack(">hh", 0, 1), b"\0"), (None, b"")])
def test_a_marker_that_cannot_be_read_is_damage(key: bytes | None, value: bytes) -> None:
    data = encode_batch([Record(0, 1, key, value)], producer_id=5, producer_epoch=2, control=True, transactional=True)
    with pytest.raises(CorruptBatch):
        marker_of(data)
