"""Brokers over TLS on the simulated network: pieces of any size, latency, and ends of connections."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from broker.peers.links import Links
from broker.wire.messages import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from seams.files.disk import replace_file
from tests.support.brokers.broker_kit import Life, Place
from tests.support.net.certificates import Authority, Signed
from tests.support.net.tls_peer import authority, listener_tls

ALWAYS = {"begins": timedelta(days=-20_000), "lasts": timedelta(days=9_000)}  # whatever the simulated date

SETTINGS = (
    "security.inter.broker.protocol=SSL",
    "ssl.keystore.location=/tls/broker.pem",
    "ssl.truststore.location=/tls/ca.pem",
    "ssl.client.auth=required",
)


async def started(place: Place) -> Life:
    place.disk.make_dirs("/tls")
    replace_file(place.disk, "/tls/broker.pem", authority().sign("broker-1", **ALWAYS).pem().encode())
    replace_file(place.disk, "/tls/ca.pem", authority().pem.encode())
    return await place.start()


def links(place: Place, signed: Signed | None, trusts: Authority, algorithm: str = "https") -> Links:
    configs = {"truststore_certificates": trusts.pem, "endpoint_identification_algorithm": algorithm}
    tls = listener_tls(signed, **configs)
    return Links(place.net, 1, "BROKERS", 1 << 20, tls)  # type: ignore[arg-type]


async def test_a_broker_answers_another_over_mutual_tls() -> None:
    """Many requests at once, in order, and over a second connection after the first was cut."""
    place = Place(*SETTINGS)
    life = await started(place)
    node = life.context.metadata.image.nodes[life.context.config.node_id]
    made = links(place, authority().sign("broker-2"), authority())
    connection = made.to(node, "heartbeat")
    for _ in range(2):
        for _ in range(20):
            answer = await connection.ask(BrokerHeartbeatRequest(broker_id=9), 2, 5.0)
            assert isinstance(answer, BrokerHeartbeatResponse)
        for transport in list(place.net.open):
            place.net.cut(transport)
        await asyncio.sleep(1)
    await connection.ask(BrokerHeartbeatRequest(broker_id=9), 2, 5.0)
    peers = [one.peer for one in life.broker._listening.server._connections]
    assert peers and all(peer.principal == "User:CN=broker-2" for peer in peers)
    made.close()
    await life.stop()


@pytest.mark.parametrize("kind", ["another CA", "another name", "unknown server"])
async def test_who_is_not_trusted_gets_no_answer(kind: str) -> None:
    """The refused side says why; nothing was sent."""
    place = Place(*SETTINGS)
    life = await started(place)
    node = life.context.metadata.image.nodes[life.context.config.node_id]
    stranger = Authority("Another CA")
    if kind == "another CA":
        made, says = links(place, stranger.sign("broker-2"), authority()), "TLS|closed"
    elif kind == "unknown server":
        made, says = links(place, None, stranger), "no TLS session; nothing was sent: certificate verify failed"
    else:
        replace_file(
            place.disk, "/tls/broker.pem", authority().sign("broker-1", ["elsewhere"], **ALWAYS).pem().encode()
        )
        tls = life.broker._listening.certificates.of("BROKERS")
        assert tls is not None
        tls._made = tls._make()
        made, says = links(place, None, authority()), "no TLS session.*not valid for"
    with pytest.raises(ConnectionError, match=says):
        await made.to(node, "heartbeat").ask(BrokerHeartbeatRequest(broker_id=9), 2, 5.0)
    made.close()
    await life.stop()
