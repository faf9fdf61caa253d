"""A connection's states: every event in every one of them, in the table and in the shell that obeys it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from broker.net.connection import Connection
from broker.net.connection_state import NEXT, OVER, READS, Event, State
from broker.net.connection_timeouts import Overdue, PeerTimeouts, Ticks
from broker.net.limits import NetLimits
from tests.support.net.net_house import MIB, House, in_house, settled, tick
from tests.support.net.scripted_net import ScriptedTransport, frame
from tests.support.scenario import by

W, R, M, B = State.WAITING, State.READING, State.MUTED, State.BEHIND
S, C, X, L = State.STARVED, State.CLOSING, State.CUT, State.LOST
T = State.THROTTLED

TABLE: dict[Event, dict[State, State]] = {
    Event.ADMITTED: {W: R, R: R, M: M, B: B, S: S, T: T, C: C, X: X, L: L},
    Event.MUTE: {W: W, R: M, M: M, B: B, S: S, T: T, C: C, X: X, L: L},
    Event.LEFT_OVER: {W: W, R: R, M: B, B: B, S: S, T: T, C: C, X: X, L: L},
    Event.CLEAR: {W: W, R: R, M: R, B: R, S: S, T: T, C: C, X: X, L: L},
    Event.NO_MEMORY: {W: W, R: S, M: M, B: B, S: S, T: T, C: C, X: X, L: L},
    Event.MEMORY: {W: W, R: R, M: M, B: B, S: B, T: T, C: C, X: X, L: L},
    Event.THROTTLE: {W: W, R: T, M: T, B: T, S: S, T: T, C: C, X: X, L: L},
    Event.THROTTLE_OVER: {W: W, R: R, M: M, B: B, S: S, T: B, C: C, X: X, L: L},
    Event.CLOSE: {W: C, R: C, M: C, B: C, S: C, T: C, C: C, X: X, L: L},
    Event.CUT: {W: X, R: X, M: X, B: X, S: X, T: X, C: X, X: X, L: L},
    Event.LOST: {W: L, R: L, M: L, B: L, S: L, T: L, C: L, X: L, L: L},
}
"""Written out: 11 events in 9 states."""


@pytest.mark.parametrize("event", Event)
def test_every_event_in_every_state(event: Event) -> None:
    assert {state: NEXT[event].get(state, state) for state in State} == TABLE[event]


def test_no_walk_leaves_the_end_or_reads_what_it_may_not() -> None:
    """All sequences of five events: nothing comes back from the end, and a frame waits only where nobody reads."""
    for events in itertools.product(Event, repeat=5):
        state = State.WAITING
        for event in events:
            was, state = state, NEXT[event].get(state, state)
            assert was is not State.LOST or state is State.LOST
            assert was not in OVER or state in OVER
            assert was is not State.CLOSING or state in (State.CLOSING, *OVER)
            if event is Event.LEFT_OVER and was is State.MUTED:
                assert state not in READS
        if Event.ADMITTED not in events:
            assert state not in (R, M, B, S, T)


LIMITS = NetLimits(connections_max=2, frame_bytes_total_max=10 * MIB, request_bytes_max=8 * MIB)
THROTTLE_MS = 60_000
LARGE = frame(b"L" * (7 * MIB))


class Scene:
    """One connection in a state; `transport` is its peer's side, `other` another peer's."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.other = house.net.arrive()
        self.transport: ScriptedTransport

    @property
    def connection(self) -> Connection:
        found = self.transport.protocol
        assert isinstance(found, Connection)
        return found

    async def bring(self, state: State) -> None:
        """A connection that has just come into `state`, as a peer brings it there."""
        house = self.house
        house.answer_later(b"blocks", blocks=True)
        house.answer_later(b"later", blocks=False)
        if state is State.STARVED:
            self.other.give(LARGE[: 6 * MIB])
        if state is State.WAITING:
            house.net.arrive()
        self.transport = peer = house.net.arrive()
        if state is State.STARVED:
            peer.give(LARGE[: 6 * MIB])
        elif state in (State.MUTED, State.BEHIND):
            peer.give(frame(b"blocks"))
        elif state in (State.CLOSING, State.CUT, State.LOST):
            peer.give(frame(b"later"))
        elif state is State.THROTTLED:
            self.throttle()
        if state is State.BEHIND:
            peer.give(frame(b"behind"))
        elif state is State.CLOSING:
            self.connection.drain()
        elif state is State.CUT:
            self.connection.stop()
        elif state is State.LOST:
            peer.abort()
            await settled()
        assert self.connection.state is state

    def throttle(self, throttle_ms: int = THROTTLE_MS) -> None:
        assert self.connection.peer.throttle is not None
        self.connection.peer.throttle(throttle_ms)

    # what may happen to it
    async def bytes_come(self) -> None:
        self.transport.give(frame(b"more"))

    async def answer_comes(self) -> None:
        for body, future in self.house.futures.items():
            if not future.done():
                future.set_result([frame(body)])

    async def peer_is_slow(self) -> None:
        self.connection.pause_writing()

    async def peer_takes(self) -> None:
        self.connection.resume_writing()

    async def memory_comes(self) -> None:
        # The rest of a large frame; where none was begun a whole one: else its middle would be taken for a length.
        self.other.give(LARGE[6 * MIB :] if self.connection.state is State.STARVED else LARGE)

    async def another_one_leaves(self) -> None:
        self.other.abort()

    async def time_passes(self) -> None:
        tick(self.house, 700)

    async def client_is_over_its_quota(self) -> None:
        if self.connection.peer.throttle is not None:
            self.throttle()

    async def throttle_time_passes(self) -> None:
        life = self.connection._life
        if life._throttle is not None:
            life._throttle.cancel()
            life._end_throttle()

    async def we_stop_in_order(self) -> None:
        self.connection.drain()

    async def we_stop_at_once(self) -> None:
        self.connection.stop()

    async def peer_goes(self) -> None:
        self.transport.abort()


HAPPENINGS: dict[Callable[[Scene], Awaitable[None]], dict[State, State]] = {
    Scene.bytes_come: {W: W, R: R, M: B, B: B, S: S, T: T, C: C, X: L, L: L},
    Scene.answer_comes: {W: W, R: R, M: R, B: R, S: S, T: T, C: L, X: L, L: L},
    Scene.peer_is_slow: {W: W, R: R, M: M, B: B, S: S, T: T, C: C, X: L, L: L},
    Scene.peer_takes: {W: W, R: R, M: M, B: B, S: S, T: T, C: C, X: L, L: L},
    Scene.memory_comes: {W: W, R: R, M: M, B: B, S: R, T: T, C: C, X: L, L: L},
    Scene.another_one_leaves: {W: R, R: R, M: M, B: B, S: R, T: T, C: C, X: L, L: L},
    # Idle ones are closed (so that one who waits has its turn), and one whose answers do not come once we close.
    Scene.time_passes: {W: R, R: L, M: M, B: B, S: L, T: T, C: L, X: L, L: L},
    Scene.client_is_over_its_quota: {W: W, R: T, M: T, B: T, S: S, T: T, C: C, X: L, L: L},
    Scene.throttle_time_passes: {W: W, R: R, M: M, B: B, S: S, T: R, C: C, X: L, L: L},
    Scene.we_stop_in_order: {W: L, R: L, M: C, B: C, S: L, T: L, C: C, X: L, L: L},
    Scene.we_stop_at_once: {W: L, R: L, M: L, B: L, S: L, T: L, C: L, X: L, L: L},
    Scene.peer_goes: {W: L, R: L, M: L, B: L, S: L, T: L, C: L, X: L, L: L},
}
"""What a connection is afterwards, when the loop has come to rest. WAITING: two others are connected."""


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("happens", HAPPENINGS, ids=lambda happens: happens.__name__)
@by(in_house, LIMITS)
async def test_whatever_happens_to_a_connection_in_any_state(
    house: House, /, happens: Callable[[Scene], Awaitable[None]], state: State
) -> None:
    """It is in the state the table above says, its transport reads accordingly, and at the end nothing is left over."""
    scene = Scene(house)
    await scene.bring(state)
    sent = bytes(scene.transport.wire)
    await happens(scene)
    await settled()
    expected = HAPPENINGS[happens][state]
    if state is State.WAITING and expected is State.READING:
        async with asyncio.timeout(20):  # admission looks again after a millisecond
            while scene.connection.state is State.WAITING:
                await asyncio.sleep(0.001)
    found = scene.connection.state
    assert found is expected
    if found not in OVER:
        assert scene.transport.reading is (found in READS)
    if state in OVER:
        assert bytes(scene.transport.wire) == sent
    assert (scene.connection.peer.closed, scene.transport.closed) == (found is State.LOST,) * 2
    if happens is Scene.peer_is_slow:
        await scene.peer_takes()  # or the server waits for it at the end


TICKS = Ticks(frame=30, idle=100, stall=50)


def judged(timeouts: PeerTimeouts, at: int, state: State = State.READING, owes: bool = False, taken: int = 0) -> object:
    return timeouts.overdue(at, state, owes=owes, taken=(taken, 0))


def test_a_frame_has_its_time_only_while_it_is_read() -> None:
    """Not while we have no memory for it, nor while an answer is awaited."""
    timeouts = PeerTimeouts(TICKS)
    assert (timeouts.spoke(5), timeouts.frame_began(10)) == (105, 40)
    assert judged(timeouts, 39) == (40, None)
    assert judged(timeouts, 40) == (0, Overdue.FRAME)
    assert judged(timeouts, 40, State.STARVED) == (105, None)
    timeouts.heard = 39
    assert judged(timeouts, 39) == (40, None)


def test_who_waits_for_our_answer_is_not_idle() -> None:
    timeouts = PeerTimeouts(TICKS)
    timeouts.spoke(1)
    assert judged(timeouts, 90, owes=True) == (190, None)
    assert judged(timeouts, 189) == (190, None)
    assert judged(timeouts, 190) == (0, Overdue.IDLE)


def test_a_peer_that_takes_a_little_is_slow_one_that_takes_nothing_is_late() -> None:
    """And while it stalls nothing else is held against it."""
    timeouts = PeerTimeouts(TICKS)
    timeouts.spoke(1)
    assert timeouts.stalled(60, (0, 0)) == 110
    assert judged(timeouts, 109, taken=1) == (159, None)
    assert judged(timeouts, 158, taken=1) == (159, None)
    assert judged(timeouts, 159, taken=1) == (0, Overdue.TAKING)
    timeouts.writable()
    assert judged(timeouts, 159, owes=True) == (259, None)


def test_once_we_close_answers_have_as_long_as_a_stalled_peer() -> None:
    timeouts = PeerTimeouts(TICKS)
    timeouts.spoke(1)
    assert timeouts.closes(20) == 70
    assert judged(timeouts, 69, State.CLOSING, owes=True) == (70, None)
    assert judged(timeouts, 70, State.CLOSING, owes=True) == (0, Overdue.ANSWER)
