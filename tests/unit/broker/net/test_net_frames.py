"""The frame reader: any cut of a stream gives the same frames, and memory follows what arrived, not what is claimed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.net.buffers import ALLOWANCE, SHARED_SIZE, BufferPool, FrameBudget
from broker.net.frames import FrameLengthRefused, FrameReader
from tests.support.net.scripted_net import frame

MIB = 1 << 20
FRAME_MAX = 8 * MIB


def reader_of(pool: BufferPool | None = None, budget: FrameBudget | None = None) -> FrameReader:
    return FrameReader(pool or BufferPool(), budget or FrameBudget(64 * MIB, FRAME_MAX), FRAME_MAX)


def read(reader: FrameReader, data: bytes, read_max: int = 1 << 30) -> list[bytes]:
    """Deliver `data` in reads of at most `read_max`; the frames that came out."""
    frames = []
    while data:
        buffer = reader.buffer()
        count = min(len(buffer), len(data), read_max)
        buffer[:count] = data[:count]
        data = data[count:]
        reader.received(count)
        while (found := reader.next()) is not None:
            frames.append(bytes(found))
        assert reader.compact()
    return frames


def body(seed: int, size: int) -> bytes:
    return (struct.pack(">q", seed) * (size // 8 + 1))[:size]


SIZES = st.one_of(
    st.integers(1, 300),
    st.sampled_from(
        [ALLOWANCE - 5, ALLOWANCE - 4, ALLOWANCE, ALLOWANCE + 1, SHARED_SIZE - 4, SHARED_SIZE, SHARED_SIZE + 1]
    ),
    st.integers(1, 3 * SHARED_SIZE),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=8), st.lists(st.integers(1, 700_000), min_size=1, max_size=12))
def test_any_cut_of_a_stream_gives_the_same_frames(sizes: list[int], cuts: list[int]) -> None:
    """Whatever sizes the reads have, the frames are those that were sent, and nothing is held or charged afterwards."""
    budget = FrameBudget(64 * MIB, FRAME_MAX)
    reader = reader_of(budget=budget)
    sent = [body(number, size) for number, size in enumerate(sizes)]
    stream = b"".join(map(frame, sent))
    count_min = len(stream) // 200  # a megabyte byte by byte proves nothing more
    got: list[bytes] = []
    position = turn = 0
    while position < len(stream):
        count = max(cuts[turn % len(cuts)], count_min)
        got += read(reader, stream[position : position + count])
        position += count
        turn += 1
    assert got == sent
    assert (reader.left, reader.charged, budget.used) == (0, 0, 0)


def test_byte_by_byte() -> None:
    """The worst cut of all."""
    sent = [b"a", b"bc" * 40, b"d"]
    assert read(reader_of(), b"".join(map(frame, sent)), read_max=1) == sent


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=30), st.integers(0, 3), st.randoms(use_true_random=False))
def test_frames_left_behind_come_out_later(sizes: list[int], taken_at_once: int, random: object) -> None:
    """A connection that is stopped between frames goes on with the next one, whatever was read already."""
    reader = reader_of()
    sent = [body(number, size) for number, size in enumerate(sizes)]
    stream = b"".join(map(frame, sent))
    got: list[bytes] = []

    def take_some() -> bool:
        for _ in range(taken_at_once):
            if (found := reader.next()) is None:
                return False
            got.append(bytes(found))
        return True

    while stream:
        buffer = reader.buffer()
        count = min(len(buffer), len(stream))
        buffer[:count] = stream[:count]
        stream = stream[count:]
        reader.received(count)
        while take_some():
            reader.pause()
            if not taken_at_once:
                taken_at_once = 1
        assert reader.compact()
    assert got == sent
    assert reader.charged == 0


@pytest.mark.parametrize("length", [0, -1, -(1 << 31), FRAME_MAX + 1, 0x7FFFFFFF])
def test_hostile_lengths_are_refused_before_anything_is_allocated(length: int) -> None:
    """Negative, zero, above the maximum: refused at the prefix."""
    budget = FrameBudget(64 * MIB, FRAME_MAX)
    pool = BufferPool()
    with pytest.raises(FrameLengthRefused):
        read(reader_of(pool, budget), struct.pack(">i", length) + b"x" * 20)
    assert (pool.idle_bytes, budget.used) == (0, 0)


def test_the_largest_frame_is_accepted() -> None:
    """The bound is inclusive, as Kafka's."""
    assert read(reader_of(), frame(bytes(FRAME_MAX))) == [bytes(FRAME_MAX)]


@pytest.mark.parametrize("arrived", [4, 5, 1000, ALLOWANCE - 1, ALLOWANCE, 100_000, SHARED_SIZE, MIB, 3 * MIB])
def test_memory_follows_what_arrived_not_what_is_claimed(arrived: int) -> None:
    """A claim of 8 MiB holds at most about twice what came, and nothing below the allowance."""
    budget = FrameBudget(64 * MIB, FRAME_MAX)
    reader = reader_of(budget=budget)
    read(reader, frame(bytes(FRAME_MAX))[:arrived])
    assert budget.used == reader.charged
    if arrived < ALLOWANCE:
        assert reader.charged == 0
    else:
        assert arrived <= reader.charged <= 2.5 * max(arrived, SHARED_SIZE)


def test_a_peer_that_delivered_a_large_frame_gets_room_for_the_next_at_once() -> None:
    """Its frames are then received where they stay, with room to read ahead; it is gone when nothing came."""
    budget = FrameBudget(64 * MIB, FRAME_MAX)
    reader = reader_of(budget=budget)
    read(reader, frame(bytes(MIB)))
    assert budget.used == 0
    assert len(reader.buffer()) == 2 * MIB + 4
    read(reader, frame(b"small"))
    assert (reader.charged, budget.used) == (0, 0)


def test_a_window_for_a_large_frame_is_given_up_when_little_comes() -> None:
    """Delivering one large frame does not entitle to hold such a window open with a few bytes."""
    reader = reader_of()
    read(reader, frame(bytes(MIB)))
    read(reader, frame(bytes(MIB))[:50])
    assert reader.charged == 0


@pytest.mark.parametrize("size", [80_000, 131_072, 200_000, 2 * MIB])
def test_several_expected_large_frames_come_in_one_read(size: int) -> None:
    """There is room for eight, or for a MiB more than one; what is incomplete afterwards holds no such window."""
    budget = FrameBudget(64 * MIB, FRAME_MAX)
    reader = reader_of(budget=budget)
    for _ in range(3):
        assert read(reader, frame(bytes(size))) == [bytes(size)]
        assert budget.used == 0
        window = len(reader.buffer())
        assert window == size + 4 + min(7 * (size + 4), MIB)
        reader.compact()
    sent = frame(bytes(size)) * (window // (size + 4))
    assert read(reader, sent) == [bytes(size)] * (window // (size + 4))
    for left in (ALLOWANCE + 1, size // 2):
        reader.buffer()[:left] = frame(bytes(size))[:left]
        reader.received(left)
        assert reader.next() is None and reader.compact()
        assert left <= budget.used <= 2.5 * (size + 4)
        assert read(reader, frame(bytes(size))[left:]) == [bytes(size)]


def test_small_frames_after_large_ones_stop_asking_for_large_windows() -> None:
    """The memory of large frames fades."""
    reader = reader_of()
    read(reader, frame(bytes(4 * MIB)))
    for _ in range(8):
        read(reader, frame(b"small"))
    assert len(reader.buffer()) == SHARED_SIZE


def test_small_frames_left_behind_are_one_copy_that_outlives_the_next_read() -> None:
    """`stable` frames may be kept by a request that blocks, while other connections read into the shared buffer."""
    pool = BufferPool()
    reader = reader_of(pool)
    data = frame(b"first") + frame(b"second")
    reader.buffer()[: len(data)] = data
    reader.received(len(data))
    first = reader.next()
    assert first is not None and bytes(first) == b"first" and not reader.stable
    reader.pause()
    pool.shared[:100] = b"#" * 100
    following = reader.next()
    assert following is not None and bytes(following) == b"second" and reader.stable
    reader.compact()
    pool.shared[:100] = b"?" * 100
    assert bytes(following) == b"second"


def test_a_held_frame_keeps_its_buffer_from_the_others() -> None:
    """`hold` takes the shared buffer out of circulation, charged, until the rest of it was used."""
    pool, budget = BufferPool(), FrameBudget(64 * MIB, FRAME_MAX)
    reader, other = reader_of(pool, budget), reader_of(pool, budget)
    data = frame(b"a" * 20_000) + frame(b"b" * 20_000)
    reader.buffer()[: len(data)] = data
    reader.received(len(data))
    held = reader.next()
    assert held is not None and not reader.stable
    reader.hold()
    reader.pause()
    assert budget.used == SHARED_SIZE
    assert read(other, frame(b"#" * 100_000)) == [b"#" * 100_000]
    assert bytes(held) == b"a" * 20_000
    reader.release()
    following = reader.next()
    assert following is not None and bytes(following) == b"b" * 20_000
    assert reader.compact()
    assert (budget.used, pool.idle_bytes) == (0, SHARED_SIZE)


def test_a_lost_connection_leaves_held_memory_to_its_holder() -> None:
    """The buffer of a frame that is still in use is not given to anybody else, and stays charged."""
    pool, budget = BufferPool(), FrameBudget(64 * MIB, FRAME_MAX)
    reader = reader_of(pool, budget)
    data = frame(b"a" * 20_000)
    reader.buffer()[: len(data)] = data
    reader.received(len(data))
    reader.next()
    reader.hold()
    reader.close()
    assert (budget.used, pool.idle_bytes) == (SHARED_SIZE, 0)
    reader.release()
    reader.close()
    assert (budget.used, pool.idle_bytes) == (0, SHARED_SIZE)


def test_without_budget_the_rest_waits() -> None:
    """What arrived is kept, growth is refused until there is room, and reads of others shrink to the allowance."""
    pool, budget = BufferPool(), FrameBudget(8 * MIB, 4 * MIB)
    somebody = object()
    assert budget.take(somebody, 5 * MIB)  # owns the reserve
    reader = reader_of(pool, budget)
    data = frame(bytes(MIB))
    buffer = reader.buffer()
    assert len(buffer) == ALLOWANCE
    buffer[:] = data[:ALLOWANCE]
    reader.received(ALLOWANCE)
    assert reader.next() is None
    assert not reader.compact()
    assert reader.left == ALLOWANCE
    budget.give(somebody, 5 * MIB, 0)
    assert reader.compact()
    assert read(reader, data[ALLOWANCE:]) == [bytes(MIB)]
    assert budget.used == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=6), st.data())
def test_what_is_taken_from_the_window_is_what_next_would_have_given(sizes: list[int], data: st.DataObject) -> None:
    """Any number of the whole frames in the window may be taken, none included; the rest come as if nobody had looked,
    and the next large ones find their room."""
    sent = [body(number, size) for number, size in enumerate(sizes)]
    reader, alike = reader_of(), reader_of()
    stream = b"".join(map(frame, sent))
    got: list[bytes] = []
    while stream:
        buffer = reader.buffer()
        count = min(len(buffer), len(stream))
        alike.buffer()[:count] = buffer[:count] = stream[:count]
        stream = stream[count:]
        reader.received(count)
        alike.received(count)
        while True:
            for _ in range(data.draw(st.integers(0, 3))):
                stop = reader.pos + 4
                if stop <= reader.end:
                    stop += int.from_bytes(reader.view[reader.pos : stop], "big")
                if stop > reader.end:
                    break
                got.append(bytes(reader.view[reader.pos + 4 : stop]))
                reader.advance_to(stop)
            if (found := reader.next()) is None:
                break
            got.append(bytes(found))
        while alike.next() is not None:
            pass
        assert reader.compact() and alike.compact()
        assert (reader.left, reader.charged, len(reader.buffer())) == (alike.left, alike.charged, len(alike.buffer()))
    assert got == sent
