"""Transaction markers: control batches that commit or abort a producer's records in a partition (KIP-98).

A marker is a batch of one record. Its key has version int16 (0) and type int16 (0 abort, 1 commit). Its value has
version int16 (0) and coordinator epoch int32. Other control batches (gaps, fillers) are not markers. Source: Kafka's
EndTransactionMarker and MemoryRecords.withEndTransactionMarker.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from logformat.errors import Corrupt
from logformat.record_batch import (
    ATTRIBUTES,
    CODEC_MASK,
    CONTROL_BIT,
    PRODUCER_ID,
    RECORD_COUNT,
    BatchHeader,
    Buffer,
    CorruptBatch,
    Fields,
    read_header,
)
from logformat.records import Record, encode_batch, iter_records

MARKER_BYTES_MAX: Final = 256  # bound for the header and one record of 20 bytes
_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_VERSION: Final = 0
_ABORT: Final = 0
_COMMIT: Final = 1


class TransactionMarker(NamedTuple):
    """The outcome of a producer's transaction, for the log of a partition."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    """Leader epoch of the coordinator's partition of `__transaction_state` (TX2)."""
    transaction_version: int = 0
    """Version of the transaction protocol in WriteTxnMarkers. In version 2 the marker's producer epoch must exceed that
    of the open transaction (TX29)."""


def marker_batch(marker: TransactionMarker, offset: int, leader_epoch: int, now_ms: int) -> bytes:
    """The control batch of `marker` at `offset`, as Kafka writes it."""
    key = _KEY.pack(_VERSION, _COMMIT if marker.is_commit else _ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return encode_batch(
        [Record(offset, now_ms, key, value)],
        leader_epoch=leader_epoch,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transactional=True,
        control=True,
    )


def may_be_marker(header: Fields) -> bool:
    """Whether a control batch of a producer may be a marker; its body says whether it is (`marker_of`)."""
    return bool(header[ATTRIBUTES] & CONTROL_BIT) and header[PRODUCER_ID] >= 0


def marker_of(batch: Buffer, pos: int = 0, header: BatchHeader | None = None) -> TransactionMarker | None:
    """The marker in the complete, valid batch at `pos`; None for any other batch. Later versions of key and value may
    only add fields. Raises CorruptBatch for a marker that cannot be read."""
    header = read_header(batch, pos) if header is None else header
    if not may_be_marker(header):
        return None
    if header[RECORD_COUNT] != 1 or header.size > MARKER_BYTES_MAX or header.attributes & CODEC_MASK:
        return None
    try:
        record = next(iter_records(batch, pos, bytes_max=MARKER_BYTES_MAX))
        key, value = record.key, record.value
        if key is None or len(key) < _KEY.size:
            raise CorruptBatch(f"control batch at offset {header.base_offset} has a key of {len(key or b'')} bytes")
        version, kind = _KEY.unpack_from(key)
        if kind not in (_ABORT, _COMMIT):
            return None
        if version < 0 or value is None or len(value) < _VALUE.size:
            raise CorruptBatch(
                f"marker at offset {header.base_offset}: key version {version} is not valid, or the value is too short"
            )
        _, coordinator_epoch = _VALUE.unpack_from(value)
    except CorruptBatch:
        raise
    except Corrupt as unreadable:
        raise CorruptBatch(f"marker at offset {header.base_offset}: {unreadable}") from unreadable
    return TransactionMarker(header.producer_id, header.producer_epoch, kind == _COMMIT, coordinator_epoch)
