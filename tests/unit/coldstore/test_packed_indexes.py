"""Packed indexes: what was packed comes back, lies are refused, and readers that know only thin ones lose nothing."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstore.segments.packed_indexes import (
    PACKED_ENTRIES_MIN,
    THIN_BYTES,
    is_worth_packing,
    pack,
    thinned,
    unpack,
)
from coldstore.segments.segment_object import SegmentFooter, tail_bytes
from coldstore.segments.segment_scanner import INDEX_INTERVAL_BYTES, interval_of
from coldstore.segments.segment_sections import SECTION_HEADER_SIZE, Section, read_sections, read_trailer
from logformat.errors import Corrupt
from logformat.indexes.offset_index import OffsetIndex
from logformat.indexes.time_index import TimeIndex
from tests.support.tier.cold_objects import segment_object
from tests.support.tier.packed_footers import packing

LOG_BYTES = 128 << 20
rising = st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=60).map(sorted)


def offset_index(offsets: list[int], positions: list[int], base: int = 1000) -> OffsetIndex:
    return OffsetIndex.from_columns(base, array("i", offsets), array("i", positions))


def time_index(timestamps: list[int], offsets: list[int], base: int = 1000) -> TimeIndex:
    return TimeIndex.from_columns(base, array("q", timestamps), array("i", offsets))


def indexes_of(log_bytes: int, interval: int, seed: int = 1) -> tuple[OffsetIndex, TimeIndex]:
    """As a log of irregular batches of 2 to 16 KB gives them, seconds apart and out of order by up to one."""
    rng = random.Random(seed)
    offsets, times = OffsetIndex(0), TimeIndex(0)
    position = offset = since = 0
    clock, newest, newest_offset = 1_700_000_000_000, -1, 0
    while position < log_bytes:
        count = rng.randint(17, 141)
        size, clock = 61 + 116 * count, clock + rng.randint(100, 2000)
        last, time = offset + count - 1, clock + rng.randint(-500, 500)
        if time > newest:
            newest, newest_offset = time, last
        if since > interval:
            offsets.append(last, position)
            times.maybe_append(newest, newest_offset)
            since = 0
        since, position, offset = since + size, position + size, offset + count
    times.maybe_append(newest, newest_offset)
    return offsets, times


def same(one: tuple[OffsetIndex, TimeIndex], other: tuple[OffsetIndex, TimeIndex]) -> bool:
    return [index.to_bytes() for index in one] == [index.to_bytes() for index in other]


@given(
    offsets=rising,
    positions=rising,
    times=st.lists(st.integers(0, 2**63 - 1), unique=True, max_size=60).map(sorted),
    time_offsets=st.lists(st.integers(0, 2**31 - 1), max_size=60).map(sorted),
)
def test_what_was_packed_comes_back(
    offsets: list[int], positions: list[int], times: list[int], time_offsets: list[int]
) -> None:
    """Any columns an index may have, to the ends of their ranges."""
    entries = min(len(offsets), len(positions))
    count = min(len(times), len(time_offsets), entries + 1)
    packed = offset_index(offsets[:entries], positions[:entries]), time_index(times[:count], time_offsets[:count])
    assert same(unpack(pack(*packed), 1000, LOG_BYTES), packed)


def test_an_entry_takes_a_third_of_its_bytes() -> None:
    """Irregular batches: a footer of 128 MiB fits the tail that is asked for where only the object's size is known."""
    packed = indexes_of(LOG_BYTES, INDEX_INTERVAL_BYTES)
    payload = pack(*packed)
    assert same(unpack(payload, 0, LOG_BYTES), packed)
    plain = sum(len(index.to_bytes()) for index in packed)
    thin = sum(len(index.to_bytes()) for index in thinned(*packed))
    assert len(payload) < plain / 3 and thin < 3000
    assert len(payload) + thin + 4000 < tail_bytes(LOG_BYTES)


def test_indexes_of_large_objects_do_not_grow_with_them() -> None:
    """Parsing is a matter of the broker's loop: 3 ms for 8 192 entries, and no more than four times that."""
    assert interval_of(1) == interval_of(LOG_BYTES) == INDEX_INTERVAL_BYTES
    assert (2**31 - 1) // interval_of(2**31 - 1) <= 4 * (LOG_BYTES // INDEX_INTERVAL_BYTES)


def test_thin_indexes_are_those_of_a_sparser_scan() -> None:
    """Entries of the full ones, a MiB or more apart; at each the greatest timestamp so far is the full ones'."""
    offsets, times = indexes_of(8 << 20, 16 << 10)
    thin_offsets, thin_times = thinned(offsets, times)
    kept = list(thin_offsets.entries())
    assert set(kept) < set(offsets.entries()) and 5 <= len(kept) <= 8
    assert all(after.position - one.position >= THIN_BYTES for one, after in pairwise(kept))
    assert set(thin_times.entries()) < set(times.entries()) and thin_times.last == times.last
    for entry in kept:
        so_far = [time for time in times.entries() if time.offset <= entry.offset]
        assert [time for time in thin_times.entries() if time.offset <= entry.offset][-1] == so_far[-1]


def test_short_indexes_stay_as_they_are() -> None:
    """A footer with few entries is what it was, byte for byte; one with many has all sections of version 1 too."""
    many = offset_index([*range(PACKED_ENTRIES_MIN)], [*range(PACKED_ENTRIES_MIN)])
    few = offset_index([*range(PACKED_ENTRIES_MIN - 1)], [*range(PACKED_ENTRIES_MIN - 1)])
    assert is_worth_packing(many, LOG_BYTES) and not is_worth_packing(few, LOG_BYTES)
    assert not is_worth_packing(many, 4096)  # a scan with an interval of a few bytes: more than a reader would believe
    with packing():
        packed = segment_object(0, [5] * 200, interval=100)
    plain = segment_object(0, [5] * 200, interval=100)
    assert Section.PACKED_INDEXES not in sections_known_to_all(plain.data, plain.footer)
    assert packed.footer.offset_index.to_bytes() == plain.footer.offset_index.to_bytes()
    assert packed.footer.time_index.to_bytes() == plain.footer.time_index.to_bytes()
    assert packed.entry.object_bytes < plain.entry.object_bytes


def sections_known_to_all(data: bytes, footer: SegmentFooter) -> dict[int, bytes]:
    trailer = read_trailer(data, len(data))
    known = [kind for kind in Section if kind is not Section.PACKED_INDEXES]
    found = read_sections(trailer, data[footer.log_bytes : -40], known)
    return {kind: bytes(payload) for kind, payload in found.items()}


def test_a_reader_of_the_seven_sections_finds_a_whole_footer() -> None:
    """The eighth is optional: programs from before it pass over it and find thin indexes of the same log."""
    with packing():
        made = segment_object(0, [5] * 200, interval=100)
    found = sections_known_to_all(made.data, made.footer)
    assert sorted(found) == [1, 2, 3, 4, 5, 6, 7]
    offsets, times = OffsetIndex(0, found[1]), TimeIndex(0, found[2])
    assert 1 < len(offsets) < len(made.footer.offset_index)
    assert set(offsets.entries()) < set(made.footer.offset_index.entries())
    assert times.last == made.footer.time_index.last


def lies() -> dict[str, bytes]:
    good = pack(*indexes_of(4 << 20, 16 << 10))
    entries, times = struct.unpack_from(">II", good)
    planes = zlib.decompress(good[8:])
    overflow = b"".join([b"\xff\x80", bytes(6), bytes(8)])  # two offsets whose sum is beyond int32
    return {
        "cut": good[:-5],
        "no counts": good[:7],
        "more behind": good + b"x",
        "one entry more": struct.pack(">II", entries + 1, times) + good[8:],
        "one entry less": struct.pack(">II", entries - 1, times) + good[8:],
        "more than the log holds": struct.pack(">II", 2**32 - 1, times) + good[8:],
        "more times than entries": struct.pack(">II", entries, entries + 2) + good[8:],
        "no zlib": good[:8] + b"\0" + good[9:],
        "beyond int32": struct.pack(">II", 2, 0) + zlib.compress(overflow),
        "entries that fall": struct.pack(">II", entries, times) + zlib.compress(bytes(len(planes))),
        "a bomb": struct.pack(">II", entries, times) + zlib.compress(bytes(16 << 20), 9),
    }


LIES = lies()


@pytest.mark.parametrize("lie", LIES)
def test_a_payload_that_lies_is_refused_in_little_memory(lie: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            unpack(LIES[lie], 0, 4 << 20)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_flipped_bit_in_the_packed_section_is_noticed() -> None:
    with packing():
        made = segment_object(0, [5] * 60, interval=100)
    tail = bytearray(made.data[len(made.log) :])
    for at in range(len(tail) - 40 - 200 - SECTION_HEADER_SIZE, len(tail)):
        tail[at] ^= 1 << at % 8
        with pytest.raises(Corrupt):
            SegmentFooter.parse(bytes(tail), len(made.data))
        tail[at] ^= 1 << at % 8
