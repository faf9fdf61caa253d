"""What brokers ask the controller, from one end to the other: who asks, connections, handlers, the door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from broker.config.times import ClusterTimes
from broker.controller.broker_rpc import (
    AnsweredAt,
    ProposalsRequest,
    SessionHeartbeat,
    SessionHeartbeatResponse,
    SessionRequest,
)
from broker.controller.decisions.fitness import FIT, Fitness
from broker.controller.remote_controller import RemoteController
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.records import Endpoint
from broker.peers.links import Links
from broker.replication.isr_policy import PartitionProposal
from logformat.errors import Retryable
from logformat.values import uuid_text
from tests.support.brokers.broker_kit import Life, Place

T1, T2 = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
REGISTRATION = SessionRequest(
    node_id=7,
    cluster_id="AAAAAAAAAAAAAAAAAAAAAA",
    incarnation="0123456789abcdef0123456789abcdef",
    directory_id=uuid_text(bytes(range(16))),
    boot_id="boot-1",
    listeners=(Endpoint("OUTER", "db7.example", 65_535), Endpoint("BROKERS", "10.0.0.7", 1)),
    rack="north",
    previous_broker_epoch=1 << 40,
    lost_logs=((T1, 0), (T1, 3), (T2, 1)),
    take_over=True,
)
HEARTBEAT = SessionHeartbeat(
    7,
    1 << 41,
    123_456,
    Fitness(True, unfit=((T2, 5), (T1, 0)), lost_logs=((T1, 3),)),
    wants_shutdown=True,
    no_claim_s=2.5,
    since=AnsweredAt(3, 1 << 43),
)
PROPOSALS = ProposalsRequest(
    7,
    9,
    (
        PartitionProposal((T1, 0), 3, 4, ((7, 9), (8, 10))),
        PartitionProposal((T1, 2), 5, 6, (), is_done=False),
        PartitionProposal((T2, 0), 7, 8, ((7, 9),)),
        PartitionProposal((T1, 1), 9, 10, ((8, 10),)),
    ),
)


class Door:
    """`BrokerRpc`, as a test wants it."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.refusal: Exception | None = None
        self.answer = SessionHeartbeatResponse(3)
        self.codes: tuple[ErrorCode, ...] = ()
        self.parked: asyncio.Event | None = None
        self.silence: asyncio.Event | None = None
        self.gone: list[tuple[int, int]] = []

    async def _heard(self, asked: object) -> None:
        self.asked.append(asked)
        if self.silence is not None:
            await self.silence.wait()
        if self.refusal is not None:
            raise self.refusal

    async def register(self, asked: SessionRequest) -> int:
        await self._heard(asked)
        return 1 << 42

    async def heartbeat(self, asked: SessionHeartbeat) -> SessionHeartbeatResponse:
        await self._heard(asked)
        if self.parked is not None:
            await self.parked.wait()
        return self.answer

    async def alter_partition(self, asked: ProposalsRequest) -> tuple[ErrorCode, ...]:
        await self._heard(asked)
        return self.codes

    def closed(self, node_id: int, broker_epoch: int) -> None:
        self.gone.append((node_id, broker_epoch))


@asynccontextmanager
async def controller(door: Door | None) -> AsyncIterator[tuple[RemoteController, Links, Life]]:
    """A broker with this door, and who asks it from another."""
    place = Place()
    life = await place.start()
    life.dispatcher.context = replace(life.context, brokers=door)
    node = life.context.metadata.image.nodes[life.context.config.node_id]
    links = Links(place.net, 7, life.context.config.brokers_listener, 1 << 20)  # type: ignore[arg-type]
    yield RemoteController(lambda purpose: links.to(node, purpose), ClusterTimes()), links, life
    links.close()
    await life.stop()


async def test_what_is_asked_and_answered_comes_over_whole() -> None:
    """Every field, there and back; proposals in their order, also where a topic comes twice."""
    door = Door()
    async with controller(door) as (remote, _, _):
        assert await remote.register(REGISTRATION) == 1 << 42
        door.answer = SessionHeartbeatResponse(
            5, root=b'{"a":1}', store_away=True, lease_counter=1 << 40, may_stop=True, boottime_ms=1 << 42
        )
        assert await remote.heartbeat(HEARTBEAT) == door.answer
        door.answer = SessionHeartbeatResponse(5, is_disputed=True, boottime_ms=1)
        assert await remote.heartbeat(HEARTBEAT) == door.answer
        door.answer = SessionHeartbeatResponse(0)
        assert await remote.heartbeat(replace(HEARTBEAT, fitness=FIT, wants_shutdown=False)) == door.answer
        door.codes = (
            ErrorCode.NONE,
            ErrorCode.FENCED_LEADER_EPOCH,
            ErrorCode.INELIGIBLE_REPLICA,
            ErrorCode.UNKNOWN_TOPIC_ID,
        )
        assert await remote.alter_partition(PROPOSALS) == door.codes
        assert door.asked[0] == REGISTRATION and door.asked[1] == HEARTBEAT and door.asked[4] == PROPOSALS


async def test_a_decision_is_waited_for_no_longer_than_a_session_lasts() -> None:
    """Of a controller that is cut off: while somebody waited 30 s for it, another decided, and nobody served (simulated
    seeds 30, 45, 48 of several brokers)."""
    door, loop = Door(), asyncio.get_running_loop()
    async with controller(door) as (remote, _, _):
        door.silence = asyncio.Event()
        for ask in (lambda: remote.register(REGISTRATION), lambda: remote.alter_partition(PROPOSALS)):
            began_s = loop.time()
            with pytest.raises(TimeoutError):
                await ask()
            assert loop.time() - began_s == pytest.approx(ClusterTimes().session_s, abs=1.0)
        door.silence.set()


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.NOT_CONTROLLER, ErrorCode.INVALID_REQUEST])
async def test_a_refusal_comes_back_as_it_was_raised(code: ErrorCode) -> None:
    """With its words, where there is room for them; what is to be asked again later, as that."""
    door = Door()
    async with controller(door) as (remote, _, _):
        door.refusal = ApiError(code, "what to do")
        with pytest.raises(ApiError, match="what to do") as refused:
            await remote.register(REGISTRATION)
        assert refused.value.code is code
        for asking in remote.heartbeat(HEARTBEAT), remote.alter_partition(PROPOSALS):
            with pytest.raises(ApiError) as refused:
                await asking
            assert refused.value.code is code
        door.refusal = Retryable("the bucket is away")
        with pytest.raises(Retryable, match="the bucket is away"):
            await remote.register(REGISTRATION)
        with pytest.raises(Retryable):
            await remote.heartbeat(HEARTBEAT)


async def test_who_does_not_decide_says_so_and_nothing_else() -> None:
    async with controller(None) as (remote, _, _):
        asked = remote.register(REGISTRATION), remote.heartbeat(HEARTBEAT), remote.alter_partition(PROPOSALS)
        for asking in asked:
            with pytest.raises(ApiError) as refused:
                await asking
            assert refused.value.code is ErrorCode.NOT_CONTROLLER


async def test_cluster_d09_nothing_waits_behind_a_parked_heartbeat() -> None:
    """It has a connection of its own: what is asked meanwhile is answered meanwhile."""
    door = Door()
    door.parked = asyncio.Event()
    async with controller(door) as (remote, _, _):
        parked = asyncio.ensure_future(remote.heartbeat(HEARTBEAT))
        door.codes = (ErrorCode.NONE,) * len(PROPOSALS.proposals)
        await remote.alter_partition(PROPOSALS)
        await remote.register(REGISTRATION)
        assert HEARTBEAT in door.asked and not parked.done()
        door.parked.set()
        assert await parked == door.answer


async def test_the_controller_hears_that_the_connection_of_heartbeats_was_closed() -> None:
    """Of the session that beat by it, once; of the other connection nothing is said."""
    door = Door()
    async with controller(door) as (remote, links, _):
        await remote.register(REGISTRATION)
        await remote.heartbeat(HEARTBEAT)
        assert door.gone == []
        links.close()
        async with asyncio.timeout(5):
            while not door.gone:
                await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        assert door.gone == [(HEARTBEAT.node_id, HEARTBEAT.broker_epoch)]
