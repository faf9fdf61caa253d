"""Three brokers, one of them dead, beside Apache Kafka 4.3.1 in the same state: its tools and librdkafka say the same.

What is made alike before it is compared: topic ids, internal topics, and LastKnownElr, where Kafka names the last
leader of a partition that has none; a row here does not keep it. Replicas are assigned, so both sides lose the same.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.kafka.kafka_console import KafkaConsole, kafka_console
from tests.support.kafka.kafka_peer import kafka_peers
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import three
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(500)]

TOPICS = "org.apache.kafka.tools.TopicCommand"
LOCAL = ("--config", "remote.storage.enable=false")
DEAD = 3
MADE = {
    "three": ("1:2:3,2:3:1,3:1:2", "2"),
    "strict": ("1:2:3,2:3:1,3:1:2", "3"),  # two are too few for it
    "pair": ("2:3,3:2", "1"),
    "alone": ("1,2,3", "1"),  # its last partition is gone with broker 3
}


class Beside(NamedTuple):
    console: KafkaConsole
    kafka: str
    ours: str

    def same(self, *arguments: str) -> list[str]:
        """TopicCommand on both, once they say the same; what ours said."""

        def said(address: str) -> tuple[int, list[str], list[str]]:
            found = self.console.run(TOPICS, "--bootstrap-server", address, *arguments)
            return found.code, alike(found.out), alike(found.err)

        def told() -> list[object]:
            return [said(self.kafka), said(self.ours)]

        both = told()
        wait_until(lambda: both[0] == both[1] or _again(both, told), f"{arguments}: kafka, then ours: {both}", 60)
        return both[1][1]  # type: ignore[index,no-any-return]


def _again(both: list[object], told: object) -> bool:
    both[:] = told()  # type: ignore[operator]
    return both[0] == both[1]


def alike(text: str) -> list[str]:
    text = re.sub(r"TopicId: \S+", "TopicId: ID", text)
    text = re.sub(r"Configs: (\S+)", lambda found: "Configs: " + ",".join(sorted(found[1].split(","))), text)
    text = re.sub(r"LastKnownElr: [\d,]*", "LastKnownElr:", text)
    return sorted(line for line in text.splitlines() if line.strip() and "__" not in line)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """Both made alike; broker 3 of each was killed, and both know it."""
    require_kafka()
    folder: Path = tmp_path_factory.mktemp("three-beside")
    site = Site(folder, DirectoryBucket(folder / "bucket"))
    site.settings.pop("log.retention.ms")  # a topic would be described with it
    with kafka_peers(folder / "kafka", 3) as (kafka, pids), kafka_console(folder) as console, three(site) as cluster:
        found = Beside(console, kafka, cluster.everywhere)
        for topic, (assignment, minimum) in MADE.items():
            words = ("--create", "--topic", topic, "--replica-assignment", assignment, *LOCAL)
            found.same(*words, "--config", f"min.insync.replicas={minimum}")
        os.kill(pids[DEAD - 1], signal.SIGKILL)
        cluster.kill(DEAD)
        for address in (kafka, cluster.everywhere):
            admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
            wait_until(lambda admin=admin: DEAD not in admin.list_topics(timeout=10).brokers, "its session ended")  # type: ignore[misc]
        yield found


def test_topics_are_described_alike_while_a_broker_is_dead(beside: Beside) -> None:
    """Leaders, replicas, in-sync and eligible leaders of every partition, and each list of what is wrong."""
    lines = beside.same("--describe")
    assert sum("\tPartition: " in line for line in lines) == 11
    short = {name: beside.same("--describe", f"--{name}-partitions") for name in ("under-replicated", "unavailable")}
    short |= {name: beside.same("--describe", f"--{name}-partitions") for name in ("under-min-isr", "at-min-isr")}
    named = {name: {_place(line) for line in found} for name, found in short.items()}
    replicated = {(t, p) for t, count in (("three", 3), ("strict", 3), ("pair", 2)) for p in range(count)}
    assert named["under-replicated"] == replicated | {("alone", 2)}
    assert named["unavailable"] == {("alone", 2)}
    assert named["under-min-isr"] >= {("strict", p) for p in range(3)}
    assert named["at-min-isr"] >= {("three", p) for p in range(3)}


def _place(line: str) -> tuple[str, int]:
    found = re.search(r"Topic: (\S+)\s+Partition: (\d+)", line)
    assert found, line
    return found[1], int(found[2])


def test_librdkafka_lists_the_same_metadata_while_a_broker_is_dead(beside: Beside) -> None:
    """What `kcat -L` prints, by librdkafka itself: leader, replicas, in-sync replicas and error of each partition."""

    def listed(address: str) -> dict[tuple[str, int], tuple[int, list[int], list[int], str]]:
        found = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=20)
        assert sorted(found.brokers) == [1, 2]
        return {
            (topic, p.id): (p.leader, p.replicas, sorted(p.isrs), "" if p.error is None else p.error.name())
            for topic in MADE
            for p in found.topics[topic].partitions.values()
        }

    kafka, ours = listed(beside.kafka), listed(beside.ours)
    assert ours == kafka
    assert ours["alone", 2][0] == -1 and ours["alone", 2][3] == "LEADER_NOT_AVAILABLE"
