"""Java: what VerifiableProducer wrote, VerifiableConsumer reads at the same offsets.

Once hot, once with every sealed segment only in the bucket; and both at once while leaders are killed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.stock_clients import create_topic
from tests.support.kafka.kafka_tools import SCRIPT, kafka_tool, require_kafka
from tests.support.processes.site import Site, wait_copied
from tests.support.processes.three_brokers import three
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]

TOPIC = "events"
COUNT = 20_000

Seen = dict[tuple[int, int], str]


def events(text: str, name: str) -> list[dict[str, Any]]:
    """The JSON lines of one kind that a tool printed."""
    lines = (json.loads(line) for line in text.splitlines() if line.startswith("{"))
    return [line for line in lines if line.get("name") == name]


def produced(kafka: str) -> Seen:
    """(partition, offset) → value of every acknowledged record."""
    text = kafka_tool(
        "org.apache.kafka.tools.VerifiableProducer",
        *("--bootstrap-server", kafka, "--topic", TOPIC, "--max-messages", str(COUNT), "--acks", "-1"),
    )
    assert not events(text, "producer_send_error")
    return {(e["partition"], e["offset"]): e["value"] for e in events(text, "producer_send_success")}


def consumed(kafka: str, group: str) -> Seen:
    """What VerifiableConsumer saw, from the beginning."""
    text = kafka_tool(
        "org.apache.kafka.tools.VerifiableConsumer",
        *("--bootstrap-server", kafka, "--topic", TOPIC, "--group-id", group, "--verbose"),
        *("--max-messages", str(COUNT), "--reset-policy", "earliest"),
    )
    return {(e["partition"], e["offset"]): e["value"] for e in events(text, "record_data")}


def test_the_java_client_reads_what_it_wrote_hot_and_cold(directory_site: Site) -> None:
    """Same value at every (partition, offset), and no record more."""
    require_kafka()
    site = directory_site
    site.settings["thermocline.reservation.offsets"] = 100_000  # VerifiableProducer does not retry by itself
    with site.broker() as broker:
        create_topic(broker.kafka, TOPIC, 2, internal_segment_bytes=16384, local_retention_ms=1000)
        written = produced(broker.kafka)
        assert len(written) == COUNT
        assert consumed(broker.kafka, "hot") == written
        wait_copied(broker, TOPIC)
        wait_until(lambda: len(site.local_log_files(TOPIC)) <= 2, "sealed segments gone from the disk")
        assert consumed(broker.kafka, "cold") == written


KILLS = 20
RETRIES = "retries=2147483647\nenable.idempotence=true\ndelivery.timeout.ms=300000\nretry.backoff.max.ms=300\n"
"""VerifiableProducer gives up what its first attempt did not place, unless it is told otherwise."""


class Tool:
    """One of the two as a process that runs until it is told to stop; what it printed so far."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self.process, self._said = process, said

    def events(self, name: str) -> list[dict[str, Any]]:
        whole = self._said.read_text().rpartition("\n")[0]  # the last line may be half there
        return events(whole, name)

    def stop(self) -> None:
        """SIGTERM: it closes its client, and says what it did."""
        self.process.terminate()
        self.process.wait(120)


@contextlib.contextmanager
def tool(folder: Path, name: str, *arguments: str) -> Iterator[Tool]:
    said = folder / f"{name}.out"
    command = [str(SCRIPT), "tool", f"org.apache.kafka.tools.{name}", "--topic", TOPIC, *arguments]
    with said.open("wb") as out, (folder / f"{name}.err").open("wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err)
    try:
        yield Tool(process, said)
    finally:
        process.kill()
        process.wait(30)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_java_clients_go_on_through_twenty_killed_leaders(directory_site: Site) -> None:
    """RF 3, min 2: what the producer was told is safe is there once at its offset, the consumer's group sees each
    record at least once and nothing else, and neither gives up."""
    require_kafka()
    folder = directory_site.directory
    (folder / "producer.properties").write_text(RETRIES)
    with three(directory_site) as cluster:
        cluster.create(TOPIC, 2, min_insync_replicas=2, internal_segment_bytes=65_536, local_retention_ms=1000)
        at = ("--bootstrap-server", cluster.everywhere)
        config = ("--throughput", "200", "--acks", "-1", "--command-config", str(folder / "producer.properties"))
        group = ("--group-id", "live", "--verbose", "--reset-policy", "earliest")
        with (
            tool(folder, "VerifiableProducer", *at, *config) as producer,
            tool(folder, "VerifiableConsumer", *at, *group) as consumer,
        ):
            for turn in range(KILLS):
                told = len(producer.events("producer_send_success"))
                cluster.wait(
                    lambda told=told: len(producer.events("producer_send_success")) > told + 50,  # type: ignore[misc]
                    f"records are acknowledged before kill {turn + 1}",
                    60,
                )
                leader = cluster.rows(TOPIC)[turn % 2].leader
                cluster.kill(leader)
                cluster.wait(
                    lambda turn=turn, leader=leader: cluster.rows(TOPIC)[turn % 2].leader not in (-1, leader),  # type: ignore[misc]
                    "another leader",
                )
                cluster.start(leader)
                cluster.wait(cluster.is_whole, "all in sync again", 60)
            producer.stop()
            acked = {(e["partition"], e["offset"]): e["value"] for e in producer.events("producer_send_success")}
            assert not producer.events("producer_send_error")
            cluster.wait(lambda: len(seen(consumer)) >= len(acked), "all of it consumed", 60)
            consumer.stop()
        assert seen(consumer) == acked and len(set(acked.values())) == len(acked) > KILLS * 50


def seen(consumer: Tool) -> Seen:
    return {(e["partition"], e["offset"]): e["value"] for e in consumer.events("record_data")}
