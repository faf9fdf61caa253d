"""Requests from broker to broker: in order, each within its time; refused, broken and late told apart."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.net.buffers import BufferPool
from broker.peers import stream
from broker.peers.connection import PeerConnection
from broker.peers.stream import PeerBusy, UnsupportedByPeer
from broker.wire.framing import RequestHeader
from broker.wire.messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from seams.rng import SeededRng
from tests.sim.world.net import SimNet
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.net.scripted_broker import ScriptedBroker, Told
from tests.support.scenario import by

FRAME_MAX = 1 << 20
HEARTBEAT = 2


class Trial:
    """A connection to a broker that does as `rule` says."""

    def __init__(self, rule: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.net = SimNet(self.loop, SeededRng("peers"))
        self.broker = ScriptedBroker(self.net, rule)
        pool = BufferPool()
        self.connection = PeerConnection(self.net, self.broker.address, "broker-1-test", pool, FRAME_MAX)  # type: ignore[arg-type]

    async def ask(self, position: int = 0, timeout_s: float = 5.0) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(broker_id=1, current_metadata_offset=position)
        answer = await self.connection.ask(request, HEARTBEAT, timeout_s)
        assert isinstance(answer, BrokerHeartbeatResponse)
        return answer


def echo(told: Told, header: RequestHeader, request: Any) -> None:
    """The position asked with, as the epoch answered with."""
    told.answer(header, BrokerHeartbeatResponse(controller_epoch=request.current_metadata_offset))


def silent(told: Told, header: RequestHeader, request: Any) -> None:
    """No answer."""


def trial(scenario: Callable[[Trial], Awaitable[None]], rule: Any) -> None:
    async def play_it() -> None:
        made = Trial(rule)
        await made.broker.listen()
        await scenario(made)

    run_fast(play_it(), timeout_s=HOUR_S)


@by(trial, echo)
async def test_requests_share_a_connection_and_each_gets_its_answer(made: Trial, /) -> None:
    """Twenty at once on one connection, under one client id, correlation ids ascending."""
    answers = await asyncio.gather(*[made.ask(position) for position in range(20)])
    assert [answer.controller_epoch for answer in answers] == list(range(20))
    assert len(made.broker.connections) == 1
    heard = made.broker.heard
    assert {header.client_id for header in heard} == {"broker-1-test"}
    assert [header.correlation_id for header in heard] == sorted({header.correlation_id for header in heard})
    assert made.connection.in_flight == 0


def test_records_of_an_answer_stay_what_they_were() -> None:
    """The receive buffer is used again by the next answer; what a caller was given is not."""

    def fetched(told: Told, header: RequestHeader, request: FetchRequest) -> None:
        records = bytes((request.max_wait_ms,)) * 100_000
        rows = [FetchResponsePartition(partition_index=0, records=records, verified_end=7)]
        told.answer(header, FetchResponse(responses=[FetchResponseTopic(partitions=rows)]))

    async def scenario(made: Trial) -> None:
        asked = [made.connection.ask(FetchRequest(max_wait_ms=value), 17, 5.0) for value in (1, 2, 3)]
        for value, answer in zip((1, 2, 3), await asyncio.gather(*asked), strict=True):
            assert isinstance(answer, FetchResponse)
            (partition,) = answer.responses[0].partitions
            assert partition.records == bytes((value,)) * 100_000
            assert (partition.verified_end, partition.reserved_end) == (7, -1)

    trial(scenario, fetched)


@by(trial, echo)
async def test_refused_broken_and_late_are_told_apart(made: Trial, /) -> None:
    """By their types; once the port takes connections again, the next request is answered."""
    assert (await made.ask(4)).controller_epoch == 4
    made.broker.rule = silent
    waiting = asyncio.ensure_future(made.ask(timeout_s=60))
    while not made.connection.in_flight:
        await asyncio.sleep(0.001)
    await made.broker.stop()
    made.broker.connections[0].transport.abort()
    with pytest.raises(ConnectionError, match="received: the connection was closed") as broken:
        await waiting
    assert not isinstance(broken.value, ConnectionRefusedError)
    with pytest.raises(ConnectionRefusedError, match="nothing was sent"):
        await made.ask()
    made.broker.rule = echo
    await made.broker.listen()
    assert (await made.ask(5)).controller_epoch == 5


@by(trial, silent)
async def test_a_late_answer_ends_the_connection_and_all_that_waits_behind_it(made: Trial, /) -> None:
    """Within its own time; who waits longer is told at once; the next request gets a new connection."""
    began = made.loop.time()
    behind = asyncio.ensure_future(made.ask(timeout_s=60))
    with pytest.raises(TimeoutError, match="no answer within 2 s"):
        await made.ask(timeout_s=2)
    assert made.loop.time() - began == pytest.approx(2)
    with pytest.raises(ConnectionError, match="there was no answer within 2 s"):
        await behind
    assert made.loop.time() - began < 2.1
    made.broker.rule = echo
    assert (await made.ask(6)).controller_epoch == 6
    assert len(made.broker.connections) == 2


@by(trial, silent)
async def test_who_gives_up_leaves_the_others_their_answers(made: Trial, /) -> None:
    """A cancelled request is answered into nothing; the one behind it gets its own."""
    held: list[tuple[Told, RequestHeader, Any]] = []
    made.broker.rule = lambda *heard: held.append(heard)
    first, second = (asyncio.ensure_future(made.ask(position)) for position in (1, 2))
    while len(held) < 2:
        await asyncio.sleep(0.001)
    first.cancel()
    await asyncio.sleep(0)
    assert made.connection.in_flight == 2
    for heard in held:
        echo(*heard)
    assert (await second).controller_epoch == 2
    with pytest.raises(asyncio.CancelledError):
        await first
    assert len(made.broker.connections) == 1


def _another_ones(told: Told, header: RequestHeader, request: Any) -> None:
    told.answer(RequestHeader(header.api_key, header.api_version, header.correlation_id + 1), BrokerHeartbeatResponse())


def _twice(told: Told, header: RequestHeader, request: Any) -> None:
    if len(told._broker.heard) == 2:
        echo(told, header, request)
    echo(told, header, request)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (lambda told, *_: told.transport.write(struct.pack(">i", FRAME_MAX + 1)), "frame claims 1048577 bytes"),
        (lambda told, *_: told.transport.write(struct.pack(">i", -1)), "frame claims -1 bytes"),
        (lambda told, *_: told.transport.write(struct.pack(">i", 3) + b"abc"), "too short for its header"),
        (lambda told, header, _: told.transport.write(struct.pack(">iix", 5, header.correlation_id)), "end before"),
        (_another_ones, "in place of request"),
    ],
)
def test_an_answer_that_cannot_be_read_ends_the_connection(rule: Any, why: str) -> None:
    """Frames above the limit, of no length, without a header, cut short, out of order: all that wait are told."""

    async def scenario(made: Trial) -> None:
        for failure in await asyncio.gather(*[made.ask() for _ in range(3)], return_exceptions=True):
            assert isinstance(failure, ConnectionError) and why in str(failure)
        made.broker.rule = echo
        assert (await made.ask(1)).controller_epoch == 1

    trial(scenario, rule)


@by(trial, _twice)
async def test_an_answer_to_nothing_ends_the_connection(made: Trial, /) -> None:
    assert (await made.ask(1)).controller_epoch == 1
    assert (await made.ask(2)).controller_epoch == 2
    while not made.broker.connections[0].is_lost:
        await asyncio.sleep(0.001)


def test_an_unsupported_version_is_an_error_that_says_so() -> None:
    def old(told: Told, header: RequestHeader, request: Any) -> None:
        told.answer(header, BrokerHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))

    async def scenario(made: Trial) -> None:
        with pytest.raises(UnsupportedByPeer, match="BROKER_HEARTBEAT in version 2"):
            await made.ask()

    trial(scenario, old)


@by(trial, silent)
async def test_what_is_in_flight_is_bounded(made: Trial, /, monkeypatch: pytest.MonkeyPatch) -> None:
    """In number and in bytes; beyond it nothing is sent, and the connection stays."""
    monkeypatch.setattr(stream, "IN_FLIGHT_MAX", 3)
    waiting = [asyncio.ensure_future(made.ask(timeout_s=30)) for _ in range(3)]
    while len(made.broker.heard) < 3:
        await asyncio.sleep(0.001)
    with pytest.raises(PeerBusy, match="3 requests"):
        await made.ask()
    monkeypatch.setattr(stream, "IN_FLIGHT_MAX", 256)
    monkeypatch.setattr(stream, "IN_FLIGHT_BYTES_MAX", 100)
    with pytest.raises(PeerBusy, match="bytes are waiting"):
        await made.ask()
    made.connection.close()
    for failure in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(failure, ConnectionError)
    assert len(made.broker.heard) == 3


@by(trial, echo)
async def test_a_closed_connection_asks_nothing_more(made: Trial, /) -> None:
    """Neither who waited for it to be made, nor who comes later."""
    early = asyncio.ensure_future(made.ask())
    await asyncio.sleep(0)
    made.connection.close()
    with pytest.raises(ConnectionError, match="this broker closed the connection"):
        await early
    with pytest.raises(ConnectionError, match="this broker closed the connection"):
        await made.ask()
    assert made.broker.heard == []
