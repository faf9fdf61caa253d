"""Kernels over the map of keys: find a key's slot, and map the keys of whole batches.

Double hashing over a prime number of slots. For any input, loads stay inside the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from logformat.compaction import layout as at_
from logformat.compaction.hash_kernel import siphash128
from logformat.kernels.aborted_kernel import is_aborted
from logformat.kernels.crc_kernel import crc_of
from logformat.kernels.kernel_cache import compiled
from logformat.kernels.raw_memory import (
    load_be16,
    load_be32,
    load_be32_unsigned,
    load_be64,
    load_i64,
    load_u8,
    put,
    store_i64,
    word,
)
from logformat.kernels.record_kernel import READ_KEY, inlined, read_content, read_frame
from logformat.kernels.refusals import Reason
from logformat.record_batch import (
    ATTRIBUTES_AT,
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
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    TRANSACTIONAL_BIT,
)

SLOT_BYTES: Final = 24
_CUT: Final = int(Reason.CUT)
_LENGTH: Final = int(Reason.LENGTH)
_MAGIC: Final = int(Reason.MAGIC)
_CRC: Final = int(Reason.CRC)
_OFFSETS: Final = int(Reason.OFFSETS)
_COUNT: Final = int(Reason.COUNT)
_CODEC: Final = int(Reason.CODEC)
_DELTA: Final = int(Reason.DELTA)
_TRAILING: Final = int(Reason.TRAILING)
_CODEC_LAST: Final = 4


def _judge(batch: int, left: int, offset: int, has_crc: bool) -> int:
    """Check the batch at `batch`, where `left` bytes are readable. Returns 0 if it is sound, otherwise the reason why
    not. `offset`: the required base offset, −1: any. `has_crc`: the batch's CRC was checked already.
    """
    if left < HEADER_SIZE:
        return _CUT
    if load_u8(batch + MAGIC_AT) != MAGIC:
        return _MAGIC
    size = load_be32(batch + LENGTH_AT) + LOG_OVERHEAD
    if size < HEADER_SIZE or size > left:
        return _LENGTH
    base_offset = load_be64(batch)
    last_delta = load_be32(batch + LAST_OFFSET_DELTA_AT)
    if base_offset < 0 or last_delta < 0 or base_offset > INT64_MAX - 1 - last_delta:
        return _OFFSETS
    if offset >= 0 and base_offset != offset:
        return _OFFSETS
    if not has_crc and crc_of(batch + ATTRIBUTES_AT, batch + size) != load_be32_unsigned(batch + CRC_AT):
        return _CRC
    count = load_be32(batch + RECORD_COUNT_AT)
    if count < 0 or count > last_delta + 1:
        return _COUNT
    if load_be16(batch + ATTRIBUTES_AT) & CODEC_MASK > _CODEC_LAST:
        return _CODEC
    return 0


judge_batch: Final = inlined(_judge)


def _find(slots: int, slot_count: int, first: int, second: int) -> int:
    """Address of the key's slot, or of the empty slot where the key belongs."""
    place = (first & INT64_MAX) % slot_count
    step = 1 + (second & INT64_MAX) % (slot_count - 1)
    slot = slots + SLOT_BYTES * place
    while load_i64(slot + 16) != 0 and (load_i64(slot) != first or load_i64(slot + 8) != second):
        place += step
        if place >= slot_count:
            place -= slot_count
        slot = slots + SLOT_BYTES * place
    return slot


find_slot: Final = inlined(_find)


def _put_records(state: int, batch: int, at: int, end: int) -> int:
    """Map the keys of the records in [at, end). Returns 0, or the reason why a record is malformed."""
    slots, slot_count = word(state, at_.SLOTS), word(state, at_.SLOT_COUNT)
    k0, k1 = word(state, at_.HASH_KEY_0), word(state, at_.HASH_KEY_1)
    base_offset, last_delta = load_be64(batch), load_be32(batch + LAST_OFFSET_DELTA_AT)
    entries = word(state, at_.ENTRIES)
    delta_before = -1
    for _ in range(load_be32(batch + RECORD_COUNT_AT)):
        _timestamp, delta, field, record_end = read_frame(at, end)
        if record_end < 0:
            return -record_end
        if delta <= delta_before or delta > last_delta:
            return _DELTA
        key_size, key, _vs, _v, _c, after = read_content(field, record_end, READ_KEY)
        if after < 0:
            return -after
        if key_size >= 0:
            first, second = siphash128(key, key_size, k0, k1)
            slot = find_slot(slots, slot_count, first, second)
            if load_i64(slot + 16) == 0:
                store_i64(slot, first)
                store_i64(slot + 8, second)
                entries += 1
            store_i64(slot + 16, base_offset + delta + 1)
        delta_before = delta
        at = record_end
    put(state, at_.ENTRIES, entries)
    return 0 if at == end else _TRAILING


_map_records: Final = inlined(_put_records)


def _is_batch_aborted(state: int, batch: int) -> bool:
    """Whether a transactional batch belongs to an aborted transaction of the pass."""
    aborted, count = word(state, at_.ABORTED), word(state, at_.ABORTED_COUNT)
    return is_aborted(aborted, count, load_be64(batch + PRODUCER_ID_AT), load_be64(batch))


is_batch_aborted: Final = inlined(_is_batch_aborted)


def _map_batches(state: int) -> int:
    """Map the keys of the run's batches from POS on, each batch completely or not at all. Returns DONE, POISON, PACKED
    or FULL."""
    data, size = word(state, at_.DATA), word(state, at_.SIZE)
    pos, offset = word(state, at_.POS), word(state, at_.END_OFFSET)
    records = word(state, at_.RECORDS)
    status = at_.DONE
    reason = 0
    while pos < size:
        batch = data + pos
        reason = judge_batch(batch, size - pos, offset, records != 0)
        if reason != 0:
            break
        batch_size = load_be32(batch + LENGTH_AT) + LOG_OVERHEAD
        attributes = load_be16(batch + ATTRIBUTES_AT)
        count = load_be32(batch + RECORD_COUNT_AT)
        is_mapped = attributes & CONTROL_BIT == 0 and count > 0
        if is_mapped and attributes & TRANSACTIONAL_BIT:
            is_mapped = not is_batch_aborted(state, batch)
        if is_mapped:
            at, end = batch + HEADER_SIZE, batch + batch_size
            if attributes & CODEC_MASK:
                if records == 0:
                    status = at_.PACKED
                    break
                at, end = records, records + word(state, at_.RECORDS_SIZE)
                records = 0
            if word(state, at_.ENTRIES) + count > word(state, at_.ENTRIES_MAX):
                status = at_.FULL
                break
            reason = _map_records(state, batch, at, end)
            if reason != 0:
                break
        offset = load_be64(batch) + load_be32(batch + LAST_OFFSET_DELTA_AT) + 1
        pos += batch_size
    put(state, at_.POS, pos)
    put(state, at_.END_OFFSET, offset)
    put(state, at_.RECORDS, 0)
    put(state, at_.REASON, reason)
    return at_.POISON if reason != 0 else status


map_batches: Final[Callable[[int], int]] = compiled(_map_batches)
