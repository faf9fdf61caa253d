"""Reading ahead as a policy: who is sequential, how far, and never more than its share."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tiering.reading.chunk_table import Unread
from tiering.reading.prefetch import LOADING_MAX, ChunkState, Streams, to_load

TOPIC = UUID(int=1)
SEGMENT = UUID(int=2)


def test_a_window_opens_as_a_reader_goes_on() -> None:
    """0 for a stranger, 1 after the first answer, doubling to the maximum."""
    streams = Streams(window_max=8)
    seen = []
    for offset in range(0, 600, 100):
        seen.append(streams.window((TOPIC, 0, offset)))
        streams.served((TOPIC, 0, offset), (TOPIC, 0, offset + 100))
    assert seen == [0, 1, 2, 4, 8, 8]


def test_a_reader_that_jumps_is_a_stranger_again() -> None:
    """Random access causes no reading ahead, and neither does another partition's progress."""
    streams = Streams(window_max=8)
    streams.served((TOPIC, 0, 0), (TOPIC, 0, 100))
    streams.served((TOPIC, 0, 100), (TOPIC, 0, 200))
    assert streams.window((TOPIC, 0, 5000)) == 0
    assert streams.window((TOPIC, 1, 200)) == 0
    assert streams.window((TOPIC, 0, 200)) == 2


def test_two_readers_at_one_place_both_count() -> None:
    """The second one, a little later, finds the window the first one left."""
    streams = Streams(window_max=8)
    for _reader in range(2):
        streams.served((TOPIC, 0, 0), (TOPIC, 0, 100))
        streams.served((TOPIC, 0, 100), (TOPIC, 0, 200))
        assert streams.window((TOPIC, 0, 200)) == 2


def test_readers_remembered_are_bounded() -> None:
    """A client that fetches all over the place costs a fixed amount of memory."""
    streams = Streams(window_max=8, streams_max=10)
    for offset in range(1000):
        streams.served((TOPIC, 0, offset * 7), (TOPIC, 0, offset * 7 + 3))
    assert len(streams) == 10


def test_no_window_means_no_memory() -> None:
    """Reading ahead can be switched off."""
    streams = Streams(window_max=0)
    streams.served((TOPIC, 0, 0), (TOPIC, 0, 100))
    assert len(streams) == 0 and streams.window((TOPIC, 0, 100)) == 0


def test_what_nobody_came_for_stops_to_count_after_a_while() -> None:
    """A reader that went away does not hold the share for ever."""
    unread = Unread(bytes_max=100, keep_s=30)
    unread.add((SEGMENT, 0), 80, now_s=0.0)
    assert unread.room(10.0) == 20
    assert unread.room(30.0) == 100
    unread.add((SEGMENT, 1), 80, now_s=40.0)
    unread.read((SEGMENT, 1))
    unread.read((SEGMENT, 1))
    assert unread.room(40.0) == 100 and unread.nbytes == 0


STATES = st.lists(st.tuples(st.sampled_from(ChunkState), st.integers(1, 10)), max_size=20)


@given(STATES, st.integers(0, 60), st.integers(0, 12))
def test_what_is_begun_stays_within_every_bound(states: list[tuple[ChunkState, int]], room: int, places: int) -> None:
    """Only absent chunks, in order, none left out before a later one, within bytes, places and the reader's four."""
    begun = list(to_load(states, room_bytes=room, places=places))
    assert all(states[index][0] is ChunkState.ABSENT for index in begun)
    assert begun == sorted(set(begun)) and len(begun) <= places
    assert sum(states[index][1] for index in begun) <= room
    if begun:
        before = states[: begun[-1]]
        assert [i for i, (state, _) in enumerate(before) if state is ChunkState.ABSENT] == begun[:-1]
        loading = sum(state is ChunkState.LOADING for state, _ in before)
        assert loading + len(begun) <= LOADING_MAX
        assert all(state is not ChunkState.FAILED for state, _ in before), "its reader hears of a failure first"


def test_a_pipe_is_kept_full() -> None:
    """With one chunk at hand and nothing under way, as many loads begin as a reader may have."""
    states = [(ChunkState.HELD, 4)] + [(ChunkState.ABSENT, 4)] * 8
    assert to_load(states, room_bytes=100, places=9) == list(range(1, 1 + LOADING_MAX))
