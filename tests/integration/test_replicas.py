"""Three real brokers, partitions of several replicas, stock clients: what was acknowledged outlives any broker.

Every process is a real one over one directory bucket; brokers die by kill -9 and hear of each other through the cluster
alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from broker.metadata.cluster_content import CLUSTER_FORMAT, ClusterContent, image_of
from broker.metadata.image import ClusterImage
from broker.metadata.records import Row
from coldstore.keys import cluster_key
from coldstore.object_store import Got
from coldstore.root import RootCodec
from tests.support.broker_process import BrokerProcess
from tests.support.site import Site
from tests.support.stock_clients import read_confluent
from tests.support.waiting import wait_until

TOPIC = "ledger"
SLACK_S = 30.0


@dataclass
class Three:
    """Brokers 1, 2, 3 of a site."""

    site: Site
    stack: contextlib.ExitStack
    brokers: dict[int, BrokerProcess] = field(default_factory=dict)

    def start(self, node_id: int) -> None:
        broker = self.site.broker(str(node_id), "--node-id", str(node_id))
        self.brokers[node_id] = self.stack.enter_context(broker)

    def kill(self, node_id: int) -> None:
        self.brokers.pop(node_id).kill()

    @property
    def everywhere(self) -> str:
        return ",".join(broker.kafka for broker in self.brokers.values())

    def image(self) -> ClusterImage:
        data = self.site.bucket.read(cluster_key())
        root = RootCodec(CLUSTER_FORMAT).decode(cluster_key(), Got(data, "", len(data)))
        assert isinstance(root.content, ClusterContent)
        page = root.content.page
        return image_of(root.content, None if page is None else self.site.bucket.read(page.key))

    def row(self) -> Row:
        found = self.image().topic_named(TOPIC)
        assert found is not None
        return found.rows[0]

    def wait(self, happened: Callable[[], bool], what: str) -> None:
        try:
            wait_until(happened, what, SLACK_S)
        except AssertionError as never:
            logs = "\n".join(f"--- {n}\n{broker.log()[-4000:]}" for n, broker in self.brokers.items())
            raise AssertionError(f"{never}\n{self.row()}\n{logs}") from None


@contextlib.contextmanager
def three(site: Site) -> Iterator[Three]:
    with contextlib.ExitStack() as stack:
        cluster = Three(site, stack)
        for node_id in (1, 2, 3):
            cluster.start(node_id)
        yield cluster


def create(cluster: Three, min_in_sync: int) -> None:
    topic = NewTopic(TOPIC, 1, 3, config={"min.insync.replicas": str(min_in_sync)})
    admin = AdminClient({"bootstrap.servers": cluster.everywhere})
    admin.create_topics([topic])[TOPIC].result(30)


class Writing:
    """An idempotent producer with acks=all; `acknowledged` is what it was told is safe."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[bytes] = []
        self.failed: list[str] = []
        # A stopped broker answers nothing and breaks no connection: the client waits for its own time-out.
        timeouts = {"socket.timeout.ms": 10_000, "request.timeout.ms": 5_000}
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 2, **timeouts}
        )

    def write(self, mark: str, count: int) -> None:
        """Give `count` records, and wait for none."""
        for number in range(count):
            value = f"{mark} {number}".encode()

            def told(error: object, _: object, value: bytes = value) -> None:
                if error is None:
                    self.acknowledged.append(value)
                else:
                    self.failed.append(str(error))

            self._producer.produce(TOPIC, value, partition=0, on_delivery=told)
            self._producer.poll(0)

    def flush(self) -> None:
        left = self._producer.flush(60)
        if left or self.failed:
            raise KafkaException(f"{left} records left, failed: {self.failed[:3]}")


def test_what_was_acknowledged_outlives_a_killed_leader_and_the_next(directory_site: Site) -> None:
    """RF 3, min 2, acks=all: the leader is killed while records are on their way, comes back, catches up; then the
    second leader is killed. Each record that was acknowledged is there once, in order."""
    with three(directory_site) as cluster:
        create(cluster, 2)
        writing = Writing(cluster.everywhere)
        writing.write("a", 500)
        writing.flush()
        for mark in ("b", "c"):
            leader = cluster.row().leader
            writing.write(mark, 300)
            cluster.kill(leader)
            writing.write(mark + mark, 300)
            writing.flush()
            cluster.wait(lambda leader=leader: cluster.row().leader not in (-1, leader), "another leader")  # type: ignore[misc]
            cluster.start(leader)
            cluster.wait(lambda: set(cluster.row().in_sync) == {1, 2, 3}, "all three in sync again")
        assert len(writing.acknowledged) == 1700
        found = read_confluent(cluster.everywhere, TOPIC, {0: 1700})
        assert [record.value for record in found] == writing.acknowledged


def test_cluster_d18_a_paused_leader_loses_nothing_and_follows_when_it_goes_on(directory_site: Site) -> None:
    """SIGSTOP past its session, with records in its socket: another leads; when it goes on it cuts what nobody else
    has, catches up, and leads again with every record once the others are killed."""
    with three(directory_site) as cluster:
        create(cluster, 2)
        writing = Writing(cluster.everywhere)
        writing.write("a", 300)
        writing.flush()
        leader = cluster.row().leader
        writing.write("b", 100)
        os.kill(cluster.brokers[leader].pid, signal.SIGSTOP)
        writing.write("bb", 100)
        cluster.wait(lambda: cluster.row().leader not in (-1, leader), "another leader")
        writing.flush()
        os.kill(cluster.brokers[leader].pid, signal.SIGCONT)
        cluster.wait(lambda: set(cluster.row().in_sync) == {1, 2, 3}, "all three in sync again")
        writing.write("c", 100)
        writing.flush()
        others = [node_id for node_id in cluster.brokers if node_id != leader]
        for node_id in others:
            cluster.kill(node_id)
        cluster.wait(lambda: cluster.row().leader == leader, "it leads, for it lacks nothing")
        assert set(cluster.row().in_sync) > {leader}, "below the minimum nobody leaves the set"
        for node_id in others:
            cluster.start(node_id)
        cluster.wait(lambda: set(cluster.row().in_sync) == {1, 2, 3} and cluster.row().leader != -1, "all again")
        found = read_confluent(cluster.everywhere, TOPIC, {0: 600})
        assert [record.value for record in found] == writing.acknowledged
