"""Records inside a batch: reads, writes and validates them one by one.

Users are ListOffsets by time, `thermocline.validate.records=true`, batches without a maximum timestamp, the command
line and tests. An ordinary produce or fetch never uses it. Checks of produced records use `record_check`. Every length
is checked against the available bytes before it is used. Readers raise CorruptBatch only. Speed: about 0.2 M records/s.
Source: Kafka's DefaultRecord and LogValidator; varints are zig-zag (docs/formats/record-batch.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from logformat.compression import DecompressedTooLarge, compress, decompress
from logformat.indexes.time_index import TimestampOffset
from logformat.record_batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    INT32_MAX,
    INT64_MAX,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    Codec,
    CorruptBatch,
    InvalidRecordBatch,
    TimestampType,
    batch_of,
    read_header,
)

RECORDS_BYTES_MAX: Final = 128 << 20  # cap on a batch's decompressed records if the caller gives none
LOOKUP_BYTES_MAX: Final = 16 << 20
"""The same cap for lookups that any client may cause (ListOffsets by time): a bomb of 1 MiB decompresses to a thousand
times as much.
"""
RECORD_BYTES_MIN: Final = 7  # length and six one-byte fields
_VARINT_BYTES_MAX: Final = 5
VARLONG_BYTES_MAX: Final = 10

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """One record. Its offset is absolute, its timestamp in ms (−1: none). Header keys that are not UTF-8 keep their
    bytes as surrogates."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class InvalidRecord(InvalidRecordBatch):
    """A record of a produced batch breaks a rule; `record_index` counts from 0. INVALID_RECORD."""

    def __init__(self, record_index: int, message: str) -> None:
        super().__init__(f"record {record_index}: {message}")
        self.record_index = record_index


def iter_records(batch: Buffer, pos: int = 0, *, bytes_max: int = RECORDS_BYTES_MAX) -> Iterator[Record]:
    """The records of the batch at `pos`, in order; the caller checks the CRC.

    Raises CorruptBatch for bytes that are not a batch, for another codec than the header's, for more than `bytes_max`
    decompressed, for another number of records than the header's, and for offsets that do not grow within the batch's
    range."""
    header, records = records_bytes(batch, pos, bytes_max)
    if header.record_count < 0 or header.record_count > len(records) // RECORD_BYTES_MIN:
        raise CorruptBatch(f"batch claims {header.record_count} records in {len(records)} bytes")
    stamped = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    at = 0
    delta_before = -1
    for _ in range(header.record_count):
        timestamp_delta, delta, key, value, headers, at = _read_record(records, at)
        if not delta_before < delta <= header.last_offset_delta:
            raise CorruptBatch(
                f"record offset delta {delta} follows {delta_before}; the batch ends at delta "
                f"{header.last_offset_delta}"
            )
        delta_before = delta
        timestamp = header.max_timestamp if stamped else header.base_timestamp + timestamp_delta
        if not -INT64_MAX <= timestamp <= INT64_MAX:
            raise CorruptBatch(f"record timestamp {timestamp} ms is out of range")
        yield Record(header.base_offset + delta, timestamp, key, value, headers)
    if at != len(records):
        raise CorruptBatch(f"{len(records) - at} bytes after the last record")


def timestamp_range(batch: Buffer, *, bytes_max: int = RECORDS_BYTES_MAX) -> tuple[int, int]:
    """The least and greatest timestamp of the batch's records (ms, −1 if there are none), 0.3 µs a record. Raises
    CorruptBatch as `_timestamp_deltas`."""
    header, data = records_bytes(batch, 0, bytes_max)
    least, greatest = INT64_MAX, -INT64_MAX
    for delta, _ in _timestamp_deltas(header, data):
        if delta < least:
            least = delta
        if delta > greatest:
            greatest = delta
    if header.record_count == 0:
        return NO_TIMESTAMP, NO_TIMESTAMP
    least, greatest = header.base_timestamp + least, header.base_timestamp + greatest
    if not -INT64_MAX <= least <= greatest <= INT64_MAX:
        raise CorruptBatch(f"record timestamps {least} to {greatest} ms are out of range")
    return least, greatest


def records_since(
    batch: Buffer, timestamp: int, pos: int = 0, *, bytes_max: int = LOOKUP_BYTES_MAX
) -> Iterator[TimestampOffset]:
    """The records that are not older than `timestamp` (ms), in order; of a batch with LOG_APPEND_TIME all. Raises
    CorruptBatch as `_timestamp_deltas`, and for offsets and timestamps out of range."""
    header, data = records_bytes(batch, pos, bytes_max)
    stamped = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    delta_min = timestamp - header.base_timestamp
    for delta, at in _timestamp_deltas(header, data):
        if delta < delta_min and not stamped:
            continue
        try:
            offset_delta, _ = read_varint(data, at)
        except IndexError:
            raise CorruptBatch("the last record is cut short") from None
        found = header.max_timestamp if stamped else header.base_timestamp + delta
        if not 0 <= offset_delta <= header.last_offset_delta or not -INT64_MAX <= found <= INT64_MAX:
            raise CorruptBatch(f"record has offset delta {offset_delta} and timestamp {found} ms, out of range")
        yield TimestampOffset(found, header.base_offset + offset_delta)


def offset_for_timestamp(
    batch: Buffer, timestamp: int, pos: int = 0, *, offset_min: int = 0, bytes_max: int = LOOKUP_BYTES_MAX
) -> TimestampOffset | None:
    """The first record at or above `offset_min` that is not older than `timestamp` (ms); None if there is none.

    A batch larger than `bytes_max` is not read: the result is its first offset and greatest timestamp. A reader that
    starts at this offset misses no record."""
    header = read_header(batch, pos)
    if header.max_timestamp < timestamp:
        return None
    try:
        for found in records_since(batch, timestamp, pos, bytes_max=bytes_max):
            if found.offset >= offset_min:
                return found
    except DecompressedTooLarge:
        return TimestampOffset(header.max_timestamp, max(header.base_offset, offset_min))
    return None


def _timestamp_deltas(header: BatchHeader, data: bytes) -> Iterator[tuple[int, int]]:
    """Each record's timestamp delta and the position after it. Reads nothing else of a record but its length. Raises
    CorruptBatch for bytes that are missing or left over after the header's number of records."""
    count, end_of_all = header.record_count, len(data)
    if count < 0 or count > end_of_all // RECORD_BYTES_MIN:
        raise CorruptBatch(f"batch claims {count} records in {end_of_all} bytes")
    at = 0
    try:
        for _ in range(count):
            start = at
            byte = data[at]
            if byte < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
                at += 1
            else:
                size, at = read_varint(data, at)
            end = at + size
            if size < RECORD_BYTES_MIN - 1 or end > end_of_all:
                raise CorruptBatch(f"record at byte {start} claims {size} bytes, but only {end_of_all - at} are there")
            byte = data[at + 1]  # after the attributes
            if byte < 0x80:
                yield (byte >> 1) ^ -(byte & 1), at + 2
            else:
                yield read_varint(data, at + 1, VARLONG_BYTES_MAX)
            at = end
    except IndexError:
        raise CorruptBatch(f"record at byte {at} is cut short") from None
    if at != end_of_all:
        raise CorruptBatch(f"{end_of_all - at} bytes after the last record")


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    codec: Codec = Codec.NONE,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """A batch of `records` (at least one), offsets growing. `base_offset` and `last_offset`: by default the offsets of
    the first and last record; after compaction they may reach further."""
    first = records[0].offset if base_offset is None else base_offset
    last = records[-1].offset if last_offset is None else last_offset
    assert first <= records[0].offset and records[-1].offset <= last <= first + INT32_MAX, (first, last)
    base_timestamp = records[0].timestamp
    body = compress(codec, b"".join(encode_record(r, r.offset - first, r.timestamp - base_timestamp) for r in records))
    attributes = codec | timestamp_type << 3
    attributes |= (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0)
    header = BatchHeader(
        base_offset=first,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=last - first,
        base_timestamp=base_timestamp,
        max_timestamp=max(r.timestamp for r in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return bytes(batch_of(header, body))


def encode_record(record: Record, offset_delta: int, timestamp_delta: int) -> bytes:
    """One record with its length in front, as in an uncompressed batch."""
    body = bytearray(b"\0")  # record attributes: none are defined
    body += _varint(timestamp_delta)
    body += _varint(offset_delta)
    _put_bytes(body, record.key)
    _put_bytes(body, record.value)
    body += _varint(len(record.headers))
    for key, value in record.headers:
        _put_bytes(body, key.encode("utf-8", "surrogateescape"))
        _put_bytes(body, value)
    return _varint(len(body)) + bytes(body)


def records_bytes(batch: Buffer, pos: int, bytes_max: int) -> tuple[BatchHeader, bytes]:
    """Header and decompressed records of the batch at `pos`. Raises CorruptBatch."""
    header = read_header(batch, pos)
    if header.magic != MAGIC or not HEADER_SIZE <= header.size <= len(batch) - pos:
        raise CorruptBatch(f"no whole batch at position {pos}: length {header.length}, magic {header.magic}")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise CorruptBatch(f"batch at position {pos} has unknown codec {header.attributes & CODEC_MASK}")
    body = memoryview(batch)[pos + HEADER_SIZE : pos + header.size]
    return header, decompress(header.codec, body, bytes_max)


def _read_record(data: bytes, at: int) -> tuple[int, int, bytes | None, bytes | None, tuple[Header, ...], int]:
    """(timestamp delta, offset delta, key, value, headers, position after it) of the record at `at`.

    Fields are read without checking the record's end. If a length is wrong, reading runs out of `data`, or the last
    field does not end where the record's length says. Both are detected here (twice as fast as checking each field)."""
    start = at
    try:
        size, at = read_varint(data, at)
        end = at + size
        if size < RECORD_BYTES_MIN - 1 or end > len(data):
            raise CorruptBatch(f"record at byte {start} claims {size} bytes, but only {len(data) - at} are there")
        timestamp_delta, at = read_varint(data, at + 1, VARLONG_BYTES_MAX)
        offset_delta, at = read_varint(data, at)
        key, at = _read_bytes(data, at)
        value, at = _read_bytes(data, at)
        headers: tuple[Header, ...] = ()
        if data[at]:
            headers, at = _read_headers(data, at, end)
        else:
            at += 1
    except IndexError:
        raise CorruptBatch(f"record at byte {start} is cut short") from None
    if at != end:
        raise CorruptBatch(f"record at byte {start} claims {size} bytes and has {at - end + size}")
    return timestamp_delta, offset_delta, key, value, headers, end


def _read_headers(data: bytes, at: int, end: int) -> tuple[tuple[Header, ...], int]:
    """The headers of the record that ends at `end`, and the position after them."""
    count, at = read_varint(data, at)
    if count < 0 or count > (end - at) // 2:
        raise CorruptBatch(f"record claims {count} headers in {end - at} bytes")
    headers: list[Header] = []
    for _ in range(count):
        key, at = _read_bytes(data, at)
        if key is None:
            raise CorruptBatch("record has a header without key")
        value, at = _read_bytes(data, at)
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), at


def skip_headers(data: bytes, at: int, end: int) -> int:
    """As `_read_headers`, but makes no objects: a batch of 1 KB may have millions of headers."""
    count, at = read_varint(data, at)
    if count < 0 or count > (end - at) // 2:
        raise CorruptBatch(f"record claims {count} headers in {end - at} bytes")
    for _ in range(count):
        byte = data[at]
        if byte & 0x81:  # longer than 63 bytes, or negative
            size, at = read_varint(data, at)
            if size < 0:
                raise CorruptBatch("record has a header without key")
            at += size
        else:
            at += 1 + (byte >> 1)
        byte = data[at]
        if byte == 1:  # null
            at += 1
        elif byte & 0x81:
            size, at = read_varint(data, at)
            if size < -1:
                raise CorruptBatch(f"header's value before byte {at} claims {size} bytes")
            at += max(size, 0)
        else:
            at += 1 + (byte >> 1)
    return at


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    """A field's bytes or None, and the position after the field. If the field reaches beyond `data`, the bytes are
    fewer and the position lies outside."""
    size = data[at]
    if size < 0x80:
        at += 1
        size = (size >> 1) ^ -(size & 1)
    else:
        size, at = read_varint(data, at)
    if size < 0:
        if size != -1:
            raise CorruptBatch(f"field at byte {at} claims {size} bytes")
        return None, at
    end = at + size
    return data[at:end], end


def read_varint(data: bytes, at: int, bytes_max: int = _VARINT_BYTES_MAX) -> tuple[int, int]:
    """A zig-zag varint of at most `bytes_max` bytes (5: int32, 10: int64). Raises IndexError beyond the data's end."""
    byte = data[at]
    if byte < 0x80:  # most varints have one byte
        return (byte >> 1) ^ -(byte & 1), at + 1
    raw = byte & 0x7F
    shift = 7
    for place in range(at + 1, at + bytes_max):
        byte = data[place]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> (32 if bytes_max == _VARINT_BYTES_MAX else 64):
                break
            return (raw >> 1) ^ -(raw & 1), place + 1
        shift += 7
    raise CorruptBatch(f"varint at byte {at} of the records is too long")


def _varint(value: int) -> bytes:
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _put_bytes(body: bytearray, value: bytes | None) -> None:
    if value is None:
        body += _varint(-1)
    else:
        body += _varint(len(value))
        body += value
