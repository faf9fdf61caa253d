"""Partitions that move between four real brokers under stock clients, asked by kafka-python: each record once.

Every process is a real one; the image is read from `cluster.json` itself, logs are looked for in data directories.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import TopicPartition as Place
from kafka.admin import KafkaAdminClient

from tests.support.processes.three_brokers import SLACK_S, Three
from tests.support.waiting import wait_until

TOPIC = "moving"
OFFSETS = "__consumer_offsets"
FOURTH = 4


class Load:
    """One producer, acks=all and idempotent, and one consumer in a group, until `end`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._over, self._written = threading.Event(), threading.Event()
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self.read: list[int] = []
        self._threads = [threading.Thread(target=work) for work in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 2})

        def told(error: object, message: object) -> None:
            if error is not None:
                self.failed.append(str(error))
            else:
                self.acknowledged.append(int(message.value()))  # type: ignore[attr-defined]

        number = 0
        while not self._over.wait(0.002):
            producer.produce(TOPIC, str(number).encode(), partition=0, on_delivery=told)
            producer.poll(0)
            number += 1
        if left := producer.flush(SLACK_S):
            self.failed.append(f"{left} records were never answered")
        self._written.set()

    def _consume(self) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "beside", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([TOPIC])
        try:
            # What is flushed last is acknowledged after all before it may have been read.
            while not self._written.is_set() or len(self.read) < len(self.acknowledged):
                for message in consumer.consume(500, 0.1):
                    if message.error() is None:
                        self.read.append(int(message.value()))
                    elif not message.error().retriable():
                        self.failed.append(str(message.error()))
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()

    def wait(self, further: int) -> None:
        """So many records more were acknowledged, and read."""
        goal = len(self.acknowledged) + further
        wait_until(
            lambda: min(len(self.acknowledged), len(self.read)) >= goal, f"{further} more: {self.failed}", SLACK_S
        )

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(2 * SLACK_S)
            assert not thread.is_alive()


@pytest.fixture
def admin(cluster: Three) -> Iterator[KafkaAdminClient]:
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=cluster.everywhere)) as found:
        yield found


def move(cluster: Three, admin: KafkaAdminClient, topic: str, replicas: Sequence[int]) -> None:
    """Ask, and wait until the move is over and the logs of who left are gone."""
    place = Place(topic, 0)
    before = cluster.rows(topic)[0].replicas
    assert admin.alter_partition_reassignments({place: list(replicas)}) == {place: None}
    cluster.wait(lambda: not admin.list_partition_reassignments({topic: [0]}), f"{topic} on {replicas}")
    row = cluster.rows(topic)[0]
    assert (row.replicas, row.target, sorted(row.in_sync)) == (tuple(replicas), (), sorted(replicas))
    for node_id in set(before) - set(replicas):
        directory = cluster.site.data_dir(str(node_id))
        cluster.wait(lambda directory=directory: not list(directory.glob(f"{topic}-0*")), f"{directory} is empty")  # type: ignore[misc]


def test_a_partition_moves_under_load_and_every_record_is_there_once(cluster: Three, admin: KafkaAdminClient) -> None:
    """{1,2,3} to {2,3,4} to {4} to {4,1,2}, the group's own partition too: acknowledged is read, in order, once."""
    with cluster.beside(str(FOURTH), FOURTH) as fourth:
        fourth.await_ready()
        cluster.wait_active(1, 2, 3, FOURTH)
        cluster.create(TOPIC, replicas=3, min_insync_replicas=2, segment_bytes=1 << 20)
        load = Load(cluster.everywhere)
        try:
            load.wait(200)
            for replicas in ((2, 3, FOURTH), (FOURTH,), (FOURTH, 1, 2)):
                move(cluster, admin, TOPIC, replicas)
                load.wait(100)
            move(cluster, admin, OFFSETS, (FOURTH, 1))
            load.wait(100)
        finally:
            load.end()
        assert not load.failed, load.failed[:3]
        assert load.acknowledged == list(range(len(load.acknowledged)))
        assert load.read == load.acknowledged
        committed = Consumer({"bootstrap.servers": cluster.everywhere, "group.id": "beside"})
        (found,) = committed.committed([TopicPartition(TOPIC, 0)], timeout=SLACK_S)
        committed.close()
        assert found.offset == len(load.read)
