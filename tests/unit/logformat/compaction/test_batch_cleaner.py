"""Cleaned batches against a model that works record by record, over ugly logs: every codec, tombstones with and without
horizon, keyless records, gaps, control batches, fillers of earlier passes, empty batches, leader epochs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from logformat.compaction.batch_cleaner import BatchCleaner
from logformat.compaction.filler import filler_batch, is_filler
from logformat.compaction.offset_map import KeyMapper, OffsetMap
from logformat.compaction.rules import CleanRules
from logformat.compression import compress
from logformat.gap import gap_batches
from logformat.record_batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CRC_AT,
    HEADER,
    HEADER_SIZE,
    BatchHeader,
    Codec,
    CorruptBatch,
    TimestampType,
    check_stored,
    read_header,
    walk,
)
from logformat.records import Record, encode_batch, encode_record, iter_records

SEED = bytes(range(16))
NOW = 10_000
RULES = CleanRules(now_ms=NOW, delete_retention_ms=500)
HORIZON_BIT = 1 << 6


def records_of(batch: bytes) -> list[Record]:
    """Of any sound batch; one without records may name a codec."""
    return list(iter_records(batch)) if read_header(batch).record_count else []


def sealed(header: BatchHeader, body: bytes) -> bytes:
    batch = bytearray(HEADER.pack(*header._replace(length=HEADER_SIZE - 12 + len(body)))) + body
    batch[CRC_AT:ATTRIBUTES_AT] = crc32c(memoryview(batch)[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return bytes(batch)


def with_horizon(batch: bytes, horizon: int) -> bytes:
    """The batch as a pass leaves it that kept a tombstone: bit 6, and deltas from the horizon."""
    header = read_header(batch)
    records = list(iter_records(batch))
    stamped = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    base = header.base_timestamp if stamped else horizon
    body = b"".join(encode_record(r, r.offset - header.base_offset, r.timestamp - base) for r in records)
    header = header._replace(attributes=header.attributes | HORIZON_BIT, base_timestamp=horizon)
    return sealed(header, compress(header.codec, body))


# --- the model --------------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """Per record, with the rules of ADR 30."""

    newest: dict[bytes, int]
    rules: CleanRules

    def stays(self, header: BatchHeader, record: Record) -> bool:
        if record.key is None or self.newest.get(record.key, -1) > record.offset:
            return False
        is_over = bool(header.attributes & HORIZON_BIT) and header.base_timestamp <= self.rules.now_ms
        return record.value is not None or header.last_offset >= self.rules.tombstones_end or not is_over

    def clean(self, batches: Iterable[bytes]) -> list[tuple[Any, ...]]:
        """(base, next offset, leader epoch, records or what it is) of each batch that comes out."""
        out: list[tuple[Any, ...]] = []
        for batch in batches:
            header = read_header(batch)
            place = (header.base_offset, header.next_offset, header.leader_epoch)
            if header.is_control and not is_filler(batch):
                out.append((*place, batch))
                continue
            kept = [] if header.is_control else [r for r in records_of(batch) if self.stays(header, r)]
            if kept or (not header.is_control and header.last_offset in self.rules.last_offsets):
                out.append((*place, kept))
            elif out and out[-1][3] == "filler" and out[-1][2] == header.leader_epoch:
                out[-1] = (out[-1][0], header.next_offset, header.leader_epoch, "filler")
            else:
                out.append((*place, "filler"))
        return out


def shape(log: bytes) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for at, header in walk(log):
        batch = log[at : at + header.size]
        check_stored(batch, 0, len(batch))
        place = (header.base_offset, header.next_offset, header.leader_epoch)
        if is_filler(batch):
            assert batch == filler_batch(*place)
            found.append((*place, "filler"))
        else:
            found.append((*place, batch if header.is_control else list(iter_records(batch))))
    return found


def newest_of(batches: Iterable[bytes]) -> dict[bytes, int]:
    return {
        r.key: r.offset
        for batch in batches
        if not read_header(batch).is_control
        for r in records_of(batch)
        if r.key is not None
    }


# --- logs -------------------------------------------------------------------------------------------------------------

KEYS = st.one_of(
    st.sampled_from([b"", b"a", b"b", b"c", b"k" * 7, b"k" * 8, b"k" * 9, b"k" * 4_000, b"k" * 3_999 + b"l"]), st.none()
)
RECORDS = st.lists(
    st.tuples(
        KEYS,
        st.sampled_from([None, b"", b"v", b"v" * 300]),
        st.integers(1, 3),  # offsets since the record before
        st.sampled_from([-1, 0, 5, 1_000, 900_000_000_000]),  # its timestamp
        st.booleans(),  # headers
    ),
    max_size=6,
)
BATCH = st.tuples(
    st.sampled_from(["data"] * 6 + ["horizon past", "horizon future", "gap", "filler", "marker", "empty"]),
    RECORDS,
    st.sampled_from(list(Codec)),
    st.sampled_from(list(TimestampType)),
    st.booleans(),  # a new leader epoch
    st.booleans(),  # an idempotent producer
)


LOG = st.lists(BATCH, min_size=1, max_size=8)


def built(drawn: list[Any]) -> list[bytes]:
    batches: list[bytes] = []
    at, epoch = 7, 1
    for kind, rows, codec, timestamp_type, is_new, has_producer in drawn:
        epoch += is_new
        if kind in ("gap", "filler"):
            batch = next(iter(gap_batches(at, at + 3, epoch))) if kind == "gap" else filler_batch(at, at + 2, epoch)
        elif kind == "marker":
            record = Record(at, 5, b"\0\0\0\1", b"\0\0\0\0\0\0")
            batch = encode_batch([record], leader_epoch=epoch, producer_id=9, producer_epoch=0, control=True)
        elif kind == "empty" or not rows:
            header = BatchHeader(at, 0, epoch, 2, 0, codec, 2, 5, 5, 4, 0, 8, 0)
            batch = sealed(header, b"")
        else:
            offset, records = at, []
            for key, value, step, timestamp, has_headers in rows:
                headers = (("h", b"1"), ("é", None)) if has_headers else ()
                records.append(Record(offset, timestamp, key, value, headers))
                offset += step
            more: dict[str, Any] = {"producer_id": 4, "producer_epoch": 0, "base_sequence": at} if has_producer else {}
            batch = encode_batch(
                records, base_offset=at, last_offset=offset - 1, codec=codec, leader_epoch=epoch,
                timestamp_type=timestamp_type, **more,
            )  # fmt: skip
            if kind != "data":
                batch = with_horizon(batch, NOW if kind == "horizon past" else NOW + 1)
        batches.append(batch)
        at = read_header(batch).next_offset
    return batches


def cleaned(batches: list[bytes], mapped: list[bytes], rules: CleanRules = RULES, cuts: Iterable[int] = ()) -> bytes:
    offsets = OffsetMap(24 * 1_000, SEED)
    try:
        if mapped:
            assert not KeyMapper(offsets).map(b"".join(mapped)).is_full
        cleaner = BatchCleaner(offsets, rules)
        edges = sorted({0, *(cut % (len(batches) + 1) for cut in cuts), len(batches)})
        out = b""
        for first, end in pairwise(edges):
            out += b"".join(bytes(piece) for piece in cleaner.clean(bytearray(b"".join(batches[first:end]))))
        out += cleaner.finish()
        stats = cleaner.stats
        assert (stats.read_bytes, stats.written_bytes) == (sum(map(len, batches)), len(out))
        return out
    finally:
        offsets.close()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(BATCH, min_size=1, max_size=8),
    st.integers(0, 8),
    st.lists(st.integers(0, 8), max_size=2),
    st.sampled_from([0, 2**63 - 1]) | st.integers(0, 40),
    st.sets(st.integers(0, 40)),
)
def test_the_kernels_keep_what_the_model_keeps(
    drawn: list[Any], skip: int, cuts: list[int], tombstones_end: int, last_offsets: set[int]
) -> None:
    """Any part of the log may be in the map, in any pieces; any batch may be its producer's last."""
    batches = built(drawn)
    mapped = batches[skip % len(batches) :]
    rules = replace(RULES, tombstones_end=tombstones_end, last_offsets=tuple(sorted(last_offsets)))
    model = Model(newest_of(mapped), rules)
    out = cleaned(batches, mapped, rules, cuts)
    assert shape(out) == model.clean(batches)
    for at, header in walk(out):
        _frame_is_kept(out[at : at + header.size], batches, tombstones_end)
    if out:
        assert read_header(out).base_offset == 7


def _frame_is_kept(batch: bytes, batches: list[bytes], tombstones_end: int) -> None:
    header = read_header(batch)
    if is_filler(batch):
        return
    (before,) = [old for old in batches if read_header(old).base_offset == header.base_offset]
    old = read_header(before)
    if header.record_count == 0:
        base = -1 if old.attributes & HORIZON_BIT else old.base_timestamp
        attributes = old.attributes & ~(CODEC_MASK | HORIZON_BIT)
        bare = old._replace(record_count=0, attributes=attributes, base_timestamp=base)
        assert batch == sealed(bare, b"")
        return
    same = ("last_offset_delta", "producer_id", "producer_epoch", "base_sequence", "codec", "timestamp_type")
    assert [getattr(header, name) for name in same] == [getattr(old, name) for name in same]
    if header.is_control:
        return
    records = list(iter_records(batch))
    if header.timestamp_type is TimestampType.CREATE_TIME and header.record_count < old.record_count:
        assert header.max_timestamp == max(record.timestamp for record in records)
    has_tombstone = any(record.value is None for record in records)
    if old.attributes & HORIZON_BIT or not has_tombstone or header.last_offset >= tombstones_end:
        assert (header.attributes, header.base_timestamp) == (old.attributes, old.base_timestamp)
    else:
        assert header.attributes == old.attributes | HORIZON_BIT and header.base_timestamp == NOW + 500
    if header.record_count == old.record_count and header.attributes == old.attributes:
        assert batch == before


@settings(max_examples=100, deadline=None)
@given(st.lists(BATCH, min_size=1, max_size=8), st.sets(st.integers(0, 40)))
def test_a_second_pass_changes_nothing(drawn: list[Any], last_offsets: set[int]) -> None:
    batches = built(drawn)
    rules = replace(RULES, last_offsets=tuple(sorted(last_offsets)))
    once = cleaned(batches, batches, rules)
    again = [once[at : at + header.size] for at, header in walk(once)]
    assert cleaned(again, again, rules) == once
    # Producers that went on, or are forgotten: their empty batches become part of the holes.
    assert cleaned(again, again) == cleaned(batches, batches)


@settings(max_examples=300, deadline=None)
@given(st.lists(BATCH, min_size=1, max_size=5), st.data())
def test_damage_is_refused_or_harmless(drawn: list[Any], data: st.DataObject) -> None:
    """A flipped bit is refused by its batch's CRC, wherever it is under one."""
    batches = built(drawn)
    log = bytearray(b"".join(batches))
    bit = data.draw(st.integers(0, 8 * len(log) - 1))
    log[bit // 8] ^= 1 << bit % 8
    offsets = OffsetMap(24 * 1_000, SEED)
    try:
        try:
            mapped = KeyMapper(offsets).map(log)
            made = BatchCleaner(offsets, RULES).clean(log)
        except CorruptBatch:
            return
        assert mapped.end_offset > 0 and made is not None
    finally:
        offsets.close()


@pytest.mark.parametrize("size", [0, 1, 7, 60, 61, 68])
def test_cut_bytes_are_refused(size: int) -> None:
    batch = encode_batch([Record(0, 1, b"k", b"v")])
    offsets = OffsetMap(24 * 10, SEED)
    if size:
        with pytest.raises(CorruptBatch):
            KeyMapper(offsets).map(batch[:size])
    offsets.close()


def test_records_that_lie_about_themselves_are_refused() -> None:
    """The CRC is right; the records are not."""
    batch = encode_batch([Record(0, 1, b"key", b"value"), Record(1, 1, b"key", b"value")])
    header, body = read_header(batch), batch[HEADER_SIZE:]
    offsets = OffsetMap(24 * 100, SEED)
    for at in range(len(body)):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            forged = bytearray(body)
            forged[at] = value
            for codec in (Codec.NONE, Codec.LZ4):
                lied = sealed(header._replace(attributes=codec), compress(codec, bytes(forged)))
                for work in (KeyMapper(offsets).map, BatchCleaner(offsets, RULES).clean):
                    try:
                        work(lied)
                    except CorruptBatch:
                        continue
    offsets.close()


def test_a_full_map_takes_batches_whole_or_not_at_all() -> None:
    batches = [
        encode_batch([Record(2 * n, 1, b"a%d" % n, b""), Record(2 * n + 1, 1, b"b%d" % n, b"")]) for n in range(9)
    ]
    offsets = OffsetMap(24 * 11, SEED)
    assert offsets.capacity == 9
    mapped = KeyMapper(offsets).map(b"".join(batches))
    assert (mapped.end_offset, mapped.is_full, offsets.entries) == (8, True, 8)
    assert mapped.taken_bytes == sum(map(len, batches[:4]))
    assert KeyMapper(offsets).map(b"".join(batches[4:])).taken_bytes == 0
    offsets.close()


def test_a_filler_never_spans_leader_epochs_nor_more_offsets_than_a_batch() -> None:
    big = 2**31 - 1
    batches = [filler_batch(0, big, 3), filler_batch(big, big + 5, 3), filler_batch(big + 5, big + 9, 4)]
    assert [row[:3] for row in shape(cleaned(batches, []))] == [(0, big, 3), (big, big + 5, 3), (big + 5, big + 9, 4)]
    small = [filler_batch(0, 4, 3), filler_batch(4, 6, 3)]
    assert cleaned(small, []) == filler_batch(0, 6, 3)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_tombstones_stay_for_ever_with_the_longest_retention(codec: Codec) -> None:
    """Regression: the horizon did not fit, so a topic with delete.retention.ms=9223372036854775807 was not cleaned."""
    now_ms = 1_700_000_000_000
    rules = CleanRules(now_ms=now_ms, delete_retention_ms=2**63 - 1)
    batch = encode_batch([Record(0, now_ms, b"a", None), Record(1, now_ms + 5, b"b", b"v")], codec=codec)
    once = cleaned([batch], [batch], rules)
    assert read_header(once).attributes & HORIZON_BIT
    again = cleaned([once], [once], replace(rules, now_ms=2 * now_ms))
    assert [(r.key, r.value, r.timestamp) for r in iter_records(again)] == [
        (b"a", None, now_ms),
        (b"b", b"v", now_ms + 5),
    ]


def test_tombstones_at_or_above_the_given_offset_are_left_as_they_are() -> None:
    batches = [encode_batch([Record(at, 1, b"%d" % at, None)]) for at in range(4)]
    batches = [with_horizon(batch, NOW - 1) if at % 2 else batch for at, batch in enumerate(batches)]
    out = cleaned(batches, batches, replace(RULES, tombstones_end=2))
    assert out.endswith(batches[2] + batches[3])
    below = out.removesuffix(batches[2] + batches[3])
    assert [is_filler(below[at : at + header.size]) for at, header in walk(below)] == [False, True]
