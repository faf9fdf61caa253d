"""Parses one record for the kernels: varints, fields, headers, and their positions.

For any input, loads stay inside [at, end). A refusal is a negative position, −`Reason`.
"""

from __future__ import annotations

from typing import Final

import numba

from logformat.kernels.raw_memory import load_u8
from logformat.kernels.refusals import Reason
from logformat.record_batch import INT64_MAX

RECORD_BYTES_MIN: Final = 7
# Parts of a record to parse; a part needs the parts before it.
READ_KEY: Final = 1
READ_VALUE: Final = 2
READ_HEADERS: Final = 4

_RECORD: Final = int(Reason.RECORD)
_VARINT: Final = int(Reason.VARINT)
_FIELD: Final = int(Reason.FIELD)
_RECORD_SIZE: Final = int(Reason.RECORD_SIZE)
_HEADERS: Final = int(Reason.HEADERS)

inlined: Final = numba.njit(nogil=True, forceinline=True)


def _read_varint(at: int, end: int) -> tuple[int, int]:
    """(value, position after it) of a zig-zag int32 in [at, end). The position is −reason when malformed."""
    if at >= end:
        return 0, -_RECORD
    byte = load_u8(at)
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    raw = byte & 0x7F
    shift = 7
    for place in range(at + 1, min(at + 5, end)):
        byte = load_u8(place)
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> 32:
                return 0, -_VARINT
            return (raw >> 1) ^ -(raw & 1), place + 1
        shift += 7
    return 0, (-_VARINT if end - at >= 5 else -_RECORD)


def _read_varlong(at: int, end: int) -> tuple[int, int]:
    """As `_read_varint`, for an int64 in at most ten bytes; the last byte holds one bit."""
    if at >= end:
        return 0, -_RECORD
    byte = load_u8(at)
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    raw = byte & 0x7F
    shift = 7
    for place in range(at + 1, min(at + 10, end)):
        byte = load_u8(place)
        if shift == 63 and byte > 1:
            return 0, -_VARINT
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((raw >> 1) & INT64_MAX) ^ -(raw & 1), place + 1
        shift += 7
    return 0, (-_VARINT if end - at >= 10 else -_RECORD)


varint: Final = inlined(_read_varint)
_varlong: Final = inlined(_read_varlong)


def _read_field(at: int, end: int) -> tuple[int, int]:
    """(size, position of its first byte) of a field in [at, end). Size −1 is null. The position is −reason when
    malformed.
    """
    size, at = varint(at, end)
    if at < 0:
        return 0, at
    if size < -1 or size > end - at:
        return 0, -_FIELD
    return size, at


_field: Final = inlined(_read_field)


def _pass_headers(at: int, end: int, count: int) -> int:
    """Position after `count` headers in [at, end), or −reason."""
    for _ in range(count):
        size, at = _field(at, end)
        if at < 0:
            return at
        if size < 0:
            return -_HEADERS
        size_of_value, at = _field(at + size, end)
        if at < 0:
            return at
        at += max(size_of_value, 0)
    return at


_skip_headers: Final = inlined(_pass_headers)


def _read_frame(at: int, data_end: int) -> tuple[int, int, int, int]:
    """(timestamp delta, offset delta, position of the key's field, end of the record). The end is −reason when
    malformed.
    """
    size, at = varint(at, data_end)
    if at < 0:
        return 0, 0, 0, at
    if size < RECORD_BYTES_MIN - 1 or size > data_end - at:
        return 0, 0, 0, -_RECORD
    end = at + size
    timestamp_delta, at = _varlong(at + 1, end)
    if at < 0:
        return 0, 0, 0, at
    delta, at = varint(at, end)
    if at < 0:
        return 0, 0, 0, at
    return timestamp_delta, delta, at, end


def _read_content(at: int, end: int, reads: int) -> tuple[int, int, int, int, int, int]:
    """(key's size, key, value's size, value, header count, headers) from the key's field on, up to the part `reads`.

    The last value is −reason when malformed, 0 when not read.
    """
    key_size, key = _field(at, end)
    if key < 0:
        return 0, 0, 0, 0, 0, key
    if reads & READ_VALUE == 0:
        return key_size, key, 0, 0, 0, 0
    value_size, value = _field(key + max(key_size, 0), end)
    if value < 0:
        return 0, 0, 0, 0, 0, value
    count, headers = varint(value + max(value_size, 0), end)
    if headers < 0:
        return 0, 0, 0, 0, 0, headers
    after = headers
    if count != 0:
        if count < 0 or count > (end - headers) >> 1:
            return 0, 0, 0, 0, 0, -_HEADERS
        after = _skip_headers(headers, end, count) if reads & READ_HEADERS else end
        if after < 0:
            return 0, 0, 0, 0, 0, after
    if after != end:
        return 0, 0, 0, 0, 0, -_RECORD_SIZE
    return key_size, key, value_size, value, count, headers


read_frame: Final = inlined(_read_frame)
read_content: Final = inlined(_read_content)
