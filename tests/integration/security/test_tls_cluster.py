"""Three brokers that trust one another by certificate."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.support.net.certificates import Authority
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import Three, three
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def secured(tmp_path: Path, authority: Authority) -> Iterator[Three]:
    """SSL for clients and brokers, certificates required of both."""
    site = Site(tmp_path, DirectoryBucket(tmp_path / "bucket"))
    client = authority.sign("client").write(tmp_path / "client.pem")
    site.settings |= {
        "ssl.keystore.location": authority.sign("broker").write(tmp_path / "broker.pem"),
        "ssl.truststore.location": authority.write(tmp_path / "ca.pem"),
        "ssl.client.auth": "required",
        "security.inter.broker.protocol": "SSL",
    }
    settings = {
        "security.protocol": "ssl",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.certificate.location": client,
        "ssl.key.location": client,
    }
    with three(site, scheme="SSL://", client=settings) as cluster:
        yield cluster


def test_a_cluster_over_mutual_tls_survives_kills_and_replacement(secured: Three) -> None:
    """kill -9 of a leader under load, its disk deleted, an empty broker in its place: every acknowledged record is
    read back."""
    settings = {"bootstrap.servers": secured.everywhere, "log_level": 0, **secured.client}
    secured.create("events", partitions=3, replicas=3, min_insync_replicas=2)
    secured.wait(secured.is_whole, "all replicas in sync")
    producer = Producer({**settings, "acks": "all", "enable.idempotence": True})
    failed: list[KafkaError] = []

    def send(start: int, count: int) -> None:
        for number in range(start, start + count):
            producer.produce(
                "events", b"%d" % number, callback=lambda error, _: failed.append(error) if error else None
            )

    send(0, 2000)
    producer.poll(0)
    killed = secured.controller()
    secured.kill(killed)
    send(2000, 2000)
    assert producer.flush(60) == 0 and not failed, secured.logs()
    shutil.rmtree(secured.site.data_dir(str(killed)))
    secured.start(killed)
    secured.wait(secured.is_whole, "the empty broker has caught up")
    other = next(iter({1, 2, 3} - {killed}))
    secured.kill(other)
    secured.wait(lambda: other not in secured.active(), "its session ended")
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("events", index, 0) for index in range(3)])
    found: set[bytes] = set()

    def read() -> bool:
        found.update(message.value() or b"" for message in consumer.consume(500, timeout=1) if not message.error())
        return len(found) >= 4000

    wait_until(read, "every record", 60)
    consumer.close()
    assert found == {b"%d" % number for number in range(4000)}


def test_a_broker_with_a_certificate_of_another_ca_stays_outside(secured: Three, tmp_path: Path) -> None:
    """It starts on the same bucket, and no broker talks to it: it says why."""
    stranger = Authority("Another CA").sign("broker").write(tmp_path / "stranger.pem")
    flags = ("--node-id", "4", "--set", f"ssl.keystore.location={stranger}")
    with secured.site.broker("4", *flags, wait_ready=False, listen="SSL://127.0.0.1:0") as outsider:
        secured.wait(lambda: "no TLS session" in outsider.log() or "TLS:" in outsider.log(), "its refusal")
        assert 4 not in secured.active()
