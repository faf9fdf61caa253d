"""What only the controller decides, asked of any broker: sent on once or twice, answered when it is obeyed here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.following.image_feed import ImageFeed
from broker.following.metadata_cache import MetadataCache
from broker.metadata.cluster_content import ControllerAt
from broker.metadata.cluster_root import ImageAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import Endpoint, Node
from broker.net.dispatch import Peer
from broker.peers import forward
from broker.peers.forward import Forward
from broker.peers.links import Links
from broker.wire.framing import RequestHeader
from broker.wire.messages import EnvelopeRequest, EnvelopeResponse
from seams.rng import SeededRng
from tests.sim.world.net import SimNet
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.net.scripted_broker import ScriptedBroker, Told
from tests.support.scenario import by

CLIENT = Peer(7, "10.1.2.3:4567", "OUTER", principal="User:alice")
FRAME = b"a request"


class Cluster:
    """This broker, 1, and scripted ones, 2 and 3, each at a port of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.net = SimNet(self.loop, SeededRng("forward"))
        self.metadata = MetadataCache("cluster")
        self.feed = ImageFeed(self)  # type: ignore[arg-type]
        links = Links(self.net, 1, "INNER", 1 << 20)  # type: ignore[arg-type]
        self.forward = Forward(self.metadata, self.feed, links, 1, "INNER")
        self.brokers = {at: ScriptedBroker(self.net, decided, ("127.0.0.1", 9500 + at)) for at in (2, 3)}
        self.obeys(10, 2)

    @property
    def image(self) -> ClusterImage:
        return self.metadata.image

    def publish(self, image: ClusterImage, controller: ControllerAt | None) -> None:
        self.metadata.swap(image, controller)

    def obeys(self, position: int, controller: int, epoch: int = 1) -> None:
        """The image of `position` is there, in which this node is the controller."""
        nodes = {at: Node(at, at, "d", f"i{at}", "boot", (Endpoint("INNER", "127.0.0.1", 9500 + at),)) for at in (2, 3)}
        at = ControllerAt(controller, f"i{controller}", epoch)
        assert self.feed.take(ImageAt(position, ClusterImage(nodes=nodes), at))

    async def listen(self) -> Cluster:
        for broker in self.brokers.values():
            await broker.listen()
        return self

    async def ask(self, timeout_s: float = 30.0) -> bytes | None:
        return await self.forward.to_controller(CLIENT, FRAME, timeout_s)

    @property
    def heard(self) -> tuple[int, int]:
        """How often each was asked."""
        return len(self.brokers[2].heard), len(self.brokers[3].heard)


def decided(told: Told, header: RequestHeader, request: EnvelopeRequest) -> None:
    told.answer(header, EnvelopeResponse(response_data=b"its answer", position=10))


def is_none(told: Told, header: RequestHeader, request: EnvelopeRequest) -> None:
    told.answer(header, EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER))


def in_cluster(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def played() -> None:
        await scenario(await Cluster().listen())

    run_fast(played(), timeout_s=HOUR_S)


@by(in_cluster)
async def test_a_request_goes_whole_with_who_asked_it(cluster: Cluster, /) -> None:
    """Frame, principal, address and listener; the answer comes back as it is."""
    told_with: list[EnvelopeRequest] = []

    def remember(told: Told, header: RequestHeader, request: EnvelopeRequest) -> None:
        told_with.append(request)
        decided(told, header, request)

    cluster.brokers[2].rule = remember
    assert cluster.forward.is_elsewhere()
    assert await cluster.ask() == b"its answer"
    assert told_with == [EnvelopeRequest(FRAME, b"User:alice", bytes((10, 1, 2, 3)), "OUTER")]
    assert cluster.heard == (1, 0)


@pytest.mark.parametrize("own", [True, False])
@by(in_cluster)
async def test_without_another_controller_nobody_is_asked(cluster: Cluster, /, own: bool) -> None:
    if own:
        cluster.obeys(11, 1)
    else:
        cluster.metadata.controller = None
    assert not cluster.forward.is_elsewhere()
    assert await cluster.ask() is None
    assert cluster.heard == (0, 0)


@by(in_cluster)
async def test_who_is_not_the_controller_any_more_is_asked_once_and_the_next_one_then(cluster: Cluster, /) -> None:
    """As soon as the image names it."""
    cluster.brokers[2].rule = is_none
    cluster.loop.call_later(2.0, cluster.obeys, 10, 3, 2)
    assert await cluster.ask() == b"its answer"
    assert cluster.heard == (1, 1)
    assert 2.0 <= cluster.loop.time() < 2.1


@by(in_cluster)
async def test_for_a_client_that_went_meanwhile_the_next_controller_is_not_asked(cluster: Cluster, /) -> None:
    """Regression: the request was sent again, and deleted the topic that its client had made again through another
    broker."""
    cluster.brokers[2].rule = is_none
    client = Peer(7, "10.1.2.3:4567", "OUTER", principal="User:alice")
    cluster.loop.call_later(1.0, setattr, client, "closed", True)
    cluster.loop.call_later(2.0, cluster.obeys, 10, 3, 2)
    assert await cluster.forward.to_controller(client, FRAME, 30.0) is None
    assert cluster.heard == (1, 0)


@by(in_cluster)
async def test_when_the_image_names_nobody_else_it_is_not_asked_again(cluster: Cluster, /) -> None:
    cluster.brokers[2].rule = is_none
    assert await cluster.ask() is None
    assert cluster.heard == (1, 0)
    cluster.brokers[3].rule = is_none
    cluster.obeys(10, 3, 2)
    cluster.loop.call_later(1.0, cluster.obeys, 10, 2, 3)
    assert await cluster.ask() is None, "two are asked, not three"
    assert cluster.heard == (2, 1)


@by(in_cluster)
async def test_a_controller_that_is_gone_is_waited_for_no_longer_than_for_its_successor(cluster: Cluster, /) -> None:
    """Nobody listens: nothing was sent, so another may be asked; this broker too, when it is the next."""
    await cluster.brokers[2].stop()
    cluster.loop.call_later(3.0, cluster.obeys, 10, 3, 2)
    assert await cluster.ask() == b"its answer"
    await cluster.brokers[3].die()
    await asyncio.sleep(1.0)
    cluster.loop.call_later(1.0, cluster.obeys, 10, 1, 3)
    assert await cluster.ask() is None
    assert cluster.heard == (0, 1)


@by(in_cluster)
async def test_what_may_have_been_heard_is_not_sent_again(cluster: Cluster, /) -> None:
    """The connection broke, or no answer came in time: the client looks whether it came true, as in Kafka."""
    cluster.brokers[2].rule = lambda told, *_: told.transport.abort()
    assert await cluster.ask() is None
    cluster.brokers[2].rule = lambda *_: None
    began = cluster.loop.time()
    assert await cluster.ask(timeout_s=3.0) is None
    assert cluster.loop.time() - began == pytest.approx(3.0)
    assert cluster.heard == (2, 0)


@by(in_cluster)
async def test_an_answer_waits_until_this_broker_obeys_what_it_tells(cluster: Cluster, /) -> None:
    """So that who asked reads here what it wrote; and no longer than `APPLY_WAIT_S`, for it is a fact already."""

    def ahead(told: Told, header: RequestHeader, request: Any) -> None:
        told.answer(header, EnvelopeResponse(response_data=b"done", position=12))

    cluster.brokers[2].rule = ahead
    asked = asyncio.ensure_future(cluster.ask())
    await asyncio.sleep(1.0)
    cluster.obeys(11, 2)
    await asyncio.sleep(1.0)
    assert not asked.done()
    cluster.obeys(12, 2)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asked.done() and await asked == b"done"
    cluster.brokers[2].rule = lambda told, header, _: told.answer(
        header, EnvelopeResponse(response_data=b"late", position=99)
    )
    began = cluster.loop.time()
    assert await cluster.ask() == b"late"
    assert cluster.loop.time() - began == pytest.approx(forward.APPLY_WAIT_S, abs=0.1)


@by(in_cluster)
async def test_requests_of_several_clients_do_not_wait_for_one_another(cluster: Cluster, /) -> None:
    """Answers of one connection come in order; so what waits long leaves other connections to others."""
    held: list[tuple[Told, RequestHeader, Any]] = []
    cluster.brokers[2].rule = lambda *heard: held.append(heard)
    slow = asyncio.ensure_future(cluster.ask())
    while not held:
        await asyncio.sleep(0.001)
    cluster.brokers[2].rule = decided
    assert await cluster.ask() == b"its answer"
    assert not slow.done()
    decided(*held[0])
    assert await slow == b"its answer"


@by(in_cluster)
async def test_what_is_too_long_is_not_sent(cluster: Cluster, /) -> None:
    too_long = bytes(forward.FORWARDED_BYTES_MAX + 1)
    assert await cluster.forward.to_controller(CLIENT, too_long, 30.0) is None
    assert cluster.heard == (0, 0)
