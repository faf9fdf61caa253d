"""Checks each record of a produced batch: whether readers and the cleaner can read it, and whether it has a key.

Kafka's LogValidator refuses records without key in a compacted topic. The cleaner (`hotstore.cleaning`) works on whole
logs, so one unreadable record would prevent the cleaning of a log. A producer must therefore not be able to write such
a record. The check makes no objects of records. Every length is checked against the available bytes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from logformat.record_batch import INT64_MAX, NO_TIMESTAMP, Buffer, CorruptBatch, TimestampType
from logformat.records import (
    RECORD_BYTES_MIN,
    RECORDS_BYTES_MAX,
    VARLONG_BYTES_MAX,
    InvalidRecord,
    read_varint,
    records_bytes,
    skip_headers,
)

KEYLESS_MAX: Final = 1_000
"""Indexes kept of a batch's records without key; all are counted."""


class RecordsFound(NamedTuple):
    """Result for one batch: the least and greatest timestamp of its records (ms, −1: none), the number of records
    without key (−1: keys were not checked), and the indexes of the first such records."""

    least: int
    greatest: int
    keyless_count: int = 0
    keyless: tuple[int, ...] = ()


def check_records(batch: Buffer, *, bytes_max: int = RECORDS_BYTES_MAX, keyless_max: int = KEYLESS_MAX) -> RecordsFound:
    """Read every record of a produced batch that `check_batch` passed. Memory: one decompressed batch, at most
    `bytes_max`. Raises InvalidRecord (not CorruptBatch: Kafka's clients resend a "corrupt" batch for ever) for records
    that cannot be read, or offset deltas other than 0..n−1."""
    index = 0
    count = 1
    keyless: list[int] = []
    keyless_count = 0
    least, greatest = INT64_MAX, -INT64_MAX
    at = start = 0
    try:
        header, data = records_bytes(batch, 0, bytes_max)
        count, end_of_all = header.record_count, len(data)
        if count < 0 or count > end_of_all // RECORD_BYTES_MIN:
            raise CorruptBatch(f"batch claims {count} records in {end_of_all} bytes")
        if count > header.last_offset_delta + 1:
            raise CorruptBatch(f"batch claims {count} records, but its last offset delta is {header.last_offset_delta}")
        for index in range(count):
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
                delta = (byte >> 1) ^ -(byte & 1)
                at += 2
            else:
                delta, at = read_varint(data, at + 1, VARLONG_BYTES_MAX)
            if delta < least:
                least = delta
            if delta > greatest:
                greatest = delta
            byte = data[at]
            if byte < 0x80:
                delta = (byte >> 1) ^ -(byte & 1)
                at += 1
            else:
                delta, at = read_varint(data, at)
            if delta != index:
                raise CorruptBatch(f"offset delta {delta}, must be {index}")
            byte = data[at]
            if byte < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
                at += 1
            else:
                size, at = read_varint(data, at)
            if size >= 0:
                at += size
            elif size == -1:
                keyless_count += 1
                if keyless_count <= keyless_max:
                    keyless.append(index)
            else:
                raise CorruptBatch(f"key claims {size} bytes")
            byte = data[at]
            if byte < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
                at += 1
            else:
                size, at = read_varint(data, at)
            if size > 0:
                at += size
            elif size < -1:
                raise CorruptBatch(f"value claims {size} bytes")
            if data[at]:
                at = skip_headers(data, at, end)
            else:
                at += 1
            if at != end:
                raise CorruptBatch(f"record at byte {start} does not end where its length says")
        if at != end_of_all:
            raise CorruptBatch(f"{end_of_all - at} bytes after the last record")
    except IndexError:
        raise InvalidRecord(index, f"record at byte {start} is cut short") from None
    except CorruptBatch as error:
        raise InvalidRecord(index, str(error)) from None
    if count == 0:
        return RecordsFound(NO_TIMESTAMP, NO_TIMESTAMP)
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        least = greatest = header.max_timestamp
    else:
        least, greatest = header.base_timestamp + least, header.base_timestamp + greatest
    if not -INT64_MAX <= least <= greatest <= INT64_MAX:
        raise InvalidRecord(0, f"record timestamps {least} to {greatest} ms are out of range")
    return RecordsFound(least, greatest, keyless_count, tuple(keyless))
