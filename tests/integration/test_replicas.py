"""Three real brokers, partitions of several replicas, stock clients: what was acknowledged outlives any broker.

Every process is a real one over one directory bucket; brokers die by kill -9 and hear of each other through the cluster
alone.
"""

from __future__ import annotations

from confluent_kafka import KafkaException, Producer

from tests.support.site import Site
from tests.support.stock_clients import read_confluent
from tests.support.three_brokers import three

TOPIC = "ledger"


class Writing:
    """An idempotent producer with acks=all; `acknowledged` is what it was told is safe."""

    def __init__(self, bootstrap: str, topic: str = TOPIC) -> None:
        self._topic = topic
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

            self._producer.produce(self._topic, value, partition=0, on_delivery=told)
            self._producer.poll(0)

    def flush(self) -> None:
        left = self._producer.flush(60)
        if left or self.failed:
            raise KafkaException(f"{left} records left, failed: {self.failed[:3]}")


def test_what_was_acknowledged_outlives_a_killed_leader_and_the_next(directory_site: Site) -> None:
    """RF 3, min 2, acks=all: the leader is killed while records are on their way, comes back, catches up; then the
    second leader is killed. Each record that was acknowledged is there once, in order."""
    with three(directory_site) as cluster:
        cluster.create(TOPIC, min_insync_replicas=2)
        writing = Writing(cluster.everywhere)
        writing.write("a", 500)
        writing.flush()
        for mark in ("b", "c"):
            leader = cluster.rows(TOPIC)[0].leader
            writing.write(mark, 300)
            cluster.kill(leader)
            writing.write(mark + mark, 300)
            writing.flush()
            cluster.wait(lambda leader=leader: cluster.rows(TOPIC)[0].leader not in (-1, leader), "another leader")  # type: ignore[misc]
            cluster.start(leader)
            cluster.wait(cluster.is_whole, "all three in sync again")
        assert len(writing.acknowledged) == 1700
        found = read_confluent(cluster.everywhere, TOPIC, {0: 1700})
        assert [record.value for record in found] == writing.acknowledged


def test_cluster_d18_a_paused_leader_loses_nothing_and_follows_when_it_goes_on(directory_site: Site) -> None:
    """SIGSTOP past its session, with records in its socket: another leads; when it goes on it cuts what nobody else
    has, catches up, and leads again with every record once the others are killed."""
    with three(directory_site) as cluster:
        cluster.create(TOPIC, min_insync_replicas=2)
        writing = Writing(cluster.everywhere)
        writing.write("a", 300)
        writing.flush()
        leader = cluster.rows(TOPIC)[0].leader
        writing.write("b", 100)
        cluster.pause(leader)
        writing.write("bb", 100)
        cluster.wait(lambda: cluster.rows(TOPIC)[0].leader not in (-1, leader), "another leader")
        writing.flush()
        cluster.go_on(leader)
        cluster.wait(cluster.is_whole, "all three in sync again")
        writing.write("c", 100)
        writing.flush()
        others = [node_id for node_id in cluster.brokers if node_id != leader]
        for node_id in others:
            cluster.kill(node_id)
        cluster.wait(lambda: cluster.rows(TOPIC)[0].leader == leader, "it leads, for it lacks nothing")
        assert set(cluster.rows(TOPIC)[0].in_sync) > {leader}, "below the minimum nobody leaves the set"
        for node_id in others:
            cluster.start(node_id)
        cluster.wait(cluster.is_whole, "all again")
        found = read_confluent(cluster.everywhere, TOPIC, {0: 600})
        assert [record.value for record in found] == writing.acknowledged
