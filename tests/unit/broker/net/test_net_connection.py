"""A connection: frames in order, answers in order, and nothing taken on that cannot be given back."""

from __future__ import annotations

import asyncio
import gc
import random
import struct
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.net.connection import Connection
from broker.net.dispatch import CloseConnection, CloseReason, Later
from broker.net.limits import NetLimits
from seams.files.disk import FileRange
from tests.support.collector import without_collector
from tests.support.net.net_house import MIB, House, in_house, settled, tick
from tests.support.net.scripted_net import BytesFile, ScriptedTransport, frame
from tests.support.scenario import by


def wire(transport: ScriptedTransport) -> list[bytes]:
    """The bodies of the answers that reached the peer whole."""
    bodies, data, position = [], bytes(transport.wire), 0
    while len(data) - position >= 4:
        stop = position + 4 + struct.unpack_from(">i", data, position)[0]
        if stop > len(data):
            break
        bodies.append(data[position + 4 : stop])
        position = stop
    return bodies


def frames(*bodies: bytes) -> bytes:
    return b"".join(map(frame, bodies))


def connections_alive(house: House) -> list[Connection]:
    """Connections of this house, also those that only something forgotten holds."""
    gc.collect()
    return [c for c in gc.get_objects() if type(c) is Connection and c._shared is house.server._shared]


@by(in_house)
async def test_pipelined_requests_are_answered_in_one_write(house: House, /) -> None:
    """Five requests of one read cost one system call to answer."""
    peer = house.net.arrive()
    peer.give(frames(b"a", b"b", b"c", b"d", b"e"))
    assert wire(peer) == [b"a", b"b", b"c", b"d", b"e"]
    assert peer.writes == 1
    assert (house.server.counters.frames, house.server.counters.bytes_in) == (5, 25)


@pytest.mark.parametrize("together", [[1], [2], [5], [1, 1, 1, 1, 1], [0, 2, 1], [3, 0, 1], []])
@by(in_house)
async def test_requests_answered_together_are_taken_once_each(house: House, /, together: list[int]) -> None:
    """Finding of 2026-11-21: a run of which only the first frame was answered broke the connection after the append."""
    peer = house.net.arrive()
    (dispatched,) = house.server._connections
    dispatched.peer.produce_route = 1
    house.dispatcher.together = list(together)
    peer.give(frames(b"a", b"b", b"c", b"d", b"e", b"f")[:-1])
    peer.give(b"f")
    assert wire(peer) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert house.dispatcher.seen == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert house.server.counters.frames == 6
    assert house.closes == {} and house.reports == []


@by(in_house)
async def test_a_request_without_response_gets_none(house: House, /) -> None:
    """acks=0: the next answer follows directly."""
    house.dispatcher.rules[b"quiet"] = lambda: None
    peer = house.net.arrive()
    peer.give(frames(b"a", b"quiet", b"b"))
    assert wire(peer) == [b"a", b"b"]


@by(in_house)
async def test_answers_that_come_out_of_order_leave_in_order(house: House, /) -> None:
    """Later requests are dispatched while earlier ones wait for their ack; their answers wait."""
    house.answer_later(b"p", blocks=False)
    peer = house.net.arrive()
    peer.give(frames(b"p1", b"p2", b"now", b"p3"))
    assert house.dispatcher.seen == [b"p1", b"p2", b"now", b"p3"]
    await house.complete(b"p2")
    await house.complete(b"p3")
    assert wire(peer) == []
    await house.complete(b"p1")
    assert wire(peer) == [b"p1", b"p2", b"now", b"p3"]
    assert peer.writes == 1


@by(in_house)
async def test_acks_of_one_flush_leave_in_one_write(house: House, /) -> None:
    """A group commit completes many futures at once."""
    house.answer_later(b"p", blocks=False)
    peer = house.net.arrive()
    bodies = [b"p%d" % n for n in range(20)]
    peer.give(frames(*bodies))
    for body in bodies:
        house.futures[body].set_result([frame(body)])
    await settled()
    assert wire(peer) == bodies and peer.writes == 1


@by(in_house)
async def test_a_blocking_request_mutes_its_connection_only(house: House, /) -> None:
    """Frames behind it are read and kept, dispatched when it is answered; other connections go on."""
    house.answer_later(b"join", blocks=True)
    muted, other = house.net.arrive(), house.net.arrive()
    muted.give(frames(b"join", b"after"))
    other.give(frames(b"other"))
    assert house.dispatcher.seen == [b"join", b"other"]
    assert wire(other) == [b"other"]
    await house.complete(b"join")
    assert wire(muted) == [b"join", b"after"]


@by(in_house)
async def test_a_muted_connection_stops_reading_only_when_its_peer_goes_on_sending(house: House, /) -> None:
    """The usual long poll costs no call to the selector; a peer that floods is stopped after one read."""
    house.answer_later(b"poll", blocks=True)
    peer = house.net.arrive()
    peer.give(frames(b"poll"))
    assert peer.reading and peer.pauses == 0
    peer.give(frames(*[b"x" * 1000] * 1000))
    assert not peer.reading and peer.unread > 700_000
    await house.complete(b"poll")
    while len(wire(peer)) < 1001:  # 32 KiB a turn
        await settled()
    assert peer.reading


@pytest.mark.parametrize("size", [10, 5_000, 20_000, 100_000, 300_000, 2 * MIB])
@by(in_house)
async def test_the_frame_of_a_blocking_request_stays_valid(house: House, /, size: int) -> None:
    """Whatever others read meanwhile, and whatever its size: until it is answered its bytes are those sent."""
    house.answer_later(b"keep", blocks=True)
    peer, other = house.net.arrive(), house.net.arrive()
    for round_ in range(3):
        body = b"keep%d" % round_ + b"k" * size
        peer.give(frames(body, b"after" + b"-" * size))
        view = house.dispatcher.views[-1]
        other.give(frames(b"#" * 5, b"#" * (size + 50), b"#" * 300_000))
        assert bytes(view) == body
        await house.complete(body)
        assert house.dispatcher.seen[-1][:5] == b"after"
    assert len(wire(peer)) == 6


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["now", "later", "blocks", "none"]), st.integers(1, 30_000)), min_size=1, max_size=25
    ),
    st.lists(st.integers(1, 60_000), min_size=1, max_size=8),
    st.integers(1, 300_000),
    st.integers(0, 1 << 32),
)
def test_any_mix_any_cut_any_completion_order(
    requests: list[tuple[str, int]], cuts: list[int], room: int, seed: int
) -> None:
    """Requests of all kinds, cut anywhere, completed in any order, to a peer that takes its answers in any pace:
    dispatched in order, answered in order, each once."""
    rng = random.Random(seed)

    async def scenario(house: House) -> None:
        house.answer_later(b"later", blocks=False)
        house.answer_later(b"blocks", blocks=True)
        house.dispatcher.rules[b"none"] = lambda: None
        bodies = [kind.encode() + b"%d " % n + b"." * size for n, (kind, size) in enumerate(requests)]
        stream, turn = frames(*bodies), 0
        peer = house.net.arrive(room=rng.randrange(room))
        step_min = len(stream) // 20 + 1
        while len(wire(peer)) < sum(not body.startswith(b"none") for body in bodies) or stream:
            if stream and rng.random() < 0.6:
                count = max(cuts[turn % len(cuts)], step_min)
                peer.give(stream[:count], read_max=rng.choice([1000, 1 << 30]))
                stream = stream[count:]
                turn += 1
            waiting = [body for body, future in house.futures.items() if not future.done()]
            if waiting and rng.random() < 0.5:
                await house.complete(rng.choice(waiting))
            if rng.random() < 0.5:
                peer.take(rng.randrange(step_min, max(room, step_min) + 1))
            await settled()
        assert house.dispatcher.seen == bodies
        assert wire(peer) == [body for body in bodies if not body.startswith(b"none")]

    in_house(scenario)


@pytest.mark.parametrize("length", [0, -1, 100 * MIB + 1, 0x7FFFFFFF])
@by(in_house)
async def test_a_hostile_length_closes_after_the_answers_before_it(house: House, /, length: int) -> None:
    """What was asked properly is answered; nothing is allocated for the rest."""
    house.answer_later(b"slow", blocks=False)
    peer = house.net.arrive()
    peer.give(frames(b"fine", b"slow") + struct.pack(">i", length) + b"rest")
    assert not peer.closed
    await house.complete(b"slow")
    assert wire(peer) == [b"fine", b"slow"]
    assert peer.closed and house.closes == {CloseReason.FRAME_LENGTH: 1}


@by(in_house)
async def test_a_refused_frame_closes_and_those_behind_it_are_not_dispatched(house: House, /) -> None:
    """`CloseConnection` from the dispatcher."""
    house.refuse(b"bad", CloseConnection("unknown api key 999"))
    peer = house.net.arrive()
    peer.give(frames(b"good", b"bad", b"never"))
    await settled()
    assert wire(peer) == [b"good"] and house.dispatcher.seen == [b"good", b"bad"]
    assert peer.closed and house.closes == {CloseReason.REFUSED: 1}
    assert house.dispatcher.peers[0].closed


@by(in_house)
async def test_a_bug_in_a_handler_closes_its_connection_and_is_not_swallowed(house: House, /) -> None:
    """No half-dead connection, and the exception reaches whoever called."""
    house.refuse(b"bug", ZeroDivisionError("x"))
    peer = house.net.arrive()
    with pytest.raises(ZeroDivisionError):
        peer.give(frames(b"bug", b"never"))
    await settled()
    assert peer.aborted and house.closes == {CloseReason.FAILED: 1}
    assert house.dispatcher.seen == [b"bug"]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (CloseConnection("x"), CloseReason.REFUSED),
        (ZeroDivisionError("x"), CloseReason.FAILED),
        (None, CloseReason.FAILED),
    ],
)
@by(in_house)
async def test_a_failed_late_answer_closes_after_those_before_it(
    house: House, /, failure: Exception | None, reason: CloseReason
) -> None:
    """Its own place in the order stays empty, so nothing behind it may be sent. None: cancelled."""
    house.answer_later(b"p", blocks=False)
    peer = house.net.arrive()
    peer.give(frames(b"p1", b"p2", b"p3"))
    if failure is None:
        house.futures[b"p2"].cancel()
    else:
        house.futures[b"p2"].set_exception(failure)
    house.futures[b"p3"].set_result([frame(b"p3")])
    await settled()
    assert not peer.closed
    await house.complete(b"p1")
    assert wire(peer) == [b"p1"]
    assert peer.closed and house.closes == {reason: 1}
    assert len(house.reports) == (reason is CloseReason.FAILED)


@by(in_house)
async def test_a_blocking_request_that_is_answered_before_an_earlier_one_unblocks(house: House, /) -> None:
    """Its answer waits for its turn, the frames behind it do not."""
    house.answer_later(b"p", blocks=False)
    house.answer_later(b"join", blocks=True)
    peer = house.net.arrive()
    peer.give(frames(b"p1", b"join", b"after"))
    assert house.dispatcher.seen == [b"p1", b"join"]
    await house.complete(b"join")
    assert house.dispatcher.seen == [b"p1", b"join", b"after"] and wire(peer) == []
    await house.complete(b"p1")
    assert wire(peer) == [b"p1", b"join", b"after"]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(CloseConnection("refused, acks=0"), CloseReason.REFUSED), (ZeroDivisionError("x"), CloseReason.FAILED)],
)
@by(in_house)
async def test_no_frame_is_dispatched_behind_a_blocking_request_that_failed(
    house: House, /, failure: Exception, reason: CloseReason
) -> None:
    """An earlier response still waits. As in Kafka, a request behind a refused one with acks=0 is never appended."""
    house.answer_later(b"p", blocks=False)
    house.answer_later(b"refused", blocks=True)
    peer = house.net.arrive()
    peer.give(frames(b"p1", b"refused", b"never"))
    house.futures[b"refused"].set_exception(failure)
    await settled()
    assert house.dispatcher.seen == [b"p1", b"refused"] and not peer.closed
    peer.give(frames(b"neither"))
    await house.complete(b"p1")
    assert wire(peer) == [b"p1"] and house.dispatcher.seen == [b"p1", b"refused"]
    assert peer.closed and house.closes == {reason: 1}
    assert len(house.reports) == (reason is CloseReason.FAILED)


@by(in_house)
async def test_a_small_blocking_request_of_a_busy_read_holds_only_itself(house: House, /) -> None:
    """It stays valid, and neither the read buffer nor the budget is taken for it."""
    house.answer_later(b"keep", blocks=True)
    peer, other = house.net.arrive(), house.net.arrive()
    peer.give(frames(b"x" * 30_000, b"keep me"))
    view = house.dispatcher.views[-1]
    other.give(frames(b"#" * 100_000))
    assert bytes(view) == b"keep me"
    assert house.server.budget.used == 0 and peer.reading
    await house.complete(b"keep me")


@by(in_house, NetLimits(answers_in_flight_max=4))
async def test_answers_ready_behind_a_late_one_count_too(house: House, /) -> None:
    """A peer cannot pile up answers behind one slow request."""
    house.answer_later(b"p", blocks=False)
    peer = house.net.arrive()
    peer.give(frames(b"p1", *[b"now"] * 20))
    assert len(house.dispatcher.seen) == 4
    await house.complete(b"p1")
    assert wire(peer) == [b"p1"] + [b"now"] * 20


@by(in_house, NetLimits(answers_in_flight_max=4))
async def test_too_many_answers_in_flight_stop_dispatching(house: House, /) -> None:
    """And one that leaves lets one more in."""
    house.answer_later(b"p", blocks=False)
    peer = house.net.arrive()
    bodies = [b"p%d" % n for n in range(6)]
    peer.give(frames(*bodies))
    assert house.dispatcher.seen == bodies[:4]
    await house.complete(b"p1")
    assert house.dispatcher.seen == bodies[:4]
    await house.complete(b"p0")
    assert house.dispatcher.seen == bodies
    for body in bodies[2:]:
        await house.complete(body)
    assert wire(peer) == bodies


@by(in_house)
async def test_one_connection_does_not_keep_the_loop(house: House, /) -> None:
    """Thousands of tiny frames of one read are dispatched in turns."""
    peer = house.net.arrive()
    peer.give(frames(*[b"x"] * 1000))
    assert len(house.dispatcher.seen) == 128
    await settled()
    assert len(wire(peer)) == 1000


@by(in_house)
async def test_a_peer_that_does_not_read_is_not_read_either(house: House, /) -> None:
    """Its answers fill the socket, then nothing of it is dispatched: memory stays at what one turn produces."""
    house.answer_with(b"big", frame(b"B" * 100_000))
    peer = house.net.arrive(room=250_000)
    peer.give(frames(*[b"big"] * 50))
    await settled()
    assert len(house.dispatcher.seen) == 3
    assert len(peer.buffered) <= 100_000
    for _ in range(200):
        peer.take(100_000)
        await settled()
    assert len(wire(peer)) == 50


@by(in_house, NetLimits(write_stall_ms_max=5000))
async def test_a_slow_reader_that_takes_a_little_is_kept_one_that_takes_nothing_is_closed(house: House, /) -> None:
    """Progress counts, not speed."""
    house.answer_with(b"big", frame(b"B" * 100_000))
    peer = house.net.arrive(room=10)
    peer.give(frames(b"big"))
    for _ in range(20):
        peer.take(1)
        tick(house, 3)
    await settled()
    assert not peer.closed
    tick(house, 12)
    await settled()
    assert peer.aborted and house.closes == {CloseReason.SLOW_READER: 1}


@by(in_house, NetLimits(frame_ms_max=30000))
async def test_a_frame_that_drips_is_closed_at_its_deadline(house: House, /) -> None:
    """Bytes that trickle in do not extend it; whole frames do."""
    dripping, working = house.net.arrive(), house.net.arrive()
    data = frame(bytes(1000))
    for second in range(40):
        dripping.give(data[second : second + 1])
        working.give(data[500:] + data[:500] if second else data[:500])
        tick(house, 1)
    await settled()
    assert dripping.closed and not working.closed
    assert house.closes == {CloseReason.FRAME_DEADLINE: 1}


@by(in_house, NetLimits(idle_ms_max=60000))
async def test_an_idle_connection_is_closed_one_that_waits_for_its_answer_is_not(house: House, /) -> None:
    """A long poll is not idleness."""
    house.answer_later(b"poll", blocks=True)
    idle, polling, active = (house.net.arrive() for _ in range(3))
    idle.give(frames(b"once"))
    polling.give(frames(b"poll"))
    for _ in range(70):
        tick(house, 1)
        active.give(frames(b"again"))
    await settled()
    assert idle.closed and not polling.closed and not active.closed
    assert house.closes == {CloseReason.IDLE: 1}
    await house.complete(b"poll")
    polling.give(frames(b"next"))
    assert wire(polling) == [b"poll", b"next"]
    tick(house, 120)
    await settled()
    assert polling.closed


@by(in_house, NetLimits(frame_bytes_total_max=16 * MIB, request_bytes_max=8 * MIB))
async def test_when_the_budget_is_used_up_large_frames_wait_and_small_ones_pass(house: House, /) -> None:
    """Two peers that send halves of large frames cannot stop the broker, nor each other for ever."""
    large = frame(b"L" * (6 * MIB))
    first, second, third, small = (house.net.arrive() for _ in range(4))
    first.give(large[: 5 * MIB])  # owns the reserve
    second.give(large[: 5 * MIB])
    third.give(large[: 5 * MIB])
    assert second.unread and third.unread
    assert house.server.counters.budget_waits >= 2
    assert house.server.budget.used <= 16 * MIB
    small.give(frames(b"still served"))
    assert wire(small) == [b"still served"]
    for peer in (first, second, third):
        peer.give(large[5 * MIB :])
        await settled()
        assert [len(body) for body in wire(peer)] == [6 * MIB]
    assert house.server.budget.used == 0


@by(in_house, NetLimits(frame_bytes_total_max=10 * MIB, request_bytes_max=8 * MIB))
async def test_a_peer_that_waits_for_memory_and_goes_lets_the_next_one_in(house: House, /) -> None:
    """No wake-up is lost with the connection it was meant for."""
    large = frame(b"L" * (7 * MIB))
    first, second, third = (house.net.arrive() for _ in range(3))
    for peer in (first, second, third):
        peer.give(large[: 6 * MIB])
    assert second.unread and third.unread
    second.abort()
    first.abort()
    await settled()
    third.give(large[6 * MIB :])
    await settled()
    assert len(wire(third)) == 1


@by(in_house, NetLimits(frame_bytes_total_max=10 * MIB, request_bytes_max=8 * MIB, frame_ms_max=30000))
async def test_memory_we_hold_back_does_not_count_against_the_peers_deadline(house: House, /) -> None:
    """The frame deadline runs only while we read, and begins again when we do."""
    large = frame(b"L" * (7 * MIB))
    first, second = house.net.arrive(), house.net.arrive()
    first.give(large[: 6 * MIB])
    second.give(large[:10_000])
    tick(house, 10)
    second.give(large[10_000 : 6 * MIB])
    assert second.unread
    for now_s in range(50):
        tick(house, 1)
        if now_s % 10 == 0:
            first.give(large[6 * MIB :] + large[: 6 * MIB])
    assert second.unread and not second.closed
    first.give(large[6 * MIB :])
    await settled()
    tick(house, 25)
    await settled()
    assert not second.closed
    tick(house, 10)
    await settled()
    assert second.closed and house.closes == {CloseReason.FRAME_DEADLINE: 1}


@by(in_house)
async def test_file_ranges_leave_between_other_answers(house: House, /) -> None:
    """A fetch response keeps its place."""
    content = bytes(range(256)) * 1000
    head = struct.pack(">i", len(content))
    house.answer_with(b"fetch", head, FileRange(BytesFile(content), 0, len(content)))
    peer = house.net.arrive(room=100_000)
    peer.give(frames(b"before", b"fetch", b"after"))
    while not wire(peer) or wire(peer)[-1] != b"after":
        peer.take(50_000)
        await settled()
    assert wire(peer) == [b"before", content, b"after"]


@by(in_house)
async def test_a_short_file_ends_the_connection(house: House, /) -> None:
    """Never a frame of the wrong length."""
    house.answer_with(b"fetch", struct.pack(">i", 100), FileRange(BytesFile(b"x" * 60), 0, 100))
    peer = house.net.arrive()
    peer.give(frames(b"fetch", b"after"))
    await settled()
    assert peer.aborted and house.closes == {CloseReason.SHORT_FILE: 1}
    assert house.dispatcher.seen == [b"fetch"]


@by(in_house)
async def test_a_file_cut_short_while_the_peer_was_slow_ends_the_connection(house: House, /) -> None:
    """Noticed when the socket has room again."""
    file = BytesFile(bytes(5_000_000))
    house.answer_with(b"fetch", struct.pack(">i", 5_000_000), FileRange(file, 0, 5_000_000))
    peer = house.net.arrive(room=100_000)
    peer.give(frames(b"fetch"))
    file.truncate(3_000_000)
    peer.take(1 << 30)
    await settled()
    assert peer.aborted and house.closes == {CloseReason.SHORT_FILE: 1}
    assert len(peer.wire) < 5_000_000


@by(in_house)
async def test_a_peer_that_goes_leaves_nothing_behind(house: House, /) -> None:
    """Answers that come later are dropped, failed ones without a complaint; the peer is marked."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    house.answer_later(b"p", blocks=False)
    house.answer_later(b"join", blocks=True)
    peer = house.net.arrive()
    peer.give(frames(b"p1", b"p2", b"join" + b"j" * 20_000, b"never") + frame(bytes(100_000))[:50_000])
    peer.abort()
    await settled()
    assert house.dispatcher.peers[0].closed and house.closes == {CloseReason.PEER: 1}
    house.futures[b"p1"].set_exception(ValueError("late"))
    await house.complete(b"p2")
    del house.futures[b"p1"], peer.protocol
    gc.collect()
    await settled()
    assert b"never" not in house.dispatcher.seen
    assert peer.wire == b"" and complaints == []


@by(in_house, NetLimits(frame_bytes_total_max=8 * MIB, request_bytes_max=2 * MIB))
async def test_frames_of_peers_that_went_stay_charged_while_requests_hold_them(house: House, /) -> None:
    """Regression: the budget was free once the peer went, so peers that came and went added frames without bound."""
    house.answer_later(b"wait", blocks=True)
    for number in range(20):
        peer = house.net.arrive()
        peer.give(frames(b"wait" + bytes([number]) + bytes(MIB)))
        peer.abort()
        await settled()
    seen = house.dispatcher.seen
    assert len(seen) < 8 and house.server.budget.used >= len(seen) * MIB
    for body in seen:
        await house.complete(body)
    assert house.server.budget.used == 0


@by(in_house)
async def test_stopping_lets_answers_in_flight_leave_and_takes_no_more(house: House, /) -> None:
    """Drain: no accept, no dispatch, no answer lost, idle connections closed at once."""
    house.answer_later(b"p", blocks=False)
    idle, busy = house.net.arrive(), house.net.arrive()
    busy.give(frames(b"p1"))
    stopping = asyncio.get_running_loop().create_task(house.server.stop())
    await settled()
    assert house.net.listener.closed and idle.closed and not busy.closed
    busy.give(frames(b"p2"))
    await settled()
    assert house.dispatcher.seen == [b"p1"] and not stopping.done()
    await house.complete(b"p1")
    await stopping
    assert wire(busy) == [b"p1"]
    assert house.closes == {CloseReason.DRAINED: 2}
    late = house.net.arrive()
    await settled()
    assert late.aborted


@by(in_house, NetLimits(drain_ms_max=20))
async def test_stopping_does_not_wait_for_ever(house: House, /) -> None:
    """After the drain time what is left is cut off."""
    house.answer_later(b"never", blocks=True)
    peer = house.net.arrive()
    peer.give(frames(b"never"))
    await house.server.stop()
    assert peer.aborted and house.closes == {CloseReason.STOPPED: 1}


@by(in_house, NetLimits(connections_max=1))
async def test_waiting_connections_are_not_read_until_they_are_admitted(house: House, /) -> None:
    """Above max.connections: accepted by the kernel, silent until there is a place."""
    first, second = house.net.arrive(), house.net.arrive()
    second.give(frames(b"hello"))
    assert (second.reading, house.server.connections_waiting, house.dispatcher.seen) == (False, 1, [])
    first.abort()
    await asyncio.sleep(0.01)
    await settled()
    assert wire(second) == [b"hello"] and house.server.connections_waiting == 0


@by(in_house)
async def test_a_closed_connection_is_forgotten_by_all(house: House, /) -> None:
    """Neither deadlines nor queues keep it: peers that come and go by the thousand leave no memory behind."""
    house.answer_later(b"poll", blocks=True)
    for _ in range(20):
        peer = house.net.arrive()
        peer.give(frames(b"poll", b"rest"))
        peer.abort()
    await settled()
    del peer
    assert not connections_alive(house)


@by(in_house)
async def test_a_request_that_waited_behind_another_keeps_no_lost_connection(house: House, /) -> None:
    """A poll behind an ack is listened to twice: when it comes, and again once it is the first."""
    acks: list[Later] = []

    def ack() -> Later:
        acks.append(Later(blocks=False))
        return acks[-1]

    house.dispatcher.rules[b"ack"] = ack
    house.answer_later(b"poll", blocks=True)
    peer = house.net.arrive()
    peer.give(frames(b"ack", b"poll"))
    acks[0].answer([frame(b"acked")])
    await settled()
    assert wire(peer) == [b"acked"]
    peer.abort()
    await settled()
    del peer
    assert not connections_alive(house)


@by(in_house)
async def test_an_answer_that_comes_after_its_peer_went_is_kept_by_nobody(house: House, /) -> None:
    """It names a file whose segment may be deleted: its disk space is free once whoever answered lets go of it, not
    when the collector of cycles finds the connection."""
    polls: list[Later] = []

    def poll() -> Later:
        polls.append(Later(blocks=True))
        return polls[-1]

    house.dispatcher.rules[b"poll"] = poll
    peer = house.net.arrive()
    peer.give(frames(b"poll"))
    peer.abort()
    await settled()
    file = BytesFile(b"bytes")
    held = weakref.ref(file)
    with without_collector():
        polls.pop().answer([FileRange(file, 0, 5)])
        await settled()
        del file
        assert held() is None


@by(in_house)
async def test_a_peer_knows_its_connection(house: House, /) -> None:
    """What handlers see of it, and that two connections are two peers."""
    house.net.arrive().give(frames(b"a"))
    house.net.arrive().give(frames(b"b"))
    one, two = house.dispatcher.peers
    assert (one.listener, one.principal, one.closed) == ("PLAINTEXT", "User:ANONYMOUS", False)
    assert one != two and one.connection_id != two.connection_id


@by(in_house)
async def test_answers_that_come_in_one_chain_leave_by_one_send_in_its_turn(house: House, /) -> None:
    """As after a sync that several requests waited for: not one system call each, and not a turn of the loop later."""
    laters: list[Later] = []

    def ack() -> Later:
        laters.append(Later(blocks=False))
        return laters[-1]

    house.dispatcher.rules[b"ack"] = ack
    peer = house.net.arrive()
    peer.give(frame(b"ack1") + frame(b"ack2") + frame(b"ack3"))
    await settled()
    with house.server._shared.afterwards:
        for at in (1, 0):
            laters[at].answer([frame(b"%d" % at)])
        assert peer.writes == 0
    assert peer.writes == 1 and wire(peer) == [b"0", b"1"]
    laters[2].answer([frame(b"2")])
    assert peer.writes == 1, "never in the middle of what tells it"
    await settled()
    assert peer.writes == 2
