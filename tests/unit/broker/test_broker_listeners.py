"""A broker with several listeners: what it tells whom, and what it registers."""

from __future__ import annotations

import pytest

from broker.error_codes import ErrorCode
from broker.membership.session import Refused
from broker.metadata.records import Endpoint
from broker.net.dispatch import Peer
from broker.wire.apis import ApiKey
from broker.wire.messages import DescribeClusterRequest, FindCoordinatorRequest, MetadataRequest
from tests.support.brokers.broker_kit import Place, fetch_request

SETTINGS = (
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT",
    "listeners=PLAINTEXT://127.0.0.1:0,INNER://127.0.0.1:0",
    "advertised.listeners=PLAINTEXT://out.example:19092,INNER://in.example:0",
    "inter.broker.listener.name=INNER",
)


async def test_the_image_has_every_listener_with_the_port_really_bound() -> None:
    """What other brokers will read. Until 2026-11-22 a node registered port 0 where the system picked one."""
    life = await Place(*SETTINGS).start()
    server = life.broker.components.server
    assert server is not None
    bound = server.addresses
    (node,) = life.context.metadata.image.nodes.values()
    assert [(one.name, one.host, one.port) for one in node.listeners] == [
        ("PLAINTEXT", "out.example", 19092),
        ("INNER", "in.example", bound["INNER"][1]),
    ]
    assert bound["INNER"][1] > 0 and bound["PLAINTEXT"] != bound["INNER"]
    assert life.broker.ready_line().endswith(
        f"listeners=PLAINTEXT://127.0.0.1:{bound['PLAINTEXT'][1]},INNER://127.0.0.1:{bound['INNER'][1]}"
    )
    await life.stop()


async def test_with_one_listener_the_ready_line_is_as_ever() -> None:
    """And so is all that clients are told, though brokers have one more."""
    life = await Place().start()
    line = life.broker.ready_line()
    assert line.startswith("ready kafka=127.0.0.1:9001 http=- node=1 cluster=") and "listeners=" not in line
    assert life.context.live_configs["listeners"] == "PLAINTEXT://127.0.0.1:9001"
    metadata = await life.call(ApiKey.METADATA, MetadataRequest(topics=[]))
    assert [(one.host, one.port) for one in metadata.brokers] == [("127.0.0.1", 9001)]
    await life.stop()


async def test_a_lone_broker_has_a_listener_that_only_brokers_use() -> None:
    """Bound, registered with its port so that others find it, and open for what only they may ask: a second broker can
    join without a restart of the first."""
    life = await Place().start()
    server = life.broker.components.server
    assert server is not None
    host, port = server.addresses["BROKERS"]
    (node,) = life.context.metadata.image.nodes.values()
    assert node.listeners[1:] == (Endpoint("BROKERS", host, port),) and port > 0
    assert life.context.live_configs["thermocline.internal"] == f"{host}:{port}"
    await life.create("log")
    asked = fetch_request(("log", 0, 0), replica_id=1)
    for name, refused in (("PLAINTEXT", ErrorCode.CLUSTER_AUTHORIZATION_FAILED), ("BROKERS", ErrorCode.NONE)):
        answer = await life.call(ApiKey.FETCH, asked, peer=Peer(5, "127.0.0.1:50000", name))
        assert answer.error_code == refused
    await life.stop()


async def test_a_port_of_the_brokers_listener_that_is_taken_is_a_refused_start() -> None:
    """By its own flag; the clients' address is free again."""
    place = Place()
    place.net.listeners["127.0.0.1", 9100] = object()  # type: ignore[assignment]
    with pytest.raises(Refused, match=r"9100.*choose another with --internal"):
        await place.start("thermocline.internal=127.0.0.1:9100")
    assert list(place.net.listeners) == [("127.0.0.1", 9100)]


@pytest.mark.parametrize(("listener", "host"), [("PLAINTEXT", "out.example"), ("INNER", "in.example")])
async def test_answers_name_the_address_of_the_listener_the_asker_came_by(listener: str, host: str) -> None:
    """Metadata, DescribeCluster, FindCoordinator in both of its shapes."""
    life = await Place(*SETTINGS).start()
    peer = Peer(5, "127.0.0.1:50000", listener)
    metadata = await life.call(ApiKey.METADATA, MetadataRequest(topics=[]), peer=peer)
    cluster = await life.call(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), peer=peer)
    one = await life.call(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key="g"), 2, peer)
    many = await life.call(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(coordinator_keys=["g"]), peer=peer)
    told = [*metadata.brokers, *cluster.brokers, one, *many.coordinators]
    assert [found.host for found in told] == [host] * 4
    assert len({found.port for found in told}) == 1
    await life.stop()
