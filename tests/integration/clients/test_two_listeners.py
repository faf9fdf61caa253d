"""One broker, two listeners: stock clients see the address of the one they came by, and reach everything through it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.client import AIOKafkaClient
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from tests.support.clients.stock_clients import READS, WRITES, Written, create_topic
from tests.support.processes.broker_process import BrokerProcess, running_broker

pytestmark = pytest.mark.timeout(120)

LISTENERS = {
    "listeners": "INNER://127.0.0.1:0,OUTER://127.0.0.1:0",
    "advertised.listeners": "INNER://127.0.0.1:0,OUTER://localhost:0",  # two names of one machine
    "listener.security.protocol.map": "INNER:PLAINTEXT,OUTER:PLAINTEXT",
    "inter.broker.listener.name": "INNER",
}
HOSTS = {"INNER": "127.0.0.1", "OUTER": "localhost"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory: Path = tmp_path_factory.mktemp("two-listeners")
    (directory / "server.properties").write_text("\n".join(f"{key}={value}" for key, value in LISTENERS.items()))
    with running_broker(directory / "data", None, "--config", str(directory / "server.properties"), listen=None) as one:
        yield one


def advertised(broker: BrokerProcess) -> dict[str, str]:
    """Listener name → what its clients are told, by the ready line."""
    found = {}
    for entry in broker.ready["listeners"].split(","):
        name, _, address = entry.partition("://")
        found[name] = f"{HOSTS[name]}:{address.rpartition(':')[2]}"
    return found


def test_the_ready_line_names_both_and_bootstrap_is_the_first(broker: BrokerProcess) -> None:
    """`kafka=` stays one address; the rest stands at the end of the line."""
    assert list(advertised(broker)) == ["INNER", "OUTER"]
    assert broker.ready["listeners"].startswith(f"INNER://{broker.kafka},OUTER://127.0.0.1:")
    assert list(broker.ready)[-1] == "listeners"
    assert len(set(advertised(broker).values())) == 2


@pytest.mark.parametrize("name", HOSTS)
def test_every_answer_that_names_a_broker_gives_the_address_of_the_askers_listener(
    broker: BrokerProcess, name: str
) -> None:
    """Metadata, DescribeCluster and FindCoordinator, as three stock clients understand them."""
    own = advertised(broker)[name]
    confluent = AdminClient({"bootstrap.servers": own})
    told = confluent.list_topics(timeout=20).brokers.values()
    assert [f"{one.host}:{one.port}" for one in told] == [own]
    cluster = confluent.describe_cluster(request_timeout=20).result()
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [own]
    group = confluent.describe_consumer_groups(["of-nobody"], request_timeout=20)["of-nobody"].result()
    assert f"{group.coordinator.host}:{group.coordinator.port}" == own

    python = KafkaAdminClient(bootstrap_servers=own)
    assert [f"{one['host']}:{one['port']}" for one in python.describe_cluster()["brokers"]] == [own]
    python.close()

    async def aio() -> list[str]:
        client = AIOKafkaClient(bootstrap_servers=own)
        await client.bootstrap()
        found = [f"{one.host}:{one.port}" for one in client.cluster.brokers() if one.nodeId == 1]
        await client.close()
        return found

    assert asyncio.run(aio()) == [own]


@pytest.mark.parametrize("client", sorted(WRITES))
def test_what_is_written_by_one_listener_is_read_by_the_other(broker: BrokerProcess, client: str) -> None:
    """One log, whichever way one comes."""
    addresses = advertised(broker)
    topic = f"both-ways-{client}"
    create_topic(addresses["INNER"], topic, 1)
    write = WRITES[client][0]
    write(addresses["INNER"], topic, 0, [Written(b"k", b"from inside")], "none", True)
    write(addresses["OUTER"], topic, 0, [Written(b"k", b"from outside")], "none", True)
    for own in addresses.values():
        records = READS[client][0](own, topic, {0: 2})
        assert [record.value for record in records] == [b"from inside", b"from outside"]


def test_a_group_has_members_of_both_listeners(broker: BrokerProcess) -> None:
    """Each finds the coordinator by its own address, and gets its share of the partitions."""
    addresses = advertised(broker)
    create_topic(addresses["INNER"], "shared-out", 2)
    members = []
    for own in addresses.values():
        member = Consumer({"bootstrap.servers": own, "group.id": "both", "auto.offset.reset": "earliest"})
        member.subscribe(["shared-out"])
        members.append(member)
    for _ in range(600):
        if [len(member.assignment()) for member in members] == [1, 1]:
            break
        for member in members:
            member.poll(0.05)
    shares = [member.assignment() for member in members]
    assert sorted(share[0].partition for share in shares) == [0, 1]
    for member in members:
        member.close()
