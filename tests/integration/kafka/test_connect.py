"""Kafka Connect, distributed, keeps its state in three compacted topics here: connectors and their offsets outlive it.

A file source feeds a topic, a file sink writes it out again. Worker and broker are killed with SIGKILL between the
lines; each line arrives, and the topics that Connect reads at its start have been cleaned meanwhile. With exactly once
support each line arrives once.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.support.kafka.kafka_program import KafkaProgram, kafka_program
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.broker_lives import OneBroker, ThreeBrokers, brokers, passes
from tests.support.processes.ports import quiet_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(240)]

WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
STORES = {"config": 1000, "offset": 250, "status": 1000}
"""The three topics, with segments so small that they fill."""
_ANSWER_S = 20.0


class Connect:
    """A worker and its REST port."""

    def __init__(self, program: KafkaProgram, rest: str) -> None:
        self.program = program
        self._rest = rest

    def ask(self, path: str, body: object = None) -> Any:
        """GET, or PUT `body`; None when it does not answer, or refuses (it starts, or rebalances)."""
        self.program.check()
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        method = "GET" if data is None else "PUT"
        request = urllib.request.Request(f"{self._rest}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
                return json.loads(answer.read())
        except (OSError, urllib.error.HTTPError):
            return None

    def await_running(self, *names: str) -> None:
        for name in names:
            wait_until(lambda name=name: self._is_running(name), f"connector {name} runs")

    def _is_running(self, name: str) -> bool:
        status = self.ask(f"/connectors/{name}/status")
        if status is None or not status["tasks"]:
            return False
        failed = [task for task in status["tasks"] if task["state"] == "FAILED"]
        assert not failed, failed
        return all(part["state"] == "RUNNING" for part in [status["connector"], *status["tasks"]])


def worker_properties(folder: Path, bootstrap: str, replicas: int, rest: str, **more: object) -> Path:
    lines: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "group.id": "connect",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "listeners": rest,
        "plugin.discovery": "service_load",
        "offset.flush.interval.ms": 200,
        "batch.size": 500,  # of what the worker writes to the three topics: a batch fits a segment
        "session.timeout.ms": 3000,
        "heartbeat.interval.ms": 500,
        "consumer.session.timeout.ms": 3000,
        "consumer.heartbeat.interval.ms": 500,
        "consumer.auto.offset.reset": "earliest",
        "scheduled.rebalance.max.delay.ms": 0,
        "offset.storage.partitions": 1,
        "status.storage.partitions": 1,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    for store, segment_bytes in STORES.items():
        lines[f"{store}.storage.topic"] = f"connect-{store}"
        lines[f"{store}.storage.replication.factor"] = replicas
        lines[f"{store}.storage.internal.segment.bytes"] = segment_bytes
    path = folder / "worker.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path


def write_lines(path: Path, lines: Sequence[str]) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


@pytest.mark.parametrize("count", [1, 3], ids=["one", "three"])
def test_connectors_go_on_after_kills_of_worker_and_broker(tmp_path: Path, count: int) -> None:
    """No line is lost over three kills; a line is repeated only where an offset was not yet written."""
    require_kafka()
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    rest = f"http://127.0.0.1:{quiet_port()}"
    written: list[str] = []

    def more(name: str) -> None:
        """Lines that all arrive, in two parts: a part is an offset of the source."""
        for part in range(2):
            lines = [f"{name} {part} {number}" for number in range(50)]
            write_lines(source, lines)
            written.extend(lines)
            wait_until(lambda: set(written) <= set(arrived()), f"the lines {name} arrive")

    def arrived() -> list[str]:
        connect.program.check()
        return sink.read_text().splitlines() if sink.exists() else []

    with brokers(tmp_path, count) as ours:
        properties = worker_properties(tmp_path, ours.bootstrap, ours.replicas, rest)
        with kafka_program(tmp_path, WORKER, str(properties)) as program:
            connect = Connect(program, rest)
            files = "org.apache.kafka.connect.file.FileStream"
            connectors = {
                "source": {
                    "connector.class": f"{files}SourceConnector",
                    "file": str(source),
                    "topic": "lines",
                    "topic.creation.default.replication.factor": ours.replicas,
                    "topic.creation.default.partitions": 1,
                },
                "sink": {
                    "connector.class": f"{files}SinkConnector",
                    "file": str(sink),
                    "topics": "lines",
                },
            }
            source.touch()
            for name, config in connectors.items():
                wait_until(lambda n=name, c=config: connect.ask(f"/connectors/{n}/config", c), f"{name} is created")
            connect.await_running(*connectors)
            more("first")

            program.kill()
            program.start()
            connect.await_running(*connectors)
            more("after a killed worker")

            ours.crash()
            more("after a killed broker")

            program.kill()
            ours.crash()
            write_lines(source, ["while none runs"])
            written.append("while none runs")
            program.start()
            connect.await_running(*connectors)
            more("after both were killed")
            assert sorted(connect.ask("/connectors")) == ["sink", "source"]
        check_cleaned(ours)
    lines = sink.read_text().splitlines()
    assert set(lines) == set(written)
    # A kill repeats at most the part that has just arrived: once from the source's offset, once from the sink's.
    assert len(lines) - len(written) <= 3 * 2 * 50


@pytest.mark.parametrize("count", [1, 3], ids=["one", "three"])
def test_source_writes_each_line_once(tmp_path: Path, count: int) -> None:
    """`exactly.once.source.support` (KIP-618): lines and their offset are one transaction. A worker is killed while it
    writes, and a broker."""
    require_kafka()
    source, written = tmp_path / "source.txt", []
    rest = f"http://127.0.0.1:{quiet_port()}"
    with brokers(tmp_path, count) as ours:
        properties = worker_properties(
            tmp_path,
            ours.bootstrap,
            ours.replicas,
            rest,
            exactly_once_source_support="enabled",
            producer_transaction_timeout_ms=6000,
        )
        arrived = Arrived(ours.bootstrap, "lines")
        with kafka_program(tmp_path, WORKER, str(properties)) as program:
            connect = Connect(program, rest)
            config = {
                "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
                "file": str(source),
                "topic": "lines",
                "exactly.once.support": "required",
                "topic.creation.default.replication.factor": ours.replicas,
                "topic.creation.default.partitions": 1,
            }

            def write(name: str) -> None:
                lines = [f"{name} {number}" for number in range(200)]
                write_lines(source, lines)
                written.extend(lines)

            def arrive(name: str) -> None:
                write(name)
                wait_until(lambda: written[-1] in arrived.lines(), f"the lines {name} arrive")

            source.touch()
            wait_until(lambda: connect.ask("/connectors/source/config", config), "the source is created")
            connect.await_running("source")
            arrive("first")
            write("while it is killed")
            program.kill()
            program.start()
            connect.await_running("source")
            arrive("after a killed worker")
            write("while a broker is killed")
            ours.crash()
            connect.await_running("source")
            arrive("after a killed broker")
            write("while both are killed")
            program.kill()
            ours.crash()
            program.start()
            connect.await_running("source")
            arrive("after both were killed")
    assert arrived.lines() == written


class Arrived:
    """The values of a topic of one partition, at read_committed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        config = {"bootstrap.servers": bootstrap, "group.id": "arrived", "isolation.level": "read_committed"}
        self._consumer = Consumer({**config, "log_level": 0})
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._values: list[str] = []

    def lines(self) -> list[str]:
        for message in self._consumer.consume(1000, 0.1):
            if message.error() is None:
                self._values.append(message.value().decode())
        return self._values


def check_cleaned(ours: OneBroker | ThreeBrokers) -> None:
    """Connect's topics are compacted, and passes shrink them. The first pass of a new checkout compiles its kernels."""
    admin = AdminClient({"bootstrap.servers": ours.bootstrap})
    for store in STORES:
        resource = ConfigResource(ResourceType.TOPIC, f"connect-{store}")
        assert admin.describe_configs([resource])[resource].result(30)["cleanup.policy"].value == "compact"

    def shrunk() -> set[str]:
        return {found.partition for found in passes(ours.log()) if found.written_bytes < found.read_bytes}

    wait_until(lambda: shrunk() >= {"connect-offset-0", "connect-status-0"}, "Connect's topics are cleaned")
