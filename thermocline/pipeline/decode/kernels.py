"""The two kernels: `walk` finds and checks the batches of a log, `rows` parses their records into Arrow's buffers.

Owns every access to hostile bytes on the fast way. Always true: no load outside [data, data + size) of a batch or of
the log, whatever the bytes say (each load is behind a comparison with the record's end, which is behind one with the
data's); no store outside the buffers whose capacity the state block names; a batch gives rows only if all of it
parses. Both run without the GIL and know nothing of Python objects: one address of the state block (`layout`) comes in,
a status goes out. Must not know Arrow, numpy, what a topic is.

Hot path, hence long functions and repetition. One core, 100 B, key + value + offset + timestamp, CRC included: 25 M
records/s; 1 KB: 5.5 GB/s where memcpy makes 8.5 (bench/decode.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numba

from logformat.record_batch import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_AT,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from thermocline.pipeline.decode import layout as at_
from thermocline.pipeline.decode.crc_kernel import crc_of
from thermocline.pipeline.decode.kernel_cache import compiled
from thermocline.pipeline.decode.raw_memory import (
    copy,
    load_be16,
    load_be32,
    load_be32_unsigned,
    load_be64,
    load_i32,
    load_i64,
    load_u8,
    store_i32,
    store_i64,
    store_u8,
)

_HEADER_SIZE: Final = 61
_LOG_OVERHEAD: Final = 12
_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)
_MILLIS_MAX: Final = 9_223_372_036_854_775  # beyond it microseconds leave int64: such a row has no timestamp
_RECORD_BYTES_MIN: Final = 7

_CUT: Final = int(at_.Reason.CUT)
_LENGTH: Final = int(at_.Reason.LENGTH)
_MAGIC: Final = int(at_.Reason.MAGIC)
_CRC: Final = int(at_.Reason.CRC)
_OFFSETS: Final = int(at_.Reason.OFFSETS)
_COUNT: Final = int(at_.Reason.COUNT)
_CODEC: Final = int(at_.Reason.CODEC)
_RECORD: Final = int(at_.Reason.RECORD)
_VARINT: Final = int(at_.Reason.VARINT)
_FIELD: Final = int(at_.Reason.FIELD)
_RECORD_SIZE: Final = int(at_.Reason.RECORD_SIZE)
_DELTA: Final = int(at_.Reason.DELTA)
_TIMESTAMP: Final = int(at_.Reason.TIMESTAMP)
_HEADERS: Final = int(at_.Reason.HEADERS)
_TRAILING: Final = int(at_.Reason.TRAILING)

_inlined: Final = numba.njit(nogil=True)  # LLVM inlines what is called once or is short


def _get_word(block: int, place: int) -> int:
    return load_i64(block + 8 * place)


def _put_word(block: int, place: int, value: int) -> None:
    store_i64(block + 8 * place, value)


def _read_varint(at: int, end: int) -> tuple[int, int]:
    """(value, position after it) of a zig-zag int32 in [at, end); the position is −reason when there is none."""
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
    """As `_read_varint`, int64 in at most ten bytes, of which the last can only hold one bit."""
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
            return ((raw >> 1) & _INT64_MAX) ^ -(raw & 1), place + 1
        shift += 7
    return 0, (-_VARINT if end - at >= 10 else -_RECORD)


_word = _inlined(_get_word)
_put = _inlined(_put_word)
_varint = _inlined(_read_varint)
_varlong = _inlined(_read_varlong)


def _read_field(at: int, end: int) -> tuple[int, int]:
    """(size, position of its first byte) of a field in [at, end): −1 is null. The position is −reason on a lie."""
    size, at = _varint(at, end)
    if at < 0:
        return 0, at
    if size < -1 or size > end - at:
        return 0, -_FIELD
    return size, at


_field = _inlined(_read_field)


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


def _clear_bit(bits: int, place: int) -> None:
    byte = bits + (place >> 3)
    store_u8(byte, load_u8(byte) & ~(1 << (place & 7)))


def _set_bits(bits: int, first: int, end: int) -> None:
    for place in range(first, end):
        byte = bits + (place >> 3)
        store_u8(byte, load_u8(byte) | (1 << (place & 7)))


_null = _inlined(_clear_bit)
_unnull = _inlined(_set_bits)
_skip_headers = _inlined(_pass_headers)


def _copy_headers(state: int, at: int, count: int, headers: int) -> int:
    """Append `count` headers that `_skip_headers` passed to the header columns; how many there are then."""
    key_offsets = _word(state, at_.HEADER_KEY_OFFSETS)
    key_data = _word(state, at_.HEADER_KEY_DATA)
    value_offsets = _word(state, at_.HEADER_VALUE_OFFSETS)
    value_data = _word(state, at_.HEADER_VALUE_DATA)
    value_bits = _word(state, at_.HEADER_VALUE_BITS)
    key_used = load_i32(key_offsets + 4 * headers)
    value_used = load_i32(value_offsets + 4 * headers)
    high_bits = 0
    for _ in range(count):
        size, at = _varint(at, _INT64_MAX)
        for place in range(at, at + size):
            high_bits |= load_u8(place)
        copy(key_data + key_used, at, size)
        key_used += size
        size, at = _varint(at + size, _INT64_MAX)
        if size < 0:
            _null(value_bits, headers)
            _put(state, at_.HEADER_VALUE_NULLS, 1)
        else:
            copy(value_data + value_used, at, size)
            value_used += size
            at += size
        headers += 1
        store_i32(key_offsets + 4 * headers, key_used)
        store_i32(value_offsets + 4 * headers, value_used)
    if high_bits & 0x80:
        _put(state, at_.HEADER_KEY_NOT_ASCII, 1)
    return headers


_take_headers = _inlined(_copy_headers)


def _roll_back(state: int, rows: int, rows_before: int) -> None:
    """Forget the rows from `rows_before` on: whatever bit they cleared is set again, the rest is written over."""
    wanted = _word(state, at_.WANTED)
    if wanted & at_.WANT_KEY:
        _unnull(_word(state, at_.KEY_BITS), rows_before, rows)
    if wanted & at_.WANT_VALUE:
        _unnull(_word(state, at_.VALUE_BITS), rows_before, rows)
    if wanted & at_.WANT_TIMESTAMP:
        _unnull(_word(state, at_.TIMESTAMP_BITS), rows_before, rows)
    if wanted & at_.WANT_HEADERS:
        _unnull(_word(state, at_.LIST_BITS), rows_before, rows)
        list_offsets = _word(state, at_.LIST_OFFSETS)
        headers_before = load_i32(list_offsets + 4 * rows_before)
        _unnull(_word(state, at_.HEADER_VALUE_BITS), headers_before, load_i32(list_offsets + 4 * rows))
        _put(state, at_.HEADERS, headers_before)
    _put(state, at_.ROWS, rows_before)


_forget = _inlined(_roll_back)


def _is_in(state: int, producer_id: int, base_offset: int) -> bool:
    """Whether a transactional batch belongs to an aborted transaction."""
    aborted = _word(state, at_.ABORTED)
    for place in range(aborted, aborted + 24 * _word(state, at_.ABORTED_COUNT), 24):
        if load_i64(place) == producer_id and load_i64(place + 8) <= base_offset <= load_i64(place + 16):
            return True
    return False


_is_aborted = _inlined(_is_in)


def _misses_time(state: int, attributes: int, base_timestamp: int, max_timestamp: int) -> bool:
    """Whether no record of the batch can be inside the wanted time, by its header."""
    if _word(state, at_.TIMED) == 0:
        return False
    time_min = _word(state, at_.TIME_MIN)
    if attributes & TIMESTAMP_TYPE_BIT:
        return max_timestamp == -1 or max_timestamp < time_min or max_timestamp >= _word(state, at_.TIME_MAX)
    # A maximum below the first record's timestamp is one that the producer left out: ask the records.
    return base_timestamp <= max_timestamp < time_min


_out_of_time = _inlined(_misses_time)


def _walk(state: int) -> int:
    """Fill the table with the wanted batches from POS on: headers and CRCs checked. MORE, END, HOLE or POISON."""
    log = _word(state, at_.LOG)
    log_size = _word(state, at_.LOG_SIZE)
    pos = _word(state, at_.POS)
    walk_end = min(log_size, pos + _word(state, at_.WALK_BYTES))
    offset_next = _word(state, at_.OFFSET_NEXT)
    start_offset = _word(state, at_.START_OFFSET)
    end_offset = _word(state, at_.END_OFFSET)
    table = _word(state, at_.TABLE)
    table_end = table + 8 * at_.BATCH_WORDS * _word(state, at_.TABLE_ROWS_MAX)
    row = table
    cover_end = _word(state, at_.COVER_END)
    reason = 0
    status = at_.MORE
    while pos < walk_end and row < table_end:
        batch = log + pos
        left = log_size - pos
        if left < _HEADER_SIZE:
            reason = _CUT
            break
        size = load_be32(batch + LENGTH_AT) + _LOG_OVERHEAD
        if load_u8(batch + MAGIC_AT) != MAGIC:
            reason = _MAGIC
            break
        if size < _HEADER_SIZE or size > left:
            reason = _LENGTH
            break
        base_offset = load_be64(batch)
        last_delta = load_be32(batch + LAST_OFFSET_DELTA_AT)
        if base_offset < offset_next or last_delta < 0 or base_offset > _INT64_MAX - 1 - last_delta:
            reason = _OFFSETS
            break
        if base_offset != cover_end and cover_end >= 0:
            status = at_.HOLE
            break
        after = base_offset + last_delta + 1
        if after > start_offset and base_offset < end_offset:
            if crc_of(batch + ATTRIBUTES_AT, batch + size) != load_be32_unsigned(batch + CRC_AT):
                reason = _CRC
                break
            attributes = load_be16(batch + ATTRIBUTES_AT)
            base_timestamp = load_be64(batch + BASE_TIMESTAMP_AT)
            max_timestamp = load_be64(batch + MAX_TIMESTAMP_AT)
            count = load_be32(batch + RECORD_COUNT_AT)
            if count < 0 or count > last_delta + 1:
                reason = _COUNT
                break
            if not (
                attributes & CONTROL_BIT
                or (count == 0 and size == _HEADER_SIZE)
                or (
                    attributes & TRANSACTIONAL_BIT
                    and _is_aborted(state, load_be64(batch + PRODUCER_ID_AT), base_offset)
                )
                or _out_of_time(state, attributes, base_timestamp, max_timestamp)
            ):
                if attributes & CODEC_MASK > 4:
                    reason = _CODEC
                    break
                _put(row, at_.B_POS, pos)
                _put(row, at_.B_SIZE, size)
                _put(row, at_.B_BASE_OFFSET, base_offset)
                _put(row, at_.B_LAST_DELTA, last_delta)
                _put(row, at_.B_BASE_TIMESTAMP, base_timestamp)
                _put(row, at_.B_MAX_TIMESTAMP, max_timestamp)
                _put(row, at_.B_ATTRIBUTES, attributes)
                _put(row, at_.B_COUNT, count)
                _put(row, at_.B_DATA, batch + _HEADER_SIZE)
                _put(row, at_.B_DATA_SIZE, size - _HEADER_SIZE)
                row += 8 * at_.BATCH_WORDS
        if cover_end < 0:
            _put(state, at_.COVER_FIRST, base_offset)
        cover_end = after
        offset_next = after
        pos += size
    _put(state, at_.POS, pos)
    _put(state, at_.OFFSET_NEXT, offset_next)
    _put(state, at_.COVER_END, cover_end)
    _put(state, at_.TABLE_ROWS, (row - table) // (8 * at_.BATCH_WORDS))
    _put(state, at_.REASON, reason)
    if reason != 0:
        return at_.POISON
    return at_.END if pos >= log_size else status


def _rows(state: int) -> int:
    """Parse the table's batches from ENTRY and AT on into the output. END, FULL, TOO_SMALL or POISON."""
    table_rows = _word(state, at_.TABLE_ROWS)
    start_offset = _word(state, at_.START_OFFSET)
    end_offset = _word(state, at_.END_OFFSET)
    timed = _word(state, at_.TIMED)
    time_min = _word(state, at_.TIME_MIN)
    time_max = _word(state, at_.TIME_MAX)
    wanted = _word(state, at_.WANTED)
    want_key = wanted & at_.WANT_KEY != 0
    want_value = wanted & at_.WANT_VALUE != 0
    want_offset = wanted & at_.WANT_OFFSET != 0
    want_timestamp = wanted & at_.WANT_TIMESTAMP != 0
    want_timestamp_type = wanted & at_.WANT_TIMESTAMP_TYPE != 0
    want_headers = wanted & at_.WANT_HEADERS != 0
    read_value = want_value or want_headers
    read_key = want_key or read_value
    rows_max = _word(state, at_.ROWS_MAX)
    headers_max = _word(state, at_.HEADERS_MAX)
    row_width = _word(state, at_.ROW_WIDTH)
    budget = _word(state, at_.BUDGET)
    key_bits = _word(state, at_.KEY_BITS)
    key_offsets = _word(state, at_.KEY_OFFSETS)
    key_data = _word(state, at_.KEY_DATA)
    value_bits = _word(state, at_.VALUE_BITS)
    value_offsets = _word(state, at_.VALUE_OFFSETS)
    value_data = _word(state, at_.VALUE_DATA)
    offsets = _word(state, at_.OFFSETS)
    timestamps = _word(state, at_.TIMESTAMPS)
    timestamp_bits = _word(state, at_.TIMESTAMP_BITS)
    timestamp_types = _word(state, at_.TIMESTAMP_TYPES)
    list_bits = _word(state, at_.LIST_BITS)
    list_offsets = _word(state, at_.LIST_OFFSETS)

    rows = _word(state, at_.ROWS)
    headers = _word(state, at_.HEADERS)
    key_used = load_i32(key_offsets + 4 * rows) if want_key else 0
    value_used = load_i32(value_offsets + 4 * rows) if want_value else 0

    entry = _word(state, at_.ENTRY)
    while entry < table_rows:
        batch = _word(state, at_.TABLE) + 8 * at_.BATCH_WORDS * entry
        base_offset = _word(batch, at_.B_BASE_OFFSET)
        last_delta = _word(batch, at_.B_LAST_DELTA)
        base_timestamp = _word(batch, at_.B_BASE_TIMESTAMP)
        max_timestamp = _word(batch, at_.B_MAX_TIMESTAMP)
        stamped = _word(batch, at_.B_ATTRIBUTES) & TIMESTAMP_TYPE_BIT != 0
        count = _word(batch, at_.B_COUNT)
        data = _word(batch, at_.B_DATA)
        data_end = data + _word(batch, at_.B_DATA_SIZE)
        delta_min = start_offset - base_offset
        delta_end = end_offset - base_offset
        at = data + _word(state, at_.AT)
        done = _word(state, at_.DONE)
        delta_before = _word(state, at_.DELTA_BEFORE) if done > 0 else -1
        validated = _word(state, at_.VALIDATED) != 0
        rows_before = rows
        taking = True
        reason = 0
        if count > (data_end - data) // _RECORD_BYTES_MIN:
            reason = _COUNT
        elif stamped and max_timestamp == _INT64_MIN and count > 0:
            reason = _TIMESTAMP
        while reason == 0 and done < count:
            record = at
            size, at = _varint(at, data_end)
            if at < 0:
                reason = -at
                break
            if size < _RECORD_BYTES_MIN - 1 or size > data_end - at:
                reason = _RECORD
                break
            end = at + size
            timestamp_delta, at = _varlong(at + 1, end)
            if at < 0:
                reason = -at
                break
            delta, at = _varint(at, end)
            if at < 0:
                reason = -at
                break
            if delta <= delta_before or delta > last_delta:
                reason = _DELTA
                break
            timestamp = max_timestamp
            if not stamped:
                timestamp = base_timestamp + timestamp_delta
                if (base_timestamp ^ timestamp) & (timestamp_delta ^ timestamp) < 0 or timestamp == _INT64_MIN:
                    reason = _TIMESTAMP
                    break
            key = value = header = header_count = 0
            key_size = value_size = 0
            if read_key:
                key_size, key = _field(at, end)
                if key < 0:
                    reason = -key
                    break
                at = key + max(key_size, 0)
                if read_value:
                    value_size, value = _field(at, end)
                    if value < 0:
                        reason = -value
                        break
                    at = value + max(value_size, 0)
                    header_count, header = _varint(at, end)
                    if header < 0:
                        reason = -header
                        break
                    if header_count != 0:
                        if header_count < 0 or header_count > (end - header) >> 1:
                            reason = _HEADERS
                            break
                        if want_headers:
                            at = _skip_headers(header, end, header_count)
                            if at < 0:
                                reason = -at
                                break
                        else:
                            at = end
                    else:
                        at = header
                    if at != end:
                        reason = _RECORD_SIZE
                        break
            at = end
            if (
                taking
                and delta >= delta_min
                and delta < delta_end
                and (timed == 0 or (timestamp != -1 and timestamp >= time_min and timestamp < time_max))
            ):
                cost = row_width + (end - record if read_key else 0)
                if cost > budget or rows == rows_max or (want_headers and headers + header_count > headers_max):
                    taking = False
                    _put(state, at_.AT, record - data)
                    _put(state, at_.DONE, done)
                    _put(state, at_.DELTA_BEFORE, delta_before)
                    _put(state, at_.NEED_BYTES, cost)
                    _put(state, at_.NEED_HEADERS, header_count)
                    if validated:
                        break
                else:
                    budget -= cost
                    if want_key:
                        if key_size < 0:
                            _null(key_bits, rows)
                            _put(state, at_.KEY_NULLS, 1)
                        else:
                            copy(key_data + key_used, key, key_size)
                            key_used += key_size
                        store_i32(key_offsets + 4 * rows + 4, key_used)
                    if want_value:
                        if value_size < 0:
                            _null(value_bits, rows)
                            _put(state, at_.VALUE_NULLS, 1)
                        else:
                            copy(value_data + value_used, value, value_size)
                            value_used += value_size
                        store_i32(value_offsets + 4 * rows + 4, value_used)
                    if want_offset:
                        store_i64(offsets + 8 * rows, base_offset + delta)
                    if want_timestamp:
                        if timestamp == -1 or timestamp > _MILLIS_MAX or timestamp < -_MILLIS_MAX:
                            _null(timestamp_bits, rows)
                            _put(state, at_.TIMESTAMP_NULLS, 1)
                            timestamp = 0
                        store_i64(timestamps + 8 * rows, timestamp * 1000)
                    if want_timestamp_type:
                        store_i32(timestamp_types + 4 * rows, 1 if stamped else 0)
                    if want_headers:
                        if header_count == 0:
                            _null(list_bits, rows)
                            _put(state, at_.LIST_NULLS, 1)
                        else:
                            headers = _take_headers(state, header, header_count, headers)
                        store_i32(list_offsets + 4 * rows + 4, headers)
                    rows += 1
            delta_before = delta
            done += 1
        if reason == 0 and done == count and at != data_end and not (validated and not taking):
            reason = _TRAILING
        if reason != 0:
            _put(state, at_.ENTRY, entry)
            _put(state, at_.REASON, reason)
            _put(state, at_.BUDGET, budget)
            _forget(state, rows, rows_before)
            return at_.POISON
        if not taking:
            _put(state, at_.ENTRY, entry)
            _put(state, at_.VALIDATED, 1)
            _put(state, at_.ROWS, rows)
            _put(state, at_.HEADERS, headers)
            _put(state, at_.BUDGET, budget)
            return at_.FULL if rows > 0 else at_.TOO_SMALL
        entry += 1
        _put(state, at_.AT, 0)
        _put(state, at_.DONE, 0)
        _put(state, at_.VALIDATED, 0)
    _put(state, at_.ENTRY, entry)
    _put(state, at_.ROWS, rows)
    _put(state, at_.HEADERS, headers)
    _put(state, at_.BUDGET, budget)
    return at_.END


walk: Final[Callable[[int], int]] = compiled(_walk)
rows: Final[Callable[[int], int]] = compiled(_rows)
