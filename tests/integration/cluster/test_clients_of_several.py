"""Stock clients of `thermocline serve --brokers 3`: partitions and groups on three brokers, of which one is killed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.processes.broker_process import BrokerProcess, running_broker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)

PARTITIONS = 6


def _leaders(admin: AdminClient, topic: str) -> list[int]:
    return [partition.leader for partition in admin.list_topics(topic, timeout=10).topics[topic].partitions.values()]


def _is_spread(admin: AdminClient, topic: str, brokers: int) -> Callable[[], bool]:
    def spread() -> bool:
        return len(admin.list_topics(timeout=10).brokers) == brokers and -1 not in _leaders(admin, topic)

    return spread


def _pid(broker: BrokerProcess, node_id: int) -> int:
    return int(re.findall(rf"broker {node_id} is process (\d+)", broker.log())[-1])


def _write(broker: BrokerProcess, values: range) -> None:
    """All of them acknowledged, however often the client has to look for a leader."""
    failed: list[KafkaError] = []

    def told(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": True, "message.timeout.ms": 60_000})
    for value in values:
        producer.produce("events", str(value).encode(), partition=value % PARTITIONS, on_delivery=told)
    assert producer.flush(90) == 0 and not failed


def _read(broker: BrokerProcess, count: int) -> list[int]:
    """What a group reads from where it stands, until it has so many; committed."""
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "g", "auto.offset.reset": "earliest"})
    found: list[int] = []

    def enough() -> bool:
        for message in consumer.consume(500, timeout=0.5):
            if message.error() is None:
                found.append(int(message.value() or b""))
        return len(found) >= count

    consumer.subscribe(["events"])
    try:
        wait_until(enough, f"{count} records read", timeout_s=60)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return sorted(found)


def test_stock_clients_use_three_brokers_and_outlive_one_of_them(tmp_path: Path) -> None:
    """Leaders are spread, the ready line's addresses are enough, every acknowledged record is read once by a group that
    goes on where it stood, though each broker is killed in turn and brought back by the supervisor."""
    with running_broker(tmp_path / "data", None, "--brokers", "3") as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        wait_until(lambda: len(admin.list_topics(timeout=10).brokers) == 3, "three brokers")
        (future,) = admin.create_topics([NewTopic("events", PARTITIONS, 1)]).values()
        future.result(30)
        wait_until(_is_spread(admin, "events", 3), "leaders")
        assert sorted(_leaders(admin, "events")) == [1, 1, 2, 2, 3, 3]
        _write(broker, range(600))
        assert _read(broker, 600) == list(range(600))
        for turn, node_id in enumerate((3, 2, 1), start=1):
            os.kill(_pid(broker, node_id), signal.SIGKILL)
            begin, end = turn * 600, (turn + 1) * 600
            _write(broker, range(begin, end))
            assert _read(broker, 600) == list(range(begin, end))
            wait_until(_is_spread(admin, "events", 3), "all back")
        assert broker.stop() == 0
