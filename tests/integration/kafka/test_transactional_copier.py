"""Kafka's own `TransactionalMessageCopier`: it consumes, produces and commits offsets in transactions, some of which it
aborts. Each message comes out once, in order, while brokers and copiers are killed with SIGKILL.

The scenario is that of Apache Kafka's system test `transactions_test.py`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.kafka.kafka_program import KafkaProgram, kafka_program
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.broker_lives import brokers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
PARTITIONS = 2
MESSAGES = 6_000  # of each partition
IN_TRANSACTION = 150


class Copied:
    """The output topic at read_committed: the values of each partition in their order."""

    def __init__(self, bootstrap: str) -> None:
        config = {"bootstrap.servers": bootstrap, "group.id": "copied", "isolation.level": "read_committed"}
        self._consumer = Consumer({**config, "log_level": 0})
        self._consumer.assign([TopicPartition("output", index, 0) for index in range(PARTITIONS)])
        self.values: list[list[int]] = [[] for _ in range(PARTITIONS)]

    def read(self) -> list[list[int]]:
        for message in self._consumer.consume(10_000, 0.1):
            if message.error() is None:
                self.values[message.partition()].append(int(message.value()))
        return self.values

    def count(self) -> int:
        return sum(map(len, self.read()))


@pytest.mark.parametrize("mode", ["assigned", "group"])
@pytest.mark.parametrize("count", [1, 3], ids=["one", "three"])
def test_each_message_is_copied_once(tmp_path: Path, count: int, mode: str) -> None:
    require_kafka()
    with brokers(tmp_path, count) as ours, contextlib.ExitStack() as stack:
        admin = AdminClient({"bootstrap.servers": ours.bootstrap, "log_level": 0})
        topics = [NewTopic(topic, PARTITIONS, ours.replicas) for topic in ("input", "output")]
        for future in admin.create_topics(topics).values():
            future.result(30)
        producer = Producer({"bootstrap.servers": ours.bootstrap, "enable.idempotence": True, "log_level": 0})
        for number in range(MESSAGES):
            for partition in range(PARTITIONS):
                producer.produce("input", str(number), partition=partition)
            producer.poll(0)
        assert producer.flush(60) == 0
        copied = Copied(ours.bootstrap)

        def copier(number: int) -> KafkaProgram:
            folder = tmp_path / f"copier-{number}"
            folder.mkdir()
            arguments = ["--broker-list", ours.bootstrap, "--input-topic", "input", "--output-topic", "output"]
            arguments += ["--input-partition", str(number), "--consumer-group", "copiers", "--enable-random-aborts"]
            arguments += ["--transactional-id", f"copier-{number}", "--transaction-size", str(IN_TRANSACTION)]
            arguments += ["--transaction-timeout", "10000"]
            if mode == "group":
                arguments += ["--group-mode", "--use-group-metadata"]
            return stack.enter_context(kafka_program(folder, COPIER, *arguments))

        def is_copied() -> bool:
            """A copier ends when its group gives it no partition, as while a killed one is still a member."""
            for of in copiers if copied.count() < PARTITIONS * MESSAGES else ():
                if of.has_ended():
                    of.kill()
                    of.start()
            return copied.count() >= PARTITIONS * MESSAGES

        copiers = [copier(number) for number in range(PARTITIONS)]
        wait_until(lambda: copied.count() > 0, "something is copied")
        kills = 0
        while kills < 4 and copied.count() < PARTITIONS * MESSAGES:
            before = copied.count()
            if kills % 2:
                copiers[0].kill()
                copiers[0].start()
            else:
                ours.crash()
            kills += 1
            wait_until(
                lambda least=before + 300: copied.count() >= min(least, PARTITIONS * MESSAGES), "copying goes on"
            )
        wait_until(lambda: is_copied(), "all is copied", 120)
        copied.read()
        logs = "".join(of.log_path.read_text() for of in copiers)
    print(f"{kills} kills, {logs.count('Aborting transaction')} aborts")
    assert copied.values == [list(range(MESSAGES))] * PARTITIONS
