"""The kernel `rows`: parses the records of the batches that `walk` found into Arrow's buffers.

No store is outside the buffers whose capacity the state block has. A batch gives rows only if all of it parses. When
the output is full, the next call resumes at the same record. Runs without the GIL: takes the address of the state block
(`layout`), returns a status.

Hot path. Speed on one core, with key, value, offset, timestamp and CRC: 25 M records/s of 100 B; 5.5 GB/s of 1 KB
values, while memcpy reaches 8.5 GB/s (bench/decode.py). LLVM inlines the functions below, and the state block stays in
the level-1 cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from logformat.kernels.kernel_cache import compiled
from logformat.kernels.raw_memory import copy, load_i32, load_u8, put, store_i32, store_i64, store_u8, word
from logformat.kernels.record_kernel import (
    READ_HEADERS,
    READ_KEY,
    READ_VALUE,
    RECORD_BYTES_MIN,
    inlined,
    read_content,
    read_frame,
    varint,
)
from logformat.record_batch import INT64_MAX, TIMESTAMP_TYPE_BIT
from thermocline.pipeline.decode import layout as at_

_INT64_MIN: Final = -(2**63)
_MILLIS_MAX: Final = 9_223_372_036_854_775  # beyond it microseconds overflow int64, and the timestamp is null

_COUNT: Final = int(at_.Reason.COUNT)
_DELTA: Final = int(at_.Reason.DELTA)
_TIMESTAMP: Final = int(at_.Reason.TIMESTAMP)
_TRAILING: Final = int(at_.Reason.TRAILING)


def _clear_bit(bits: int, place: int) -> None:
    byte = bits + (place >> 3)
    store_u8(byte, load_u8(byte) & ~(1 << (place & 7)))


def _set_bits(bits: int, first: int, end: int) -> None:
    for place in range(first, end):
        byte = bits + (place >> 3)
        store_u8(byte, load_u8(byte) | (1 << (place & 7)))


_null: Final = inlined(_clear_bit)
_unnull: Final = inlined(_set_bits)


def _append_binary(state: int, bits: int, row: int, at: int, size: int) -> None:
    """Append a cell of a binary column: `size` bytes at `at`, or null for −1. `bits`: the first of the column's four
    words.
    """
    offset = word(state, bits + 1) + 4 * row
    used = load_i32(offset)
    if size < 0:
        _null(word(state, bits), row)
        put(state, bits + 3, 1)
        size = 0
    else:
        copy(word(state, bits + 2) + used, at, size)
    store_i32(offset + 4, used + size)


def _append_timestamp(state: int, row: int, timestamp: int) -> None:
    if timestamp == -1 or timestamp > _MILLIS_MAX or timestamp < -_MILLIS_MAX:
        _null(word(state, at_.TIMESTAMP_BITS), row)
        put(state, at_.TIMESTAMP_NULLS, 1)
        timestamp = 0
    store_i64(word(state, at_.TIMESTAMPS) + 8 * row, timestamp * 1000)


_put_binary: Final = inlined(_append_binary)
_put_timestamp: Final = inlined(_append_timestamp)


def _append_headers(state: int, row: int, at: int, count: int) -> None:
    """Append a cell of the list column: `count` headers at `at`, already checked by `read_content`; null for none."""
    headers = word(state, at_.HEADERS)
    if count == 0:
        _null(word(state, at_.LIST_BITS), row)
        put(state, at_.LIST_NULLS, 1)
    key_offsets, key_data = word(state, at_.HEADER_KEY_OFFSETS), word(state, at_.HEADER_KEY_DATA)
    key_used = load_i32(key_offsets + 4 * headers)
    high_bits = 0
    for _ in range(count):
        size, at = varint(at, INT64_MAX)
        for place in range(at, at + size):
            high_bits |= load_u8(place)
        copy(key_data + key_used, at, size)
        key_used += size
        store_i32(key_offsets + 4 * headers + 4, key_used)
        size, at = varint(at + size, INT64_MAX)
        _put_binary(state, at_.HEADER_VALUE_BITS, headers, at, size)
        at += max(size, 0)
        headers += 1
    if high_bits & 0x80:
        put(state, at_.HEADER_KEY_NOT_ASCII, 1)
    put(state, at_.HEADERS, headers)
    store_i32(word(state, at_.LIST_OFFSETS) + 4 * row + 4, headers)


_put_headers: Final = inlined(_append_headers)


def _roll_back(state: int, rows: int, rows_before: int) -> None:
    """Remove the rows from `rows_before` on: set the validity bits that they cleared. Later rows overwrite the rest."""
    wanted = word(state, at_.WANTED)
    if wanted & at_.WANT_KEY:
        _unnull(word(state, at_.KEY_BITS), rows_before, rows)
    if wanted & at_.WANT_VALUE:
        _unnull(word(state, at_.VALUE_BITS), rows_before, rows)
    if wanted & at_.WANT_TIMESTAMP:
        _unnull(word(state, at_.TIMESTAMP_BITS), rows_before, rows)
    if wanted & at_.WANT_HEADERS:
        _unnull(word(state, at_.LIST_BITS), rows_before, rows)
        list_offsets = word(state, at_.LIST_OFFSETS)
        headers_before = load_i32(list_offsets + 4 * rows_before)
        _unnull(word(state, at_.HEADER_VALUE_BITS), headers_before, load_i32(list_offsets + 4 * rows))
        put(state, at_.HEADERS, headers_before)
    put(state, at_.ROWS, rows_before)


_forget: Final = inlined(_roll_back)


def _stop_at(state: int, at: int, done: int, delta_before: int, cost: int, headers: int) -> None:
    """The output is full: store the position at which the next call resumes, and the space that the next record
    needs."""
    put(state, at_.AT, at)
    put(state, at_.DONE, done)
    put(state, at_.DELTA_BEFORE, delta_before)
    put(state, at_.NEED_BYTES, cost)
    put(state, at_.NEED_HEADERS, headers)


def _overflows(base_timestamp: int, delta: int, timestamp: int) -> bool:
    return (base_timestamp ^ timestamp) & (delta ^ timestamp) < 0 or timestamp == _INT64_MIN


_stop: Final = inlined(_stop_at)
_leaves_int64: Final = inlined(_overflows)


def _is_inside(state: int, offset: int, timestamp: int) -> bool:
    """Whether a record is wanted. A record without timestamp is outside every time range."""
    if offset < word(state, at_.START_OFFSET) or offset >= word(state, at_.END_OFFSET):
        return False
    if word(state, at_.TIMED) == 0:
        return True
    return timestamp != -1 and timestamp >= word(state, at_.TIME_MIN) and timestamp < word(state, at_.TIME_MAX)


def _has_room(state: int, wanted: int, row: int, cost: int, header_count: int) -> bool:
    if cost > word(state, at_.BUDGET) or row == word(state, at_.ROWS_MAX):
        return False
    return wanted & at_.WANT_HEADERS == 0 or word(state, at_.HEADERS) + header_count <= word(state, at_.HEADERS_MAX)


_inside: Final = inlined(_is_inside)
_fits: Final = inlined(_has_room)


def _take(state: int, batch: int, wanted: int, reads: int) -> int:
    """Append the wanted records of the table's row `batch`, from AT on. Returns END after the last record, FULL, or
    −reason.

    The records after the first one that does not fit are parsed too, once, because only a batch that parses completely
    gives rows.
    """
    row_width = word(state, at_.ROW_WIDTH)
    rows = rows_before = word(state, at_.ROWS)
    base_offset = word(batch, at_.B_BASE_OFFSET)
    last_delta = word(batch, at_.B_LAST_DELTA)
    base_timestamp = word(batch, at_.B_BASE_TIMESTAMP)
    max_timestamp = word(batch, at_.B_MAX_TIMESTAMP)
    stamped = word(batch, at_.B_ATTRIBUTES) & TIMESTAMP_TYPE_BIT != 0
    count = word(batch, at_.B_COUNT)
    data = word(batch, at_.B_DATA)
    data_end = data + word(batch, at_.B_DATA_SIZE)
    at = data + word(state, at_.AT)
    done = word(state, at_.DONE)
    delta_before = word(state, at_.DELTA_BEFORE) if done > 0 else -1
    validated = word(state, at_.VALIDATED) != 0
    taking = True
    reason = 0
    if count > (data_end - data) // RECORD_BYTES_MIN:
        reason = _COUNT
    elif stamped and max_timestamp == _INT64_MIN and count > 0:
        reason = _TIMESTAMP
    while reason == 0 and done < count:
        record = at
        timestamp_delta, delta, content, at = read_frame(record, data_end)
        if at < 0:
            reason = -at
            break
        if delta <= delta_before or delta > last_delta:
            reason = _DELTA
            break
        timestamp = max_timestamp if stamped else base_timestamp + timestamp_delta
        if not stamped and _leaves_int64(base_timestamp, timestamp_delta, timestamp):
            reason = _TIMESTAMP
            break
        cost = row_width
        key_size = key = value_size = value = header_count = headers = 0
        if reads != 0:
            cost += at - record
            key_size, key, value_size, value, header_count, headers = read_content(content, at, reads)
            if headers < 0:
                reason = -headers
                break
        if taking and _inside(state, base_offset + delta, timestamp):
            if _fits(state, wanted, rows, cost, header_count):
                put(state, at_.BUDGET, word(state, at_.BUDGET) - cost)
                if wanted & at_.WANT_KEY:
                    _put_binary(state, at_.KEY_BITS, rows, key, key_size)
                if wanted & at_.WANT_VALUE:
                    _put_binary(state, at_.VALUE_BITS, rows, value, value_size)
                if wanted & at_.WANT_OFFSET:
                    store_i64(word(state, at_.OFFSETS) + 8 * rows, base_offset + delta)
                if wanted & at_.WANT_TIMESTAMP:
                    _put_timestamp(state, rows, timestamp)
                if wanted & at_.WANT_TIMESTAMP_TYPE:
                    store_i32(word(state, at_.TIMESTAMP_TYPES) + 4 * rows, 1 if stamped else 0)
                if wanted & at_.WANT_HEADERS:
                    _put_headers(state, rows, headers, header_count)
                rows += 1
            else:
                taking = False
                _stop(state, record - data, done, delta_before, cost, header_count)
                if validated:
                    break
        delta_before = delta
        done += 1
    if reason == 0 and done == count and at != data_end and not (validated and not taking):
        reason = _TRAILING
    if reason != 0:
        _forget(state, rows, rows_before)
        return -reason
    put(state, at_.ROWS, rows)
    return at_.END if taking else at_.FULL


_take_batch: Final = inlined(_take)


def _reads(wanted: int) -> int:
    """The parts of a record that the columns need."""
    if wanted & at_.WANT_HEADERS:
        return READ_KEY | READ_VALUE | READ_HEADERS
    if wanted & at_.WANT_VALUE:
        return READ_KEY | READ_VALUE
    return READ_KEY if wanted & at_.WANT_KEY else 0


_parts_read: Final = inlined(_reads)


def _rows(state: int) -> int:
    """Parse the table's batches from ENTRY and AT on into the output. Returns END, FULL, TOO_SMALL or POISON."""
    table = word(state, at_.TABLE)
    table_rows = word(state, at_.TABLE_ROWS)
    wanted = word(state, at_.WANTED)
    reads = _parts_read(wanted)
    for entry in range(word(state, at_.ENTRY), table_rows):
        put(state, at_.ENTRY, entry)
        status = _take_batch(state, table + 8 * at_.BATCH_WORDS * entry, wanted, reads)
        if status < 0:
            put(state, at_.REASON, -status)
            return at_.POISON
        if status == at_.FULL:
            put(state, at_.VALIDATED, 1)
            return at_.FULL if word(state, at_.ROWS) > 0 else at_.TOO_SMALL
        put(state, at_.AT, 0)
        put(state, at_.DONE, 0)
        put(state, at_.VALIDATED, 0)
    put(state, at_.ENTRY, table_rows)
    return at_.END


rows: Final[Callable[[int], int]] = compiled(_rows)
