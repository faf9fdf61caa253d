"""The records of a produced batch, under a right CRC: read, validated, and written again as the same records.

Differential: kafka-python reads the same records from what we wrote. Input: attributes (one byte), record count
(int16), last offset delta (int16), then the records' bytes as they stand in the batch.
"""

from __future__ import annotations

import struct

from kafka.record.memory_records import MemoryRecords

from logformat.errors import InvalidRequest
from logformat.record_batch import HEADER_SIZE, TIMESTAMP_TYPE_BIT, Buffer, Codec, CorruptBatch, TimestampType
from logformat.record_check import KEYLESS_MAX, check_records
from logformat.records import Record, encode_batch, iter_records, offset_for_timestamp, timestamp_range
from tests.fuzz.inputs import Cursor
from tests.fuzz.targets.record_batch import resealed

_BYTES_MAX = 1 << 20
_T0 = 1_700_000_000_000
_INT64 = range(-(2**63), 2**63)


def seeds() -> list[bytes]:
    whole = [Record(n, _T0 + n, b"k%d" % n, bytes(n * 9), (("h", b"v"), ("g", None))) for n in range(7)]
    odd = [
        Record(0, -1, None, None),
        Record(3, 2**62, b"", b"x" * 200, (("é", b""),)),
        Record(4, 0, None, b"", (("a\udcff", None),)),
    ]
    keyless = [Record(n, _T0, b"k" if n % 3 else None, b"v") for n in range(70)]
    made = []
    plain = [(records, Codec.NONE) for records in (whole, keyless, odd)]
    for records, codec in [*plain, *((whole, codec) for codec in Codec)]:
        batch = encode_batch(records, codec=codec)
        made.append(struct.pack(">BHH", codec, len(records), records[-1].offset) + batch[HEADER_SIZE:])
    made.append(b"\x08" + made[0][1:])
    made.append(made[0][:1] + b"\xff\xff\x7f\xff" + made[0][5:])
    return made


def run(data: bytes) -> None:
    cursor = Cursor(data)
    attributes, count, last_delta = cursor.number() & 0x3F, cursor.number(2), cursor.number(2)
    batch = _batch(attributes, count, last_delta, cursor.rest())
    try:
        records = list(iter_records(batch, bytes_max=_BYTES_MAX))
    except CorruptBatch:
        _refused(batch)
        return
    assert len(records) == count
    assert all(0 <= record.offset <= last_delta for record in records)
    _validated(batch, records)
    if not records:
        return
    timestamps = [record.timestamp for record in records]
    if not attributes & TIMESTAMP_TYPE_BIT:
        assert timestamp_range(batch, bytes_max=_BYTES_MAX) == (min(timestamps), max(timestamps))
    found = offset_for_timestamp(batch, records[0].timestamp, bytes_max=_BYTES_MAX)
    assert found is None or found.offset in {record.offset for record in records}
    if all(record.timestamp - records[0].timestamp in _INT64 for record in records):
        again = encode_batch(records, base_offset=0, last_offset=last_delta)
        assert list(iter_records(again)) == records
        _compare_with_kafka_python(again, records)


def _batch(attributes: int, count: int, last_delta: int, body: bytes) -> bytes:
    header = bytearray(encode_batch([Record(0, _T0, None, None)])[:HEADER_SIZE])
    header[8:12] = (HEADER_SIZE - 12 + len(body)).to_bytes(4, "big")
    header[22] = attributes
    header[23:27] = last_delta.to_bytes(4, "big")
    header[57:61] = count.to_bytes(4, "big")
    return resealed(bytes(header) + body)


def _refused(batch: Buffer) -> None:
    try:
        check_records(batch, bytes_max=_BYTES_MAX)
    except InvalidRequest:
        return
    raise AssertionError("check_records took what iter_records refused")


def _validated(batch: Buffer, records: list[Record]) -> None:
    dense = [record.offset for record in records] == list(range(len(records)))
    times = [record.timestamp for record in records]
    keyless = [index for index, record in enumerate(records) if record.key is None]
    try:
        found = check_records(batch, bytes_max=_BYTES_MAX)
    except InvalidRequest:
        assert not dense
    else:
        assert dense and (found.keyless_count, list(found.keyless)) == (len(keyless), keyless[:KEYLESS_MAX])
        assert (found.least, found.greatest) == (min(times, default=-1), max(times, default=-1))


def _compare_with_kafka_python(batch: bytes, records: list[Record]) -> None:
    try:
        for record in records:
            for key, _ in record.headers:
                key.encode()
    except UnicodeEncodeError:
        return  # kafka-python takes UTF-8 only
    theirs = list(MemoryRecords(batch).next_batch())
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs] == [tuple(r) for r in records]
    assert theirs[0].timestamp_type == TimestampType.CREATE_TIME
