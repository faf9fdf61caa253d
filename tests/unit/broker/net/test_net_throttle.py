"""A throttled connection (KIP-219): responses leave, nothing is read, and its time ends."""

from __future__ import annotations

import asyncio
import struct

import pytest

from broker.net.connection import Connection
from broker.net.connection_state import State
from broker.net.connection_timeouts import Overdue, PeerTimeouts, Ticks
from broker.net.dispatch import Answer, CloseReason
from broker.net.limits import NetLimits
from tests.support.net.net_house import House, in_house, settled
from tests.support.net.scripted_net import ScriptedTransport, frame
from tests.support.scenario import by

LONG_MS = 60_000


def throttles(house: House, throttle_ms: int = LONG_MS) -> None:
    """Requests that begin with `heavy` are answered at once, and their peer is throttled."""

    def rule() -> Answer:
        peer = house.dispatcher.peers[-1]
        assert peer.throttle is not None
        peer.throttle(throttle_ms)
        return [frame(house.dispatcher.seen[-1])]

    house.dispatcher.rules[b"heavy"] = rule


def connection_of(peer: ScriptedTransport) -> Connection:
    assert isinstance(peer.protocol, Connection)
    return peer.protocol


def timer_of(peer: ScriptedTransport) -> asyncio.TimerHandle:
    timer = connection_of(peer)._life._throttle
    assert timer is not None
    return timer


def end(peer: ScriptedTransport) -> None:
    """The throttle time is over."""
    timer_of(peer).cancel()
    connection_of(peer)._life._end_throttle()


@by(in_house)
async def test_the_response_leaves_at_once_and_the_next_request_waits(house: House, /) -> None:
    throttles(house)
    peer = house.net.arrive()
    peer.give(frame(b"heavy") + frame(b"next") + frame(b"half")[:-2])
    assert bytes(peer.wire) == frame(b"heavy")
    assert (connection_of(peer).state, peer.reading) == (State.THROTTLED, False)
    assert house.dispatcher.seen == [b"heavy"]
    end(peer)
    assert bytes(peer.wire) == frame(b"heavy") + frame(b"next")
    assert (connection_of(peer).state, peer.reading) == (State.READING, True)
    peer.give(frame(b"half")[-2:])
    assert house.dispatcher.seen == [b"heavy", b"next", b"half"]


@by(in_house)
async def test_responses_of_earlier_requests_leave_meanwhile(house: House, /) -> None:
    throttles(house)
    house.answer_later(b"later", blocks=False)
    peer = house.net.arrive()
    peer.give(frame(b"later") + frame(b"heavy") + frame(b"next"))
    assert (bytes(peer.wire), house.dispatcher.seen) == (b"", [b"later", b"heavy"])
    await house.complete(b"later")
    assert bytes(peer.wire) == frame(b"later") + frame(b"heavy")
    assert connection_of(peer).state is State.THROTTLED
    end(peer)
    assert bytes(peer.wire)[-len(frame(b"next")) :] == frame(b"next")


@by(in_house)
async def test_a_request_that_blocks_goes_on_when_both_are_over(house: House, /) -> None:
    """The throttle is over before the response, or after it: the next request is dispatched once, after both."""
    for ends_first in (True, False):
        house.dispatcher.seen.clear()
        house.answer_later(b"blocks", blocks=True)
        peer = house.net.arrive()
        peer.give(frame(b"blocks") + frame(b"next"))
        throttle = connection_of(peer).peer.throttle
        assert throttle is not None
        throttle(LONG_MS)
        assert connection_of(peer).state is State.THROTTLED
        if ends_first:
            end(peer)
            assert house.dispatcher.seen == [b"blocks"]
            await house.complete(b"blocks")
        else:
            await house.complete(b"blocks")
            assert (bytes(peer.wire), house.dispatcher.seen) == (frame(b"blocks"), [b"blocks"])
            end(peer)
        await settled()
        assert bytes(peer.wire) == frame(b"blocks") + frame(b"next")


@by(in_house)
async def test_the_longest_throttle_stands(house: House, /) -> None:
    peer = house.net.arrive()
    throttle = connection_of(peer).peer.throttle
    assert throttle is not None
    throttle(LONG_MS)
    first = timer_of(peer)
    throttle(LONG_MS // 2)
    assert timer_of(peer) is first
    throttle(2 * LONG_MS)
    assert first.cancelled() and timer_of(peer).when() > first.when()


@by(in_house, NetLimits(idle_ms_max=5000))
async def test_no_throttle_is_longer_than_the_idle_time(house: House, /) -> None:
    peer = house.net.arrive()
    throttle = connection_of(peer).peer.throttle
    assert throttle is not None
    throttle(2**31 - 1)
    assert timer_of(peer).when() <= asyncio.get_running_loop().time() + 5


@by(in_house)
async def test_a_stop_does_not_wait_for_throttled_connections(house: House, /) -> None:
    throttles(house)
    peer = house.net.arrive()
    peer.give(frame(b"heavy") + frame(b"next"))
    async with asyncio.timeout(5):
        await house.server.stop()
    assert (bytes(peer.wire), peer.closed) == (frame(b"heavy"), True)
    assert house.closes == {CloseReason.DRAINED: 1}


@by(in_house)
async def test_a_connection_that_is_lost_leaves_no_timer(house: House, /) -> None:
    peer = house.net.arrive()
    throttle, connection = connection_of(peer).peer.throttle, connection_of(peer)
    assert throttle is not None
    throttle(LONG_MS)
    timer = timer_of(peer)
    peer.abort()
    await settled()
    assert timer.cancelled() and connection.peer.throttle is None
    throttle(LONG_MS)
    assert connection.state is State.LOST


@pytest.mark.parametrize("state", [State.THROTTLED, State.READING])
def test_idle_time_begins_when_the_throttle_is_over(state: State) -> None:
    timeouts = PeerTimeouts(Ticks(frame=30, idle=100, stall=50))
    timeouts.spoke(1)
    found = timeouts.overdue(101, state, owes=False, taken=(0, 0))
    assert found == ((201, None) if state is State.THROTTLED else (0, Overdue.IDLE))


@by(in_house)
async def test_frames_of_any_cut_survive_throttles(house: House, /) -> None:
    """Every second request throttles; bytes come in every size of piece. Each is dispatched once, in order."""
    throttles(house)
    bodies = [b"heavy" if at % 2 else struct.pack(">i", at) for at in range(12)]
    data = b"".join(map(frame, bodies))
    for size in (1, 3, 7, 20, len(data)):
        house.dispatcher.seen.clear()
        peer, at = house.net.arrive(), 0
        while at < len(data):
            while not peer.reading:
                end(peer)
            peer.give(data[at : at + size])
            at += size
        while connection_of(peer).state is State.THROTTLED:
            end(peer)
        assert house.dispatcher.seen == bodies
        assert bytes(peer.wire) == data
        peer.abort()
