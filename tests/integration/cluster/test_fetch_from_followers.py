"""Stock clients that read from the replica in their rack (KIP-392): three real brokers in racks a, b, c.

Who served is read off `/metrics` of each broker: bytes, not settings. A client finds its replica by itself.
"""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.clients.stock_clients import Reader, Written, read_aiokafka, read_confluent, write_confluent
from tests.support.kafka.kafka_console import kafka_console
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import Three
from tests.support.store.buckets import DirectoryBucket

HOT, COLD = "hot", "cold"
RACKS = {1: "a", 2: "b", 3: "c"}
COUNT = 1000
counts: dict[str, int] = {}
VALUE = b"x" * 200
SMALL = {"remote_storage_enable": "true", "internal_segment_bytes": 20_000, "local_retention_bytes": 1}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("racks")
    site = Site(folder, DirectoryBucket(folder / "bucket"))
    site.settings["replica.selector.class"] = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    return site


@pytest.fixture(scope="module")
def cluster(site: Site) -> Iterator[Three]:
    """In racks, with one topic on their disks and one whose history is in the bucket alone."""
    with contextlib.ExitStack() as stack:
        cluster = Three(site, stack)
        started = [cluster.start(node_id, "--rack", rack, wait_ready=False) for node_id, rack in RACKS.items()]
        for broker in started:
            broker.await_ready()
        cluster.wait_active(*RACKS)
        cluster.create(HOT, min_insync_replicas=2)
        cluster.create(COLD, min_insync_replicas=2, **SMALL)
        for topic in (HOT, COLD):
            write(cluster, topic)
        cluster.wait(cluster.is_whole, "all replicas in sync")
        counts[HOT], counts[COLD] = COUNT, sunk(site, cluster)
        yield cluster


def write(cluster: Three, topic: str, count: int = COUNT, first: int = 0) -> None:
    records = [Written(None, b"%05d" % at + VALUE) for at in range(first, first + count)]
    write_confluent(cluster.everywhere, topic, 0, records, "none", True)


def served(cluster: Three, node_id: int) -> tuple[float, float]:
    """Record bytes that a broker sent to consumers of both topics, and those of them that it sent as a follower."""
    with urllib.request.urlopen(f"http://{cluster.brokers[node_id].http}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    named = tuple(f'thermocline_topic_fetched_bytes_total{{topic="{topic}"' for topic in (HOT, COLD))
    total = sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(named))
    (followed,) = (line for line in lines if line.startswith("thermocline_followed_fetch_bytes_total"))
    return total, float(followed.rsplit(" ", 1)[1])


def all_served(cluster: Three) -> dict[int, tuple[float, float]]:
    return {node_id: served(cluster, node_id) for node_id in RACKS}


def only_served_by(cluster: Three, node_id: int, before: dict[int, tuple[float, float]]) -> None:
    """Every byte that was read since came from one follower."""
    for each in RACKS:
        (total, followed), (total_before, followed_before) = served(cluster, each), before[each]
        assert total - total_before == followed - followed_before
        assert (total > total_before) == (each == node_id), f"broker {each} sent {total - total_before} bytes"
        if each == node_id:
            assert total - total_before >= COUNT * len(VALUE)


def followers(cluster: Three, topic: str) -> list[int]:
    leader = cluster.rows(topic)[0].leader
    return [node_id for node_id in RACKS if node_id != leader]


def sunk(site: Site, cluster: Three) -> int:
    """Write until no broker has the first `COUNT` records on its disk; how many there are."""
    total = COUNT

    def is_sunk() -> bool:
        nonlocal total
        write(cluster, COLD, 50, total)  # a copy learns with what comes how far the bucket is verified
        total += 50
        return all(first_local(site, node_id) >= COUNT for node_id in RACKS)

    cluster.wait(is_sunk, "history left the disks")
    return total


def first_local(site: Site, node_id: int) -> int:
    """Files are named by their first offset."""
    files = site.data_dir(str(node_id)).glob(f"{COLD}-0/*.log")
    return min((int(file.stem) for file in files), default=0)


def values(count: int) -> list[bytes]:
    return [b"%05d" % at + VALUE for at in range(count)]


READERS: dict[str, Reader] = {"confluent-kafka": read_confluent, "aiokafka": read_aiokafka}


@pytest.mark.parametrize("topic", [HOT, COLD])
def test_stock_clients_read_from_the_follower_in_their_rack(cluster: Three, topic: str) -> None:
    """librdkafka and aiokafka, each from another follower; every record in order, every byte from there."""
    for (name, read), node_id in zip(READERS.items(), followers(cluster, topic), strict=True):
        before = all_served(cluster)
        found = read(cluster.everywhere, topic, {0: counts[topic]}, rack=RACKS[node_id])
        assert [record.value for record in found] == values(counts[topic]), name
        only_served_by(cluster, node_id, before)


@pytest.mark.peer
def test_kafkas_own_consumer_reads_from_the_follower_in_its_rack(cluster: Three, tmp_path: Path) -> None:
    require_kafka()
    with kafka_console(tmp_path) as console:
        for topic in (HOT, COLD):
            node_id, before = followers(cluster, topic)[0], all_served(cluster)
            said = console.run(
                *("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", cluster.everywhere),
                *("--topic", topic, "--partition", "0", "--offset", "earliest"),
                *("--max-messages", str(counts[topic]), "--timeout-ms", "20000"),
                *("--command-property", f"client.rack={RACKS[node_id]}"),
            )
            assert [line.encode() for line in said.out.splitlines()] == values(counts[topic]), said.err
            only_served_by(cluster, node_id, before)


def test_a_consumer_outlives_its_follower(cluster: Three) -> None:
    """The follower is killed: the consumer goes on at the leader, and is sent to its rack again when the follower is
    back. No record is missing or comes twice."""
    dead = followers(cluster, HOT)[0]
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.everywhere,
            "group.id": "g",
            "client.rack": RACKS[dead],
            "auto.offset.reset": "error",
            "topic.metadata.refresh.interval.ms": 1000,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(HOT, 0, 0)])
    found: list[bytes] = []
    before = served(cluster, dead)[1]

    def read_to(end: int) -> bool:
        found.extend(m.value() or b"" for m in consumer.consume(500, timeout=0.2) if m.error() is None)
        return len(found) >= end

    try:
        cluster.wait(lambda: read_to(COUNT), "read from the follower")
        assert served(cluster, dead)[1] - before >= COUNT * len(VALUE)
        cluster.kill(dead)
        write(cluster, HOT, COUNT, COUNT)
        cluster.wait(lambda: read_to(2 * COUNT), "read from the leader")
        cluster.start(dead, "--rack", RACKS[dead])
        cluster.wait(cluster.is_whole, "in sync again")
        total = 2 * COUNT

        def is_sent_back() -> bool:
            nonlocal total
            write(cluster, HOT, 10, total)
            total += 10
            read_to(total)
            return served(cluster, dead)[1] > 0

        cluster.wait(is_sent_back, "read from the follower again", 60.0)
    finally:
        consumer.close()
    assert found == values(len(found))
