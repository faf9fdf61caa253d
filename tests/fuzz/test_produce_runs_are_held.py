"""Produce that comes together stays in proportion: 50 ms of the loop a read and 64 MiB for 1 MiB of requests.

Held to are calls in one step of the loop, each of which costs 0.1 µs at least, and the peak of memory, both the same on
every machine; and a time that only a scan for every row would take.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable

import pytest

from broker.net.dispatch import Peer
from broker.wire.codec import encode_request
from broker.wire.framing import request_frame
from broker.wire.messages import ProduceRequest, ProduceRequestPartition, ProduceRequestTopic
from tests.differential.batches import batch, plain
from tests.differential.brokers import Wires
from tests.differential.requests import Part, Style, produce
from tests.sim.world.clock import EPOCH_MS
from tests.support.brokers.broker_kit import Life, Place
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.wire.proportion import BYTES_MAX, CALLS_MAX, HOLD_S_MAX, Cost, _metered

MIB = 1 << 20
SMALL = bytes(batch(plain(1, 0, 0, False), EPOCH_MS))


def style(client: str = "c", acks: int = 1) -> Style:
    return Style(9, client, acks, 30_000)


def many_small(acks: int) -> bytes:
    """As many requests as a mebibyte holds."""
    one = produce(style(acks=acks), [Part("t-0", 0, SMALL)], 7)
    return one * (MIB // len(one))


def many_partitions(_: int) -> bytes:
    """10 000 partitions a request."""
    return produce(style(), [Part("t-0", index, SMALL) for index in range(10_000)], 7)


def many_heads(_: int) -> bytes:
    """No two requests begin alike."""
    made = bytearray()
    number = 0
    while len(made) < MIB - 200:
        made += produce(style(f"client-{number}"), [Part("t-0", 0, SMALL)], number)
        number += 1
    return bytes(made)


def refused_last(_: int) -> bytes:
    """Requests alike, each with a batch that its CRC refuses."""
    broken = bytearray(SMALL)
    broken[-1] ^= 1
    one = produce(style(), [Part("t-0", 0, SMALL), Part("t-1", 0, bytes(broken))], 7)
    return one * (MIB // len(one))


def empty_topics(_: int) -> bytes:
    """Requests too short to be cut into turns, of 990 topics without partitions. Found by a penetration test: those of
    one read took 0.1 s."""
    topics = [ProduceRequestTopic(name="", partition_data=[])] * 990
    return _many(ProduceRequest(acks=1, timeout_ms=10, topic_data=topics))


def unknown_partitions(_: int) -> bytes:
    """The same, of 1 350 partitions that do not exist."""
    rows = [ProduceRequestPartition(index=index) for index in range(1_350)]
    return _many(ProduceRequest(acks=1, timeout_ms=10, topic_data=[ProduceRequestTopic(name="x", partition_data=rows)]))


def _many(request: ProduceRequest) -> bytes:
    parts = request_frame(0, 12, 7, "c", encode_request(0, 12, request))
    one = b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]
    return one * (MIB // len(one))


READ = 256 << 10  # what the loop's shared buffer holds: a transport reads so much in one step


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("stream", "acks"),
    [(many_small, 1), (many_small, -1), (many_small, 0), (many_partitions, 1), (many_heads, 1),
     (refused_last, 1), (empty_topics, 1), (unknown_partitions, 1)],
)  # fmt: skip
def test_a_mebibyte_of_requests_is_in_proportion(stream: Callable[[int], bytes], acks: int) -> None:
    """In one read; the dearest step of the loop and the memory over all of it."""
    data = stream(acks)

    async def scenario() -> tuple[Cost, int]:
        place = Place("auto.create.topics.enable=false")
        place.net = Wires("10.0.0.1")  # type: ignore[assignment]
        life: Life = await place.start()
        for number in range(2):
            await life.create(f"t-{number}", remote_storage_enable="false")
        wire = place.net.arrive()  # type: ignore[attr-defined]
        wire.give([produce(style(acks=acks), [Part("t-0", 0, SMALL)], 1)])
        cost = Cost()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        with _metered(cost, count_calls=True, clock=False):
            for at in range(0, len(data), READ):
                place.loop.call_soon(wire.give, [data[at : at + READ]])
                await asyncio.sleep(0.001)
            async with asyncio.timeout(60):
                while wire.unread or wire.protocol._reader.left:
                    await asyncio.sleep(0.001)
        cost.bytes = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        answered = len(wire.answered)
        assert not wire.closed
        await life.crash()
        return cost, answered

    cost, answered = run_fast(scenario(), timeout_s=HOUR_S)
    assert answered or acks == 0
    assert cost.calls <= CALLS_MAX, cost
    assert cost.bytes <= BYTES_MAX + 2 * MIB, cost  # the simulated disk keeps what was appended
    assert HOLD_S_MAX == 0.050 and CALLS_MAX * 0.1e-6 < HOLD_S_MAX  # what the count of calls stands for


def test_heads_that_nobody_repeats_are_bounded() -> None:
    """20 000 clients of one request each, with ids of 900 bytes: 18 MB, were they kept for ever behind one peer."""

    async def scenario() -> int:
        life = await Place("auto.create.topics.enable=false").start()
        await life.create("t-0")
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        peer = Peer(9, "", "PLAINTEXT")
        for number in range(20_000):
            frame = produce(style(f"{number:0900}"), [Part("t-0", 0, SMALL)], number)[4:]
            life.dispatcher.dispatch(peer, memoryview(bytearray(frame)))
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        await life.crash()
        return grown

    assert run_fast(scenario(), timeout_s=HOUR_S) < 64 * MIB
