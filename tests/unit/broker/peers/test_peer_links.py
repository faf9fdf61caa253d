"""One connection for each node and purpose, to the session that the image names."""

from __future__ import annotations

import asyncio

import pytest

from broker.error_codes import ErrorCode
from broker.metadata.records import Endpoint, Node
from broker.peers.links import Links, NoWayThere
from broker.wire.apis import ApiKey
from broker.wire.messages import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from seams.net import SocketBuffers
from seams.rng import SeededRng
from tests.sim.world.net import SimNet
from tests.support.brokers.broker_kit import Place


def node(node_id: int = 2, broker_epoch: int = 5, port: int = 9500, listener: str = "INNER") -> Node:
    listeners = (Endpoint("OUTER", "127.0.0.1", 1), Endpoint(listener, "127.0.0.1", port))
    return Node(node_id, broker_epoch, "directory", "incarnation", "boot", listeners)


def links(loop: asyncio.AbstractEventLoop) -> Links:
    return Links(SimNet(loop, SeededRng("links")), 1, "INNER", 1 << 20)  # type: ignore[arg-type]


async def test_a_connection_is_kept_for_each_node_and_purpose() -> None:
    made = links(asyncio.get_running_loop())
    first = made.to(node(), "heartbeat")
    assert first is made.to(node(), "heartbeat")
    assert first is not made.to(node(), "requests")
    assert first is not made.to(node(3, 6, 9501), "heartbeat")
    assert first.address == ("127.0.0.1", 9500)


@pytest.mark.parametrize("later", [node(broker_epoch=6), node(port=9600)])
async def test_another_session_or_address_is_another_connection(later: Node) -> None:
    """Also when it comes by a newer image; who waits on the old one is told."""
    made = links(asyncio.get_running_loop())
    old = made.to(node(), "heartbeat")
    assert made.to(later, "heartbeat") is not old
    with pytest.raises(ConnectionError, match="this broker closed the connection"):
        await old.ask(BrokerHeartbeatRequest(), 2, 1.0)


async def test_a_newer_image_closes_what_is_over() -> None:
    """Gone nodes and earlier sessions; those of the image, and later ones, stay."""
    made = links(asyncio.get_running_loop())
    gone, earlier, same, later = (made.to(node(at, 5), "heartbeat") for at in (2, 3, 4, 5))
    made.close_ended({3: node(3, 6), 4: node(4, 5), 5: node(5, 4)})
    for closed in gone, earlier:
        with pytest.raises(ConnectionError, match="this broker closed the connection"):
            await closed.ask(BrokerHeartbeatRequest(), 2, 1.0)
    for kept in same, later:
        with pytest.raises(ConnectionRefusedError):
            await kept.ask(BrokerHeartbeatRequest(), 2, 1.0)


async def test_a_node_without_the_brokers_listener_is_told() -> None:
    made = links(asyncio.get_running_loop())
    with pytest.raises(NoWayThere, match="broker 2 has no listener INNER: give all brokers the same"):
        made.to(node(listener="OTHER"), "heartbeat")
    made.close()
    with pytest.raises(NoWayThere, match="this broker is stopping"):
        made.to(node(), "heartbeat")


async def test_a_broker_answers_another_on_the_listener_of_brokers() -> None:
    """A whole broker, asked on the address that its own image tells; on the listener of clients it refuses."""
    place = Place()
    life = await place.start()
    image = life.context.metadata.image
    asked = BrokerHeartbeatRequest(broker_id=9)
    answers = []
    for listener in (life.broker._config.brokers_listener, "PLAINTEXT"):
        made = Links(place.net, 1, listener, 1 << 20)  # type: ignore[arg-type]
        answers.append(await made.to(image.nodes[life.context.config.node_id], "heartbeat").ask(asked, 2, 5.0))
        made.close()
    inside, outside = answers
    assert isinstance(inside, BrokerHeartbeatResponse) and isinstance(outside, BrokerHeartbeatResponse)
    assert inside.error_code not in (ErrorCode.NONE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert outside.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert life.broker.metrics.requests[ApiKey.BROKER_HEARTBEAT] == 2
    await life.stop()


async def test_a_port_refuses_accepts_or_swallows() -> None:
    """Only a refusal says that nobody is there; who accepts is not kept."""
    net = SimNet(loop := asyncio.get_running_loop(), SeededRng("links"))  # type: ignore[arg-type]
    made = Links(net, 1, "INNER", 1 << 20)  # type: ignore[arg-type]
    assert await made.refuses(node())
    assert not await made.refuses(node(listener="OTHER"))
    listener = await net.bind("127.0.0.1", 9500, asyncio.Protocol, SocketBuffers())
    assert await made.refuses(node()), "bound, not accepting"
    await listener.accept()
    assert not await made.refuses(node())
    await asyncio.sleep(1)
    assert not net.open
    net.dark.add("")
    began_s = loop.time()
    assert not await made.refuses(node())
    assert loop.time() - began_s < 0.5
    net.dark.clear()
    await listener.close()
    made.close()
    assert not await made.refuses(node())
