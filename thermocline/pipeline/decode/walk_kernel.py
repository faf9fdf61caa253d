"""The kernel `walk`: finds the batches of a log, checks headers and CRCs, and lists the wanted batches in the batch
table.

No load is outside the log. A batch that overlaps the wanted offsets passes its CRC before any of it is used. Runs
without the GIL: takes the address of the state block (`layout`), returns a status.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from logformat.kernels.aborted_kernel import is_aborted
from logformat.kernels.crc_kernel import crc_of
from logformat.kernels.kernel_cache import compiled
from logformat.kernels.raw_memory import (
    load_be16,
    load_be32,
    load_be32_unsigned,
    load_be64,
    load_u8,
    put,
    word,
)
from logformat.kernels.record_kernel import inlined
from logformat.record_batch import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_AT,
    HEADER_SIZE,
    INT64_MAX,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from thermocline.pipeline.decode import layout as at_

_CUT: Final = int(at_.Reason.CUT)
_LENGTH: Final = int(at_.Reason.LENGTH)
_MAGIC: Final = int(at_.Reason.MAGIC)
_CRC: Final = int(at_.Reason.CRC)
_OFFSETS: Final = int(at_.Reason.OFFSETS)
_COUNT: Final = int(at_.Reason.COUNT)
_CODEC: Final = int(at_.Reason.CODEC)
_CODEC_LAST: Final = 4
_ROW_BYTES: Final = 8 * at_.BATCH_WORDS


def _misses_time(state: int, attributes: int, base_timestamp: int, max_timestamp: int) -> bool:
    """Whether the header shows that no record of the batch is inside the wanted time."""
    if word(state, at_.TIMED) == 0:
        return False
    time_min = word(state, at_.TIME_MIN)
    if attributes & TIMESTAMP_TYPE_BIT:
        return max_timestamp == -1 or max_timestamp < time_min or max_timestamp >= word(state, at_.TIME_MAX)
    # A maximum below the first record's timestamp was not set by the producer; the records decide.
    return base_timestamp <= max_timestamp < time_min


_out_of_time: Final = inlined(_misses_time)


def _judge_frame(batch: int, left: int, offset_next: int) -> int:
    """The reason why the batch's length or offsets are wrong, or 0. `left`: bytes available."""
    if left < HEADER_SIZE:
        return _CUT
    if load_u8(batch + MAGIC_AT) != MAGIC:
        return _MAGIC
    size = load_be32(batch + LENGTH_AT) + LOG_OVERHEAD
    if size < HEADER_SIZE or size > left:
        return _LENGTH
    base_offset = load_be64(batch)
    last_delta = load_be32(batch + LAST_OFFSET_DELTA_AT)
    if base_offset < offset_next or last_delta < 0 or base_offset > INT64_MAX - 1 - last_delta:
        return _OFFSETS
    return 0


def _judge_body(batch: int, size: int, last_delta: int) -> int:
    """The reason why a wanted batch's CRC or record count is wrong, or 0."""
    if crc_of(batch + ATTRIBUTES_AT, batch + size) != load_be32_unsigned(batch + CRC_AT):
        return _CRC
    count = load_be32(batch + RECORD_COUNT_AT)
    if count < 0 or count > last_delta + 1:
        return _COUNT
    return 0


def _has_no_rows(state: int, batch: int, size: int, base_offset: int) -> bool:
    """Whether a sound batch is a control batch, empty, aborted, or outside the wanted time."""
    attributes = load_be16(batch + ATTRIBUTES_AT)
    if attributes & CONTROL_BIT:
        return True
    if size == HEADER_SIZE and load_be32(batch + RECORD_COUNT_AT) == 0:
        return True
    if attributes & TRANSACTIONAL_BIT and is_aborted(
        word(state, at_.ABORTED), word(state, at_.ABORTED_COUNT), load_be64(batch + PRODUCER_ID_AT), base_offset
    ):
        return True
    return _out_of_time(state, attributes, load_be64(batch + BASE_TIMESTAMP_AT), load_be64(batch + MAX_TIMESTAMP_AT))


def _note_batch(row: int, batch: int, pos: int, size: int) -> None:
    put(row, at_.B_POS, pos)
    put(row, at_.B_SIZE, size)
    put(row, at_.B_BASE_OFFSET, load_be64(batch))
    put(row, at_.B_LAST_DELTA, load_be32(batch + LAST_OFFSET_DELTA_AT))
    put(row, at_.B_BASE_TIMESTAMP, load_be64(batch + BASE_TIMESTAMP_AT))
    put(row, at_.B_MAX_TIMESTAMP, load_be64(batch + MAX_TIMESTAMP_AT))
    put(row, at_.B_ATTRIBUTES, load_be16(batch + ATTRIBUTES_AT))
    put(row, at_.B_COUNT, load_be32(batch + RECORD_COUNT_AT))
    put(row, at_.B_DATA, batch + HEADER_SIZE)
    put(row, at_.B_DATA_SIZE, size - HEADER_SIZE)


_frame: Final = inlined(_judge_frame)
_body: Final = inlined(_judge_body)
_is_skipped: Final = inlined(_has_no_rows)
_note: Final = inlined(_note_batch)


def _walk(state: int) -> int:
    """Check the batches from POS on, and fill the table with the wanted ones. Returns MORE, END, HOLE or POISON."""
    log = word(state, at_.LOG)
    log_size = word(state, at_.LOG_SIZE)
    pos = word(state, at_.POS)
    walk_end = min(log_size, pos + word(state, at_.WALK_BYTES))
    offset_next = word(state, at_.OFFSET_NEXT)
    start_offset = word(state, at_.START_OFFSET)
    end_offset = word(state, at_.END_OFFSET)
    table = word(state, at_.TABLE)
    table_end = table + _ROW_BYTES * word(state, at_.TABLE_ROWS_MAX)
    row = table
    cover_end = word(state, at_.COVER_END)
    reason = 0
    status = at_.MORE
    while pos < walk_end and row < table_end:
        batch = log + pos
        reason = _frame(batch, log_size - pos, offset_next)
        if reason != 0:
            break
        size = load_be32(batch + LENGTH_AT) + LOG_OVERHEAD
        base_offset = load_be64(batch)
        if base_offset != cover_end and cover_end >= 0:
            status = at_.HOLE
            break
        last_delta = load_be32(batch + LAST_OFFSET_DELTA_AT)
        after = base_offset + last_delta + 1
        if after > start_offset and base_offset < end_offset:
            reason = _body(batch, size, last_delta)
            if reason != 0:
                break
            if not _is_skipped(state, batch, size, base_offset):
                if load_be16(batch + ATTRIBUTES_AT) & CODEC_MASK > _CODEC_LAST:
                    reason = _CODEC
                    break
                _note(row, batch, pos, size)
                row += _ROW_BYTES
        if cover_end < 0:
            put(state, at_.COVER_FIRST, base_offset)
        cover_end = offset_next = after
        pos += size
    put(state, at_.POS, pos)
    put(state, at_.OFFSET_NEXT, offset_next)
    put(state, at_.COVER_END, cover_end)
    put(state, at_.TABLE_ROWS, (row - table) // _ROW_BYTES)
    put(state, at_.REASON, reason)
    if reason != 0:
        return at_.POISON
    return at_.END if pos >= log_size else status


walk: Final[Callable[[int], int]] = compiled(_walk)
