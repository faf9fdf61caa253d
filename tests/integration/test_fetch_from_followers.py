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

from tests.support.kafka_console import kafka_console
from tests.support.kafka_tools import require_kafka
from tests.support.site import Site
from tests.support.stock_clients import Reader, Written, read_aiokafka, read_confluent, write_confluent
from tests.support.three_brokers import Three

TOPIC = "ledger"
RACKS = {1: "a", 2: "b", 3: "c"}
COUNT = 1000
VALUE = b"x" * 200
SMALL = {"remote_storage_enable": "true", "internal_segment_bytes": 20_000, "local_retention_bytes": 1}


@contextlib.contextmanager
def racks(site: Site) -> Iterator[Three]:
    site.settings["replica.selector.class"] = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    with contextlib.ExitStack() as stack:
        cluster = Three(site, stack)
        for node_id, rack in RACKS.items():
            cluster.start(node_id, "--rack", rack)
        yield cluster


def write(cluster: Three, count: int = COUNT) -> None:
    write_confluent(
        cluster.everywhere, TOPIC, 0, [Written(None, b"%05d" % at + VALUE) for at in range(count)], "none", True
    )


def served(cluster: Three, node_id: int) -> tuple[float, float]:
    """Record bytes that a broker sent to consumers of the topic, and those of them that it sent as a follower."""
    with urllib.request.urlopen(f"http://{cluster.brokers[node_id].http}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    of_topic = [line for line in lines if line.startswith("thermocline_topic_fetched_bytes_total{") and TOPIC in line]
    followed = [line for line in lines if line.startswith("thermocline_followed_fetch_bytes_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in of_topic), float(followed[0].rsplit(" ", 1)[1])


def only_served_by(cluster: Three, node_id: int, before: dict[int, tuple[float, float]]) -> None:
    """Every byte that was read since came from one follower."""
    for each in RACKS:
        (total, followed), (total_before, followed_before) = served(cluster, each), before[each]
        assert total - total_before == followed - followed_before
        assert (total > total_before) == (each == node_id), f"broker {each} sent {total - total_before} bytes"
        if each == node_id:
            assert total - total_before >= COUNT * len(VALUE)


def all_served(cluster: Three) -> dict[int, tuple[float, float]]:
    return {node_id: served(cluster, node_id) for node_id in RACKS}


def followers(cluster: Three) -> list[int]:
    leader = cluster.rows(TOPIC)[0].leader
    return [node_id for node_id in RACKS if node_id != leader]


def is_cold(site: Site, node_id: int) -> bool:
    """What this broker keeps on its disk is little of the log."""
    files = site.local_log_files(TOPIC, str(node_id))
    return sum(file.stat().st_size for file in files if file.exists()) < COUNT * len(VALUE) / 4


READERS: dict[str, Reader] = {"confluent-kafka": read_confluent, "aiokafka": read_aiokafka}


@pytest.mark.parametrize("tier", ["hot", "cold"])
def test_stock_clients_read_from_the_follower_in_their_rack(directory_site: Site, tier: str) -> None:
    """librdkafka and aiokafka, each from another follower; every record in order, every byte from there."""
    with racks(directory_site) as cluster:
        cluster.create(TOPIC, min_insync_replicas=2, **(SMALL if tier == "cold" else {}))
        write(cluster)
        cluster.wait(cluster.is_whole, "all replicas in sync")
        if tier == "cold":
            cluster.wait(lambda: all(is_cold(directory_site, node_id) for node_id in RACKS), "history left the disks")
        for (name, read), node_id in zip(READERS.items(), followers(cluster), strict=True):
            before = all_served(cluster)
            found = read(cluster.everywhere, TOPIC, {0: COUNT}, rack=RACKS[node_id])
            assert [record.value for record in found] == [b"%05d" % at + VALUE for at in range(COUNT)], name
            only_served_by(cluster, node_id, before)


def test_a_consumer_outlives_its_follower(directory_site: Site) -> None:
    """The follower is killed: the consumer goes on at the leader, and is sent to its rack again when the follower is
    back."""
    with racks(directory_site) as cluster:
        cluster.create(TOPIC, min_insync_replicas=2)
        write(cluster)
        dead = followers(cluster)[0]
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
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found: list[bytes] = []

        def read_to(end: int) -> bool:
            found.extend(m.value() or b"" for m in consumer.consume(500, timeout=0.2) if m.error() is None)
            return len(found) >= end

        try:
            cluster.wait(lambda: read_to(COUNT), "read from the follower")
            assert served(cluster, dead)[1] >= COUNT * len(VALUE)
            cluster.kill(dead)
            write(cluster)
            cluster.wait(lambda: read_to(2 * COUNT), "read from the leader")
            cluster.start(dead, "--rack", RACKS[dead])
            cluster.wait(cluster.is_whole, "in sync again")

            def is_sent_back() -> bool:
                write(cluster, 10)
                read_to(2 * COUNT)
                return served(cluster, dead)[1] > 0

            cluster.wait(is_sent_back, "read from the follower again")
        finally:
            consumer.close()
        assert found[: 2 * COUNT] == [b"%05d" % at + VALUE for at in (*range(COUNT), *range(COUNT))]


@pytest.mark.peer
def test_kafkas_own_consumer_reads_from_the_follower_in_its_rack(directory_site: Site, tmp_path: Path) -> None:
    require_kafka()
    with racks(directory_site) as cluster, kafka_console(tmp_path) as console:
        cluster.create(TOPIC, min_insync_replicas=2, **SMALL)
        write(cluster)
        cluster.wait(cluster.is_whole, "all replicas in sync")
        cluster.wait(lambda: all(is_cold(directory_site, node_id) for node_id in RACKS), "history left the disks")
        for node_id in followers(cluster):
            before = all_served(cluster)
            said = console.run(
                *("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", cluster.everywhere),
                *("--topic", TOPIC, "--partition", "0", "--offset", "earliest", "--max-messages", str(COUNT)),
                *("--timeout-ms", "20000", "--consumer-property", f"client.rack={RACKS[node_id]}"),
            )
            assert said.out.splitlines() == [f"{at:05d}{VALUE.decode()}" for at in range(COUNT)], said.err
            only_served_by(cluster, node_id, before)
