"""What a connection sends behind a good Produce request: any bytes, cut anywhere, answered as if each frame came alone.

Two brokers (`tests.differential`): one with the short way of Produce gets the stream cut, the other gets frame by frame
and has none. Input: version and acks (one byte each), up to 7 read sizes (int16 each, their count first), the stream.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Coroutine
from typing import Any

from tests.differential import facts
from tests.differential.batches import batch, plain
from tests.differential.brokers import Pair, settled
from tests.differential.history import Site, Topic
from tests.differential.requests import Part, Style, produce
from tests.fuzz.inputs import Cursor, end
from tests.sim.world.clock import EPOCH_MS
from tests.sim.world.loop import SimLoop

MUTANTS = 60
_TOPICS = Topic("plain", 3, {}), Topic("tight", 1, {"max.message.bytes": "300"})
_SITE = Site(_TOPICS, ["auto.create.topics.enable=false"])
_ACKS = (-1, 1)
_GROSS_S = 2.0  # a stream of 1 MiB takes 0.1 s; what is quadratic takes minutes
_LIVES_MAX = 400  # inputs a pair of brokers lives


def _style(version: int, acks: int) -> Style:
    return Style(3 + version % 7, "fuzz", _ACKS[acks % len(_ACKS)], 30_000)


def _good(style: Style, number: int, *targets: tuple[str, int]) -> bytes:
    made = bytes(batch(plain(1 + number % 3, 20, 1, False), EPOCH_MS))
    return produce(style, [Part(*target, made) for target in targets or (("plain", 0),)], number)


def seeds() -> list[bytes]:
    made = []
    for version in (0, 2, 6):
        for acks in range(len(_ACKS)):
            style = _style(version, acks)
            head = bytes((version, acks))
            alike = b"".join(_good(style, number) for number in range(4))
            mixed = b"".join(_good(style, number, ("plain", number % 3), ("tight", 0)) for number in range(3))
            spoiled = bytearray(alike)
            spoiled[-3] ^= 1
            made += [
                head + b"\0" + alike,
                head + b"\x02" + struct.pack(">HH", 3, 100) + mixed + alike,
                head + b"\x01" + struct.pack(">H", 1) + bytes(spoiled),
            ]
    return made


class _House:
    """Both brokers, in virtual time of their own."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        asyncio.set_event_loop(self.loop)
        self.pair = Pair(_SITE)
        self.lives = 0
        self.play(self.pair.start())

    def play(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(coroutine)

    def close(self) -> None:
        self.play(self.pair.close())
        asyncio.set_event_loop(None)
        end(self.loop)

    async def live(self, style: Style, sizes: list[int], stream: bytes) -> None:
        self.lives += 1
        self.pair.begin()
        first = _good(style, 7)
        pieces = _cut(stream, sizes), _frames(stream)
        for way, reads in zip(self.pair.ways, pieces, strict=True):
            wire = way.wire(0)
            wire.give([first])
            began = time.thread_time()
            wire.give(reads)
            held_s = time.thread_time() - began
            assert held_s <= _GROSS_S, f"{len(stream)} bytes held the loop for {held_s:.1f} s"
        await settled()
        await asyncio.sleep(0.05)
        found = facts.differences(*(facts.of_wire(way.wires.get(0)) for way in self.pair.ways))
        found += facts.differences(*map(facts.of_broker, self.pair.ways))
        ends = [[p.log.log_end_offset for p in way.context.registry.partitions.values()] for way in self.pair.ways]
        assert not found and ends[0] == ends[1], (found, ends)


def _cut(stream: bytes, sizes: list[int]) -> list[bytes | memoryview]:
    reads: list[bytes | memoryview] = []
    at = turn = 0
    while at < len(stream):
        reads.append(stream[at : at + sizes[turn % len(sizes)]])
        at += len(reads[-1])
        turn += 1
    return reads


def _frames(stream: bytes) -> list[bytes | memoryview]:
    reads: list[bytes | memoryview] = []
    at = 0
    while len(stream) - at >= 4:
        (size,) = struct.unpack_from(">i", stream, at)
        if size <= 0 or len(stream) - at - 4 < size:
            break
        reads.append(stream[at : at + 4 + size])
        at += 4 + size
    return [*reads, stream[at:]] if at < len(stream) else reads


_houses: list[_House] = []


def run(data: bytes) -> None:
    if _houses and _houses[0].lives >= _LIVES_MAX:
        close()
    if not _houses:
        _houses.append(_House())
    cursor = Cursor(data)
    style = _style(cursor.number(), cursor.number())
    sizes = [max(1, cursor.number(2)) for _ in range(cursor.number() & 7)] or [1 << 20]
    house = _houses[0]
    asyncio.set_event_loop(house.loop)
    try:
        house.play(house.live(style, sizes, cursor.rest()))
    except BaseException:
        _houses.clear()  # its brokers are no pair any more
        raise


def close() -> None:
    """End the brokers; the next input gets others."""
    while _houses:
        _houses.pop().close()
