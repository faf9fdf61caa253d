"""What cold reads keep at hand: bounds, pins, who goes first, and where answers may be cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstore.segments.chunk_cache import MemoryFile
from logformat.errors import Corrupt
from logformat.record_batch import read_header
from seams.files.disk import FileRange
from tests.support.tier.cold_objects import batches, segment_object
from tiering.reading.batch_slices import BatchBorder, OpenSegment, TooLarge, cut
from tiering.reading.chunk_table import CHUNKS_MAX, PINNED_TIMES, HeldChunks, OpenSegments, Places

SEGMENT = 1
PIN_S = 30.0
UNREAD_MAX = 1000


def chunk(length: int = 10) -> FileRange:
    return FileRange(OnDisk(), 0, length)  # type: ignore[arg-type]


class OnDisk:
    """A file nobody reads in these tests."""


def ids(held: HeldChunks) -> set[int]:
    return {number for number in range(1000) if (SEGMENT, number) in held}


def test_the_least_recently_read_goes_first_and_does_not_count_as_unread_any_more() -> None:
    """Within the bound; what was read or given up makes room for loading ahead again."""
    held = HeldChunks(30, UNREAD_MAX, PIN_S)
    for number in range(3):
        held.add((SEGMENT, number), chunk(), 0.0, pinned=False)
    assert held.room_ahead(0.0) == UNREAD_MAX - 30
    held.read((SEGMENT, 0))
    assert held.room_ahead(0.0) == UNREAD_MAX - 20
    held.add((SEGMENT, 3), chunk(), 0.0, pinned=True)
    assert ids(held) == {0, 2, 3} and held.nbytes == 30
    assert held.room_ahead(0.0) == UNREAD_MAX - 10, "chunk 1 was given up unread; somebody waits for chunk 3"


def test_what_a_reader_went_past_goes_before_what_waits_for_one() -> None:
    """A used-up chunk is the first to go, whatever its age."""
    held = HeldChunks(30, UNREAD_MAX, PIN_S)
    for number in range(3):
        held.add((SEGMENT, number), chunk(), 0.0, pinned=False)
    held.used_up((SEGMENT, 2))
    held.add((SEGMENT, 3), chunk(), 0.0, pinned=False)
    assert ids(held) == {0, 1, 3}


def test_a_pin_lasts_until_the_read_or_its_time() -> None:
    """Pinned chunks stay beyond the bound, so that a batch of several can be gathered; then they go like others."""
    held = HeldChunks(20, UNREAD_MAX, PIN_S)
    for number in range(5):
        held.add((SEGMENT, number), chunk(), 0.0, pinned=True)
    assert ids(held) == {0, 1, 2, 3, 4}
    held.read((SEGMENT, 4))
    held.add((SEGMENT, 5), chunk(), 1.0, pinned=True)
    assert ids(held) == {0, 1, 2, 3, 5}
    held.add((SEGMENT, 6), chunk(), PIN_S + 0.5, pinned=False)
    assert len(held) <= 2 and 5 in ids(held)


def test_pins_are_bounded_too() -> None:
    """Readers that ask all over the place and never come back cannot keep more than a fixed amount."""
    held = HeldChunks(20, UNREAD_MAX, PIN_S)
    for number in range(100):
        held.add((SEGMENT, number), chunk(), 0.0, pinned=True)
    assert held.nbytes <= PINNED_TIMES * 20 and 99 in ids(held)
    many = HeldChunks(1 << 40, UNREAD_MAX, PIN_S)
    for number in range(CHUNKS_MAX + 50):
        many.add((SEGMENT, number), chunk(), 0.0, pinned=True)
    assert len(many) == CHUNKS_MAX, "each may keep a descriptor"


def test_a_chunk_in_our_own_memory_weighs_more() -> None:
    """A full cache disk must not turn the page cache's budget into the process's size."""
    held = HeldChunks(100, UNREAD_MAX, PIN_S)
    for number in range(10):
        held.add((SEGMENT, number), FileRange(MemoryFile(bytes(10), "x"), 0, 10), 0.0, pinned=False)
    assert len(held) == 1


@given(st.lists(st.tuples(st.sampled_from("aprud"), st.integers(0, 9)), max_size=60))
def test_whatever_happens_the_sums_are_right(steps: list[tuple[str, int]]) -> None:
    """Bytes held are those of the chunks held, and never beyond the bound for pinned ones."""
    held = HeldChunks(35, UNREAD_MAX, PIN_S)
    now = 0.0
    for step, number in steps:
        chunk_id = (SEGMENT, number)
        now += 3
        match step:
            case "a":
                held.add(chunk_id, chunk(), now, pinned=number % 2 == 0)
            case "p":
                held.pin(chunk_id, now)
            case "r":
                held.read(chunk_id)
            case "u":
                held.used_up(chunk_id)
            case _:
                held.drop(chunk_id)
        assert held.nbytes == 10 * len(held) <= PINNED_TIMES * 35


def opened(base: int = 0, sizes: tuple[int, ...] = (5,) * 20, n: int = 1) -> tuple[OpenSegment, bytes]:
    made = segment_object(base, sizes, n=n)
    return OpenSegment(made.key, made.entry, made.footer), made.log


def test_open_segments_are_bounded_by_their_footers_bytes() -> None:
    """The oldest goes, and with it the place where it began."""
    first, _ = opened()
    segments = OpenSegments(bytes_max=2 * first.footer.nbytes)
    all_of_them = [opened(base=100 * n, n=n + 1)[0] for n in range(5)]
    for segment in all_of_them:
        segments.add(segment)
    assert len(segments) <= 2
    topic = first.key.topic_id.int
    assert segments.beginning_at((topic, 0, 400)) is all_of_them[-1]
    assert segments.beginning_at((topic, 0, 0)) is None


def test_places_are_bounded() -> None:
    """Least recently used first out."""
    places = Places(places_max=3)
    for offset in range(5):
        places.add((SEGMENT, 0, offset), SEGMENT, offset)
    assert places.get((SEGMENT, 0, 0)) is None and places.get((SEGMENT, 0, 4)) == (SEGMENT, 4)


@given(st.data())
def test_a_cut_is_the_end_of_a_batch_at_or_below_the_limit(data: st.DataObject) -> None:
    """From any batch's begin and to any limit: a batch's end and the offset behind it, or why there is none."""
    sizes = tuple(data.draw(st.lists(st.sampled_from([1, 3, 60]), min_size=1, max_size=30)))
    segment, log = opened(sizes=sizes)
    starts: list[tuple[int, int, int]] = []  # position, size, offset behind
    at = 0
    while at < len(log):
        header = read_header(log, at)
        starts.append((at, header.size, header.next_offset))
        at += header.size
    start, size, next_offset = data.draw(st.sampled_from(starts))
    limit = data.draw(st.integers(start, len(log) + 50))
    found = cut(segment, start, limit, lambda position, length: _within(log, position, length, limit))
    ends = {position + length: behind for position, length, behind in starts}
    match found:
        case BatchBorder(position, offset):
            assert start < position <= limit and ends[position] == offset
        case TooLarge(end, behind):
            assert end == start + size > limit and behind == next_offset
        case None:
            assert limit - start < 27


def _within(log: bytes, position: int, length: int, limit: int) -> bytes:
    assert position + length <= limit, "bytes that are not at hand were read"
    return log[position : position + length]


def test_where_no_batch_begins_nothing_is_cut() -> None:
    """Damage that a chunk's CRC cannot see (an index that points elsewhere) is refused, not sent."""
    segment, log = opened()
    with pytest.raises(Corrupt):
        cut(segment, 3, 200, lambda position, length: log[position : position + length])
    foreign = b"".join(batches(5000, (5,) * 20))
    with pytest.raises(Corrupt):
        cut(segment, 0, 2000, lambda position, length: foreign[position : position + length])
