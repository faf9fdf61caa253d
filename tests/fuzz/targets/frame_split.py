"""A stream of length-prefixed frames, delivered in any pieces: the frames are those that a plain reading gives.

Input: up to 7 read sizes (int16 each, their count first), then the stream.
"""

from __future__ import annotations

import struct

from broker.net.buffers import BufferPool, FrameBudget
from broker.net.frames import FrameLengthRefused, FrameReader
from tests.fuzz.inputs import Cursor

FRAME_MAX = 1 << 20
_POOL = BufferPool(idle_bytes_max=4 << 20)


def seeds() -> list[bytes]:
    body = bytes(range(1, 251)) * 12

    def stream(*sizes: int) -> bytes:
        return b"".join(struct.pack(">i", size) + body[: max(0, min(size, 3000))] for size in sizes)

    return [
        b"\0" + stream(1, 5, 70),
        b"\x02" + struct.pack(">HH", 1, 3) + stream(9, 300, 2),
        b"\x01" + struct.pack(">H", 4) + stream(10, -1),
        b"\x01" + struct.pack(">H", 6) + stream(0x7FFFFFFF),
        b"\x03" + struct.pack(">HHH", 2000, 1, 900) + stream(3000, 1, 2999, 0),
        b"\0" + struct.pack(">i", FRAME_MAX) + body[:400],
    ]


def run(data: bytes) -> None:
    cursor = Cursor(data)
    sizes = [max(1, cursor.number(2)) for _ in range(cursor.number() & 7)] or [1 << 20]
    stream = cursor.rest()
    budget = FrameBudget(8 * FRAME_MAX, FRAME_MAX)
    reader = FrameReader(_POOL, budget, FRAME_MAX)
    got, refused = _delivered(reader, stream, sizes)
    expected, expected_refused = _plainly(stream)
    assert got == expected, (got, expected)
    assert refused == expected_refused, (refused, expected_refused)
    # What is held follows what arrived: twice that, and never what a length claims.
    assert reader.charged <= 2 * max(len(stream), 256 << 10), (reader.charged, len(stream))
    reader.close()
    assert budget.used == 0, budget.used


def _delivered(reader: FrameReader, stream: bytes, sizes: list[int]) -> tuple[list[bytes], bool]:
    frames: list[bytes] = []
    turn = at = 0
    while at < len(stream):
        buffer = reader.buffer()
        assert len(buffer), "the reader asks for a read of nothing"
        count = min(len(buffer), len(stream) - at, sizes[turn % len(sizes)])
        turn += 1
        buffer[:count] = stream[at : at + count]
        unwritten = buffer[count : count + 8]
        unwritten[:] = b"\xee" * len(unwritten)  # what was there before is nobody's frame
        at += count
        reader.received(count)
        try:
            while (frame := reader.next()) is not None:
                frames.append(bytes(frame))
        except FrameLengthRefused:
            return frames, True
        assert reader.compact()
    return frames, False


def _plainly(stream: bytes) -> tuple[list[bytes], bool]:
    frames: list[bytes] = []
    at = 0
    while len(stream) - at >= 4:
        (size,) = struct.unpack_from(">i", stream, at)
        if not 0 < size <= FRAME_MAX:
            return frames, True
        if len(stream) - at - 4 < size:
            break
        frames.append(stream[at + 4 : at + 4 + size])
        at += 4 + size
    return frames, False
