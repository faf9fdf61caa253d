"""The kernel that writes the retained part of a run of batches.

A batch without removed records is copied unchanged. A batch that loses some records keeps its header fields (ADR 30). A
batch that loses all records becomes part of a hole, which a filler covers before the next retained batch; but the last
batch of a producer stays as an empty batch. For any input, loads stay inside the run and stores inside the output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from logformat.compaction import layout as at_
from logformat.compaction.filler import FILLER_BYTES_MAX, FILLER_KEY, FILLER_TYPE
from logformat.compaction.hash_kernel import siphash128
from logformat.compaction.map_kernel import find_slot, is_batch_aborted, judge_batch
from logformat.kernels.crc_kernel import crc_of
from logformat.kernels.kernel_cache import compiled
from logformat.kernels.raw_memory import (
    copy,
    load_be16,
    load_be32,
    load_be64,
    load_i64,
    load_u8,
    put,
    store_be16,
    store_be32,
    store_be64,
    store_u8,
    word,
)
from logformat.kernels.record_kernel import READ_KEY, READ_VALUE, inlined, read_content, read_frame
from logformat.kernels.refusals import Reason
from logformat.record_batch import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_AT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    INT32_MAX,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    NO_TIMESTAMP,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)

assert FILLER_KEY == b"\0\0ti", "the filler below is written byte by byte"

GROWTH: Final = 12
"""Most bytes by which a record grows when its timestamp delta is rewritten: ten of the delta, two of the length."""
_PRODUCER_EPOCH_AT: Final = PRODUCER_ID_AT + 8
_DROPPED: Final = 0
_STAYS: Final = 1
_COUNT: Final = int(Reason.COUNT)
_DELTA: Final = int(Reason.DELTA)
_TRAILING: Final = int(Reason.TRAILING)


def _put_varint(at: int, value: int) -> int:
    """Write an int64 as a zig-zag varint; returns the position after it."""
    raw = (value << 1) ^ (value >> 63)
    while raw & ~0x7F:
        store_u8(at, (raw & 0x7F) | 0x80)
        raw = (raw >> 7) & 0x1FFFFFFFFFFFFFF
        at += 1
    store_u8(at, raw)
    return at + 1


_varint_to: Final = inlined(_put_varint)


def _seal(batch: int, end: int) -> None:
    """Set length and CRC of a batch written to [batch, end)."""
    store_be32(batch + LENGTH_AT, end - batch - LOG_OVERHEAD)
    store_be32(batch + CRC_AT, crc_of(batch + ATTRIBUTES_AT, end))


_seal_batch: Final = inlined(_seal)


def _put_filler(state: int) -> None:
    """If there is a hole, write its filler to the output, as `filler.filler_batch` makes it. The output has room."""
    first = word(state, at_.HOLE_FIRST)
    if first < 0:
        return
    batch = word(state, at_.OUT) + word(state, at_.OUT_AT)
    delta = word(state, at_.HOLE_END) - 1 - first
    epoch = word(state, at_.HOLE_EPOCH)
    store_be64(batch, first)
    store_be32(batch + LEADER_EPOCH_AT, epoch)
    store_u8(batch + MAGIC_AT, MAGIC)
    store_be16(batch + ATTRIBUTES_AT, CONTROL_BIT)
    store_be32(batch + LAST_OFFSET_DELTA_AT, delta)
    store_be64(batch + BASE_TIMESTAMP_AT, NO_TIMESTAMP)
    store_be64(batch + MAX_TIMESTAMP_AT, NO_TIMESTAMP)
    store_be64(batch + PRODUCER_ID_AT, -1)
    store_be16(batch + _PRODUCER_EPOCH_AT, -1)
    store_be32(batch + BASE_SEQUENCE_AT, -1)
    store_be32(batch + RECORD_COUNT_AT, 1)
    # The record: length, attributes, timestamp delta, offset delta, key of 4 bytes, value of 6, no header.
    length_at = batch + HEADER_SIZE
    store_u8(length_at + 1, 0)
    store_u8(length_at + 2, 0)
    at = _varint_to(length_at + 3, delta)
    store_u8(at, 8)
    store_be16(at + 1, 0)
    store_be16(at + 3, FILLER_TYPE)
    store_u8(at + 5, 12)
    store_be16(at + 6, 0)
    store_be32(at + 8, epoch)
    store_u8(at + 12, 0)
    end = at + 13
    _varint_to(length_at, end - length_at - 1)
    _seal_batch(batch, end)
    put(state, at_.OUT_AT, word(state, at_.OUT_AT) + end - batch)
    put(state, at_.HOLE_FIRST, -1)
    put(state, at_.FILLERS, word(state, at_.FILLERS) + 1)


_flush_hole: Final = inlined(_put_filler)


def _is_filler_batch(batch: int, size: int, attributes: int) -> bool:
    """Whether a sound batch is a filler."""
    if attributes != CONTROL_BIT or size > FILLER_BYTES_MAX or load_be32(batch + RECORD_COUNT_AT) != 1:
        return False
    if load_be64(batch + PRODUCER_ID_AT) != -1 or load_be64(batch + MAX_TIMESTAMP_AT) != NO_TIMESTAMP:
        return False
    _ts, delta, field, end = read_frame(batch + HEADER_SIZE, batch + size)
    if end != batch + size or delta != load_be32(batch + LAST_OFFSET_DELTA_AT):
        return False
    key_size, key, _vs, _v, _c, after = read_content(field, end, READ_KEY)
    return after >= 0 and key_size == 4 and load_be16(key) == 0 and load_be16(key + 2) == FILLER_TYPE


_is_filler: Final = inlined(_is_filler_batch)


def _opens_gap(state: int, batch: int) -> bool:
    """Whether the current hole cannot include the batch: the batch has another leader epoch, or the hole would have
    more offsets than a batch may have."""
    first = word(state, at_.HOLE_FIRST)
    if first < 0:
        return False
    last = load_be64(batch) + load_be32(batch + LAST_OFFSET_DELTA_AT)
    return load_be32(batch + LEADER_EPOCH_AT) != word(state, at_.HOLE_EPOCH) or last - first > INT32_MAX - 1


_needs_filler: Final = inlined(_opens_gap)


def _vanish(state: int, batch: int) -> None:
    """Make the batch part of the hole."""
    if word(state, at_.HOLE_FIRST) < 0:
        put(state, at_.HOLE_FIRST, load_be64(batch))
        put(state, at_.HOLE_EPOCH, load_be32(batch + LEADER_EPOCH_AT))
    put(state, at_.HOLE_END, load_be64(batch) + load_be32(batch + LAST_OFFSET_DELTA_AT) + 1)


_join_hole: Final = inlined(_vanish)


def _is_last_batch(state: int, batch: int) -> bool:
    """Whether the data batch is the newest of a producer that the log knows."""
    last = load_be64(batch) + load_be32(batch + LAST_OFFSET_DELTA_AT)
    offsets = word(state, at_.LAST_OFFSETS)
    low, high = 0, word(state, at_.LAST_OFFSETS_COUNT)
    while low < high:
        middle = (low + high) >> 1
        if load_i64(offsets + 8 * middle) < last:
            low = middle + 1
        else:
            high = middle
    return low < word(state, at_.LAST_OFFSETS_COUNT) and load_i64(offsets + 8 * low) == last


_is_last: Final = inlined(_is_last_batch)


def _put_empty(state: int, batch: int) -> None:
    """Write the batch's header to the output, without records, codec and delete horizon. The output has room."""
    target = word(state, at_.OUT) + word(state, at_.OUT_AT)
    copy(target, batch, HEADER_SIZE)
    attributes = load_be16(batch + ATTRIBUTES_AT)
    if attributes & DELETE_HORIZON_BIT:
        store_be64(target + BASE_TIMESTAMP_AT, NO_TIMESTAMP)  # the field held the delete horizon
    store_be16(target + ATTRIBUTES_AT, attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT))
    store_be32(target + RECORD_COUNT_AT, 0)
    _seal_batch(target, target + HEADER_SIZE)
    put(state, at_.OUT_AT, word(state, at_.OUT_AT) + HEADER_SIZE)


_empty: Final = inlined(_put_empty)


def _lose_all(state: int, batch: int) -> None:
    """Remove all records of the data batch. A producer's last batch stays as an empty batch; any other batch becomes
    part of the hole."""
    if _is_last(state, batch):
        _flush_hole(state)
        _empty(state, batch)
        return
    if _needs_filler(state, batch):
        _flush_hole(state)
    _join_hole(state, batch)


_drop: Final = inlined(_lose_all)


def _decide(state: int, batch: int, at: int, end: int) -> tuple[int, int, int, bool]:
    """Decide for each record in [at, end) whether it is retained, and store the decisions. Returns (reason of a refusal
    or 0, number of retained records, their greatest timestamp, whether any of them is a tombstone without delete
    horizon).
    """
    slots, slot_count = word(state, at_.SLOTS), word(state, at_.SLOT_COUNT)
    k0, k1 = word(state, at_.HASH_KEY_0), word(state, at_.HASH_KEY_1)
    now = word(state, at_.NOW)
    decisions = word(state, at_.DECISIONS)
    base_offset, last_delta = load_be64(batch), load_be32(batch + LAST_OFFSET_DELTA_AT)
    may_drop_tombstones = base_offset + last_delta < word(state, at_.TOMBSTONES_END)
    base_timestamp = load_be64(batch + BASE_TIMESTAMP_AT)
    has_horizon = load_be16(batch + ATTRIBUTES_AT) & DELETE_HORIZON_BIT != 0
    kept = keyless = dead = 0
    newest = NO_TIMESTAMP
    needs_horizon = False
    delta_before = -1
    count = load_be32(batch + RECORD_COUNT_AT)
    for number in range(count):
        timestamp_delta, delta, field, record_end = read_frame(at, end)
        if record_end < 0:
            return -record_end, 0, 0, False
        if delta <= delta_before or delta > last_delta:
            return _DELTA, 0, 0, False
        key_size, key, value_size, _v, _c, after = read_content(field, record_end, READ_KEY | READ_VALUE)
        if after < 0:
            return -after, 0, 0, False
        decision = _DROPPED
        if key_size < 0:
            keyless += 1
        else:
            first, second = siphash128(key, key_size, k0, k1)
            if load_i64(find_slot(slots, slot_count, first, second) + 16) <= base_offset + delta + 1:
                decision = _STAYS
                if value_size < 0 and may_drop_tombstones:
                    if not has_horizon:
                        needs_horizon = True
                    elif base_timestamp <= now:
                        decision = _DROPPED
                        dead += 1
        if decision == _STAYS:
            kept += 1
            newest = max(newest, base_timestamp + timestamp_delta)
        store_u8(decisions + number, decision)
        delta_before = delta
        at = record_end
    if at != end:
        return _TRAILING, 0, 0, False
    put(state, at_.RECORDS_READ, word(state, at_.RECORDS_READ) + count)
    put(state, at_.RECORDS_KEPT, word(state, at_.RECORDS_KEPT) + kept)
    put(state, at_.KEYLESS_DROPPED, word(state, at_.KEYLESS_DROPPED) + keyless)
    put(state, at_.TOMBSTONES_DROPPED, word(state, at_.TOMBSTONES_DROPPED) + dead)
    return 0, kept, newest, needs_horizon


_decide_records: Final = inlined(_decide)


def _copy_kept(state: int, batch: int, at: int, end: int, target: int, shift: int) -> int:
    """Copy the retained records from [at, end) to `target`; returns the position after them. `shift` is added to their
    timestamp deltas. The records are well-formed."""
    decisions = word(state, at_.DECISIONS)
    count = load_be32(batch + RECORD_COUNT_AT)
    run = at  # start of the records that are copied together
    for number in range(count):
        timestamp_delta, _delta, _field, record_end = read_frame(at, end)
        stays = load_u8(decisions + number) == _STAYS
        if not stays or shift != 0:
            copy(target, run, at - run)
            target += at - run
            run = record_end
        if stays and shift != 0:
            target = _shifted_to(target, at, record_end, timestamp_delta + shift)
        at = record_end
    copy(target, run, at - run)
    return target + at - run


def _put_shifted(target: int, at: int, end: int, timestamp_delta: int) -> int:
    """Write the record in [at, end) with another timestamp delta; returns the position after it."""
    while load_u8(at) & 0x80:
        at += 1
    attributes = at + 1
    rest = attributes + 1
    while load_u8(rest) & 0x80:
        rest += 1
    rest += 1
    raw = (timestamp_delta << 1) ^ (timestamp_delta >> 63)
    width = 1
    while raw & ~0x7F:
        raw = (raw >> 7) & 0x1FFFFFFFFFFFFFF
        width += 1
    target = _varint_to(target, 1 + width + end - rest)
    store_u8(target, load_u8(attributes))
    target = _varint_to(target + 1, timestamp_delta)
    copy(target, rest, end - rest)
    return target + end - rest


_shifted_to: Final = inlined(_put_shifted)
_copy_records: Final = inlined(_copy_kept)


def _clean_batches(state: int) -> int:
    """Write the retained part of the run's batches from POS on. Returns DONE, POISON, PACKED, FULL, REWRITE, or the
    status of a buffer that is too small."""
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
        growth = GROWTH * count if attributes & CODEC_MASK == 0 else 0
        need = 2 * FILLER_BYTES_MAX + batch_size + growth
        if word(state, at_.OUT_SIZE) - word(state, at_.OUT_AT) < need:
            put(state, at_.NEED, need)
            status = at_.FULL
            break
        is_control = attributes & CONTROL_BIT != 0
        # The map may lack a key of a batch at or above MAP_END, and older records of this key may exist. Such a batch
        # is kept whole: no tombstone gets a delete horizon, and none is removed.
        if is_control or load_be64(batch) >= word(state, at_.MAP_END):
            if is_control and _is_filler(batch, batch_size, attributes):
                if _needs_filler(state, batch):
                    _flush_hole(state)
                _join_hole(state, batch)
            else:
                _flush_hole(state)
                copy(word(state, at_.OUT) + word(state, at_.OUT_AT), batch, batch_size)
                put(state, at_.OUT_AT, word(state, at_.OUT_AT) + batch_size)
        elif attributes & TRANSACTIONAL_BIT and is_batch_aborted(state, batch):
            _drop(state, batch)
        else:
            at, end = batch + HEADER_SIZE, batch + batch_size
            is_packed = attributes & CODEC_MASK != 0 and count > 0
            if is_packed:
                if records == 0:
                    status = at_.PACKED
                    break
                at, end = records, records + word(state, at_.RECORDS_SIZE)
            if word(state, at_.DECISIONS_SIZE) < count:
                put(state, at_.NEED, count)
                status = at_.DECISIONS_SHORT
                break
            if is_packed and word(state, at_.KEPT_BYTES) < end - at + GROWTH * count:
                put(state, at_.NEED, end - at + GROWTH * count)
                status = at_.KEPT_SHORT
                break
            reason, kept, newest, needs_horizon = _decide_records(state, batch, at, end)
            if reason != 0:
                break
            records = 0
            if kept == 0:
                _drop(state, batch)
            else:
                _flush_hole(state)
                target = word(state, at_.OUT) + word(state, at_.OUT_AT)
                if kept == count and not needs_horizon:
                    copy(target, batch, batch_size)
                    put(state, at_.OUT_AT, word(state, at_.OUT_AT) + batch_size)
                else:
                    base_timestamp = load_be64(batch + BASE_TIMESTAMP_AT)
                    shift = 0
                    is_stamped = attributes & TIMESTAMP_TYPE_BIT != 0
                    if needs_horizon:
                        horizon = word(state, at_.HORIZON)
                        if not is_stamped:
                            shift = base_timestamp - horizon
                        attributes |= DELETE_HORIZON_BIT
                        base_timestamp = horizon
                    if is_stamped:
                        newest = load_be64(batch + MAX_TIMESTAMP_AT)
                    if is_packed:
                        behind = _copy_records(state, batch, at, end, word(state, at_.KEPT), shift)
                        put(state, at_.KEPT_SIZE, behind - word(state, at_.KEPT))
                        put(state, at_.BATCH_POS, pos)
                        put(state, at_.BATCH_COUNT, kept)
                        put(state, at_.BATCH_BASE_TIMESTAMP, base_timestamp)
                        put(state, at_.BATCH_MAX_TIMESTAMP, newest)
                        put(state, at_.BATCH_ATTRIBUTES, attributes)
                        status = at_.REWRITE
                    else:
                        copy(target, batch, HEADER_SIZE)
                        behind = _copy_records(state, batch, at, end, target + HEADER_SIZE, shift)
                        store_be16(target + ATTRIBUTES_AT, attributes)
                        store_be64(target + BASE_TIMESTAMP_AT, base_timestamp)
                        store_be64(target + MAX_TIMESTAMP_AT, newest)
                        store_be32(target + RECORD_COUNT_AT, kept)
                        _seal_batch(target, behind)
                        put(state, at_.OUT_AT, word(state, at_.OUT_AT) + behind - target)
        offset = load_be64(batch) + load_be32(batch + LAST_OFFSET_DELTA_AT) + 1
        pos += batch_size
        if status != at_.DONE:
            break
    put(state, at_.POS, pos)
    put(state, at_.END_OFFSET, offset)
    if status != at_.DECISIONS_SHORT and status != at_.KEPT_SHORT:
        put(state, at_.RECORDS, 0)
    put(state, at_.REASON, reason)
    return at_.POISON if reason != 0 else status


def _finish(state: int) -> int:
    """Write the filler of the last hole, if any; the output has room."""
    _flush_hole(state)
    return at_.DONE


clean_batches: Final[Callable[[int], int]] = compiled(_clean_batches)
finish_hole: Final[Callable[[int], int]] = compiled(_finish)
