"""Connections in any order of events: several peers with and without TLS, requests that wait, throttles, full sockets,
little memory. Each request is dispatched once and in order, its bytes stay as long as it needs them, and responses
leave in the order of requests."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.net.connection import Connection
from broker.net.dispatch import Answer, Later, Part, Peer
from broker.net.limits import NetLimits
from broker.net.server import Bind
from broker.security_protocol import SecurityProtocol
from seams.files.disk import FileRange
from tests.support.fast_loop import run_fast
from tests.support.net.net_house import House, settled
from tests.support.net.scripted_net import BytesFile, ScriptedTransport, frame
from tests.support.net.tls_peer import TlsPeer, listener_tls

SIZES = (10, 300, 5_000, 17_000, 70_000, 300_000)
KINDS = b"EBNFT0R"  # echo, blocks, does not block, a file, throttles, no response, released while it waits


@dataclass(eq=False)
class Waiting:
    """A request without response; `view`: its frame, as long as it is valid."""

    later: Later
    body: bytes
    view: memoryview | None
    releases: asyncio.Future[Answer] | None = None


@dataclass(eq=False)
class Talk:
    """One connection: what its peer sends, and what has to come of it."""

    transport: ScriptedTransport
    tls: TlsPeer | None
    bodies: list[bytes]
    unsent: deque[bytes]
    seen: list[bytes] = field(default_factory=list)
    heard: bytearray = field(default_factory=bytearray)
    waiting: list[Waiting] = field(default_factory=list)

    @property
    def connection(self) -> Connection:
        inner = self.transport.protocol if self.tls is None else self.transport.protocol._inner  # type: ignore[attr-defined]
        assert isinstance(inner, Connection)
        return inner

    def hear(self) -> None:
        if self.tls is None:
            self.heard += self.transport.wire
            self.transport.wire.clear()
        else:
            self.tls.turn()
            self.heard += self.tls.heard
            self.tls.heard.clear()


class Players:
    """`Dispatcher` whose answers depend on the first byte of a request."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.of: dict[int, Talk] = {}

    def dispatch_run(self, peer: Peer, view: memoryview, pos: int, end: int) -> tuple[int, int, Answer]:
        raise AssertionError("no peer has a route")

    def dispatch(self, peer: Peer, request: memoryview) -> Answer:
        body, talk = bytes(request), self.of[peer.connection_id]
        assert all(one.view is None for one in talk.waiting), "dispatched while an earlier one blocks"
        talk.seen.append(body)
        kind = body[:1]
        if kind == b"T":
            assert peer.throttle is not None
            peer.throttle(60_000)
            kind = self.rng.choice([b"E", b"B", b"N"])
        if kind == b"0":
            return None
        if kind == b"E":
            return [frame(body)]
        if kind == b"F":
            file = BytesFile(frame(body))
            return [FileRange(file, 0, 4), FileRange(file, 4, len(body))]
        if kind == b"R":
            future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            waiting = Waiting(Later.of(future, blocks=True), body, request, future)
        else:
            waiting = Waiting(Later(blocks=kind == b"B"), body, request if kind == b"B" else None)
        talk.waiting.append(waiting)
        return waiting.later

    def go_on(self, talk: Talk) -> None:
        """One of the requests that wait has its response, or blocks no longer."""
        one = self.rng.choice(talk.waiting)
        if one.view is not None:
            assert bytes(one.view) == one.body, "the frame changed while its request waited"
            one.view = None
        if one.releases is not None:
            later, future = Later(blocks=False), one.releases
            one.releases, one.later = None, later
            future.set_result(later)
            return
        talk.waiting.remove(one)
        parts: list[Part] = [frame(one.body)]
        one.later.answer(parts)


async def play(seed: int, talks_count: int, requests: int, *, has_tls: bool) -> None:
    rng = random.Random(seed)
    limits = NetLimits(
        answers_in_flight_max=rng.choice([2, 100]),
        request_bytes_max=1 << 20,
        frame_bytes_total_max=rng.choice([2 << 20, 64 << 20]),
    )
    house = House(limits, native=not has_tls)
    players = Players(rng)
    house.server._shared.dispatcher = players
    tls = listener_tls() if has_tls else None
    protocol = SecurityProtocol.SSL if has_tls else SecurityProtocol.PLAINTEXT
    await house.server.bind([Bind("L", "", 0, protocol=protocol, tls=tls)])
    await house.server.accept()
    talks = []
    for number in range(talks_count):
        transport = house.net.arrive(1 << 30)
        peer = TlsPeer(transport) if has_tls else None
        for _ in range(8 if has_tls else 0):
            assert peer is not None
            peer.turn()
            await settled()
        bodies = [bytes([rng.choice(KINDS), number]) + rng.randbytes(rng.choice(SIZES)) for _ in range(requests)]
        talk = Talk(transport, peer, bodies, deque(bodies))
        players.of[talk.connection.peer.connection_id] = talk
        transport.room = rng.choice([10_000, 1 << 30])
        talks.append(talk)
    stream = {id(talk): bytearray() for talk in talks}
    for _ in range(200_000):
        busy = [
            t for t in talks if t.unsent or stream[id(t)] or t.waiting or len(t.seen) < requests or t.transport.unread
        ]
        busy = busy or [t for t in talks if len(t.heard) < sum(len(b) + 4 for b in t.bodies if b[:1] != b"0")]
        if not busy:
            break
        talk = rng.choice(busy)
        sends = stream[id(talk)]
        for _ in range(rng.randrange(3)):
            if talk.unsent:
                sends += frame(talk.unsent.popleft())
        count = rng.choice([1, 100, 16_000, 64_000, 1 << 20])
        data = bytes(sends[:count])
        del sends[:count]
        if talk.tls is not None and data:
            talk.tls.machine.encrypt(data)
            data = talk.tls.machine.take()
        talk.transport.give(data, read_max=rng.choice([50, 5_000, 1 << 30]))
        if rng.randrange(2):
            await settled()
        if talk.waiting and rng.randrange(2):
            players.go_on(talk)
        if rng.randrange(3) == 0:
            await settled()
        life = talk.connection._life
        if life.is_throttled and rng.randrange(2):
            assert life._throttle is not None
            life._throttle.cancel()
            life._end_throttle()
        if rng.randrange(2):
            talk.transport.take(rng.choice([100, 50_000, 1 << 20]))
            talk.hear()
        if rng.randrange(8) == 0:
            await asyncio.sleep(0)
    for talk in talks:
        await settled()
        talk.transport.take(1 << 30)
        await settled()
        talk.hear()
        assert talk.seen == talk.bodies, (seed, talk.connection.state)
        assert bytes(talk.heard) == b"".join(frame(body) for body in talk.bodies if body[:1] != b"0"), seed
        talk.transport.abort()
    await settled()
    await house.server.stop()
    assert house.server.budget.used == 0
    assert not house.reports


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 4), st.integers(1, 25), st.booleans())
def test_each_request_is_dispatched_once_and_answered_in_order(seed: int, talks: int, requests: int, tls: bool) -> None:
    run_fast(play(seed, talks, requests, has_tls=tls), timeout_s=600.0)
