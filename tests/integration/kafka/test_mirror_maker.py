"""MirrorMaker 2 between Apache Kafka 4.3.1 and brokers of ours, both ways: records, partitions, configs, group offsets.

MirrorMaker and our brokers are killed with SIGKILL between the records.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.support.kafka.kafka_peer import kafka_peer
from tests.support.kafka.kafka_program import kafka_program
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.broker_lives import brokers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

MIRROR_MAKER = "org.apache.kafka.connect.mirror.MirrorMaker"
GROUP = "readers"
TOPIC = "letters"
QUIET = {"log_level": 0}


@dataclass
class Cluster:
    """One of the two, by the alias that MirrorMaker has for it."""

    alias: str
    bootstrap: str
    replicas: int
    written: dict[int, list[bytes]] = field(default_factory=lambda: {0: [], 1: [], 2: []})

    def __post_init__(self) -> None:
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, **QUIET})

    def ask(self, what: Callable[[AdminClient], dict[Any, Future[Any]]]) -> Any:
        """The one answer, by a new client: librdkafka 2.16 waits in vain for a coordinator that it knew before its only
        broker restarted."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        (future,) = what(admin).values()
        return future.result(30)

    def create(self) -> None:
        topic = NewTopic(TOPIC, 2, self.replicas, config={"retention.ms": "987654321", "cleanup.policy": "compact"})
        self.ask(lambda admin: admin.create_topics([topic]))

    def grow(self, partitions: int) -> None:
        """More partitions, which the cluster and a new producer know."""
        self.ask(lambda admin: admin.create_partitions([NewPartitions(TOPIC, partitions)]))
        wait_until(lambda: self.topics()[TOPIC] == partitions, f"{self.alias} has more partitions")
        self.__post_init__()

    def write(self, mark: str, partitions: int) -> None:
        """Ten records more for each partition."""
        for partition in range(partitions):
            for number in range(10):
                value = f"{self.alias} {mark} {partition} {number}".encode()
                self._producer.produce(TOPIC, value, key=value, partition=partition)
                self.written[partition].append(value)
        assert self._producer.flush(60) == 0

    def commit(self, offset: int, partitions: int) -> None:
        """Of the group, the same in each partition."""
        places = [TopicPartition(TOPIC, at, offset) for at in range(partitions)]
        request = ConsumerGroupTopicPartitions(GROUP, places)
        self.ask(lambda admin: admin.alter_consumer_group_offsets([request]))

    def committed(self, topic: str) -> dict[int, int]:
        try:
            found = self.ask(lambda admin: admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)]))
        except KafkaException:
            return {}
        return {at.partition: at.offset for at in found.topic_partitions or [] if at.topic == topic}

    def config(self, topic: str, name: str) -> str:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return str(self.ask(lambda admin: admin.describe_configs([resource]))[name].value)

    def set_config(self, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
        self.ask(lambda admin: admin.incremental_alter_configs([resource]))

    def topics(self) -> dict[str, int]:
        """Their counts of partitions."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        return {name: len(found.partitions) for name, found in admin.list_topics(timeout=30).topics.items()}

    def read(self, topic: str, partition: int) -> list[tuple[int, bytes]]:
        """All there is."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "none", **QUIET})
        try:
            end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]
            consumer.assign([TopicPartition(topic, partition, 0)])
            found: list[tuple[int, bytes]] = []
            while end and (not found or found[-1][0] < end - 1):
                message = consumer.poll(10)
                assert message is not None, f"{topic}-{partition}: {len(found)} of {end} records"
                if message.error() is None:
                    found.append((message.offset(), message.value()))
            return found
        finally:
            consumer.close()


def mirror_properties(folder: Path, *clusters: Cluster) -> Path:
    names = [cluster.alias for cluster in clusters]
    lines: dict[str, object] = {
        "clusters": ", ".join(names),
        "plugin.discovery": "service_load",
        "topics": TOPIC,
        "groups": GROUP,
        "sync.group.offsets.enabled": "true",
        "offset.lag.max": 0,
        "refresh.topics.interval.seconds": 1,
        "refresh.groups.interval.seconds": 1,
        "sync.topic.configs.interval.seconds": 1,
        "sync.topic.acls.interval.seconds": 1,
        "sync.group.offsets.interval.seconds": 1,
        "emit.checkpoints.interval.seconds": 1,
        "emit.heartbeats.interval.seconds": 1,
        "offset.flush.interval.ms": 500,
        "scheduled.rebalance.max.delay.ms": 0,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 1000,
    }
    for source, target in zip(names, reversed(names), strict=True):
        lines[f"{source}->{target}.enabled"] = "true"
    for cluster in clusters:
        lines[f"{cluster.alias}.bootstrap.servers"] = cluster.bootstrap
        for kind in ("config.storage", "offset.storage", "status.storage"):
            lines[f"{cluster.alias}.{kind}.replication.factor"] = cluster.replicas
        for kind in ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic"):
            lines[f"{cluster.alias}.{kind}.replication.factor"] = cluster.replicas
    for cluster, other in zip(clusters, reversed(clusters), strict=True):
        flow = f"{cluster.alias}->{other.alias}"
        lines[f"{flow}.replication.factor"] = other.replicas
        lines[f"{flow}.checkpoints.topic.replication.factor"] = other.replicas
        lines[f"{flow}.heartbeats.topic.replication.factor"] = other.replicas
        lines[f"{flow}.offset-syncs.topic.replication.factor"] = cluster.replicas
    path = folder / "mirror.properties"
    path.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
    return path


@pytest.mark.parametrize("count", [1, 3], ids=["one", "three"])
def test_topics_configs_and_offsets_are_mirrored_both_ways(tmp_path: Path, count: int) -> None:
    """No record is lost over kills of MirrorMaker and of our brokers; mirrored groups resume without a gap."""
    require_kafka()
    with kafka_peer(tmp_path / "kafka") as address, brokers(tmp_path, count) as lives:
        kafka, ours = Cluster("kafka", address, 1), Cluster("ours", lives.bootstrap, lives.replicas)
        ways = ((kafka, ours), (ours, kafka))

        def mirrored(mark: str, partitions: int) -> None:
            """Ten records more each way, which all arrive."""
            for source, _ in ways:
                source.write(mark, partitions)
            for source, target in ways:
                topic = f"{source.alias}.{TOPIC}"
                wait_until(
                    lambda s=source, t=target, n=topic: has_all(s, t, n, partitions), f"{mark}: {topic} arrives", 90
                )

        def committed(mark: str, offset: int, partitions: int) -> None:
            """The group's offsets, which arrive. Only a place behind all earlier records is sure to be translated:
            MirrorMaker keeps few pairs of offsets, and at its start the last one only."""
            for source, _ in ways:
                source.commit(offset, partitions)
            for source, target in ways:
                topic = f"{source.alias}.{TOPIC}"
                wait_until(lambda t=target, n=topic: is_committed(t, n, offset, partitions), f"{mark}: {topic} offsets")

        def is_committed(target: Cluster, topic: str, offset: int, partitions: int) -> bool:
            program.check()
            found = target.committed(topic)
            return len(found) == partitions and min(found.values()) >= offset

        def has_all(source: Cluster, target: Cluster, topic: str, partitions: int) -> bool:
            program.check()
            if target.topics().get(topic) != partitions:
                return False
            try:
                found = [{value for _, value in target.read(topic, at)} for at in range(partitions)]
            except KafkaException:  # a topic that was just created has no leader yet
                return False
            return all(set(source.written[at]) <= values for at, values in enumerate(found))

        for source, _ in ways:
            source.create()
        with kafka_program(tmp_path, MIRROR_MAKER, str(mirror_properties(tmp_path, kafka, ours))) as program:
            mirrored("first", 2)
            committed("first", 10, 2)
            for source, target in ways:
                topic = f"{source.alias}.{TOPIC}"
                assert target.config(topic, "retention.ms") == "987654321"
                assert target.config(topic, "cleanup.policy") == "compact"

            program.kill()
            program.start()
            mirrored("after a killed MirrorMaker", 2)

            lives.crash()
            mirrored("after a killed broker", 2)
            for source, target in ways:
                check_offsets(target, source, 10)

            program.kill()
            lives.crash()
            for source, _ in ways:
                source.set_config("retention.ms", "123456789")
                source.grow(3)
            program.start()
            mirrored("after both were killed", 3)
            committed("after both were killed", 40, 2)
            for source, target in ways:
                topic = f"{source.alias}.{TOPIC}"
                wait_until(lambda t=target, n=topic: t.config(n, "retention.ms") == "123456789", f"{topic}: its config")
            mirrored("at the end", 3)
            for source, target in ways:
                check_offsets(target, source, 40)
                internal = f"mm2-offset-syncs.{target.alias}.internal"
                assert {"heartbeats", f"{target.alias}.checkpoints.internal", internal} <= source.topics().keys()
                assert source.config(internal, "cleanup.policy") == "compact"


def check_offsets(target: Cluster, source: Cluster, committed: int) -> None:
    """Who resumes from the mirrored offset misses none of the records from `committed` on."""
    topic = f"{source.alias}.{TOPIC}"
    for partition, offset in target.committed(topic).items():
        left = {value for at, value in target.read(topic, partition) if at >= offset}
        assert set(source.written[partition][committed:]) <= left, (topic, partition, offset)
