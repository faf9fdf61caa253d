"""Kafka's ReassignPartitionsCommand drives three brokers here and three of Apache Kafka 4.3.1, and prints the same.

What it generates is drawn at random and left out; so is what differs on purpose, a second target for a move (ADR 19).
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from broker.wire import messages as m
from broker.wire.apis import ApiKey
from tests.support.kafka.kafka_console import KafkaConsole, kafka_console
from tests.support.kafka.kafka_peer import kafka_peers
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import Three, three
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until
from thermocline.cli.clients.wire_client import WireClient

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(500)]

MOVES = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
DEAD = 3


class Beside(NamedTuple):
    folder: Path
    console: KafkaConsole
    kafka: str
    ours: str
    cluster: Three
    pids: list[int]

    def both(self, tool: str, *arguments: str) -> list[tuple[int, list[str]]]:
        """Kafka's, then ours."""
        found = [self.console.run(tool, "--bootstrap-server", at, *arguments) for at in (self.kafka, self.ours)]
        return [(each.code, alike(each.out + each.err)) for each in found]

    def once(self, tool: str, *arguments: str) -> list[str]:
        """What both print when they are asked once."""
        kafka, ours = self.both(tool, *arguments)
        assert ours == kafka, f"{arguments}:\nkafka {kafka}\nours  {ours}"
        return ours[1]

    def same(self, tool: str, *arguments: str, until: str = "") -> list[str]:
        """What both print, once it is the same, with `until` in it."""
        deadline_s = time.monotonic() + 60.0
        while True:
            kafka, ours = self.both(tool, *arguments)
            if kafka == ours and (not until or any(until in line for line in ours[1])):
                return ours[1]
            assert time.monotonic() < deadline_s, f"{arguments}:\nkafka {kafka}\nours  {ours}"

    def plan(self, **replicas: list[int]) -> str:
        """A file that moves partitions, written as topic_partition."""
        places = [(name.rpartition("_"), nodes) for name, nodes in replicas.items()]
        rows = [{"topic": name, "partition": int(index), "replicas": nodes} for (name, _, index), nodes in places]
        path = self.folder / "plan.json"
        path.write_text(json.dumps({"version": 1, "partitions": rows}))
        return str(path)

    def raw(
        self, *wanted: tuple[str, int, list[int] | None], factor: bool = True
    ) -> list[list[tuple[int, str | None]]]:
        """Codes and words of one request, Kafka's and ours."""
        topics = [
            m.AlterPartitionReassignmentsRequestTopic(
                topic, [m.AlterPartitionReassignmentsRequestPartition(index, replicas)]
            )
            for topic, index, replicas in wanted
        ]
        request = m.AlterPartitionReassignmentsRequest(topics=topics, allow_replication_factor_change=factor)
        found = []
        for at in (self.kafka, self.ours):
            host, _, port = at.partition(",")[0].rpartition(":")
            with WireClient(host, int(port), timeout_s=30.0) as client:
                answer = client.call(
                    ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, m.AlterPartitionReassignmentsResponse
                )
            assert (answer.error_code, answer.error_message) == (0, None)
            found.append([(p.error_code, p.error_message) for t in answer.responses for p in t.partitions])
        return found


def alike(text: str) -> list[str]:
    text = re.sub(r"TopicId: \S+", "TopicId: ID", text)
    text = re.sub(r"Configs: (\S+)", lambda found: "Configs: " + ",".join(sorted(found[1].split(","))), text)
    text = re.sub(r"(LastKnownElr|Elr): [\d,]*", r"\1:", text)
    text = re.sub(r"Isr: ([\d,]+)", lambda found: "Isr: " + ",".join(sorted(found[1].split(","))), text)
    text = re.sub(r'"log_dirs":\[[^]]*\]', '"log_dirs":[]', text)
    return sorted(line.strip() for line in text.splitlines() if line.strip() and "__" not in line)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    require_kafka()
    folder: Path = tmp_path_factory.mktemp("moves-beside")
    site = Site(folder, DirectoryBucket(folder / "bucket"))
    site.settings.pop("log.retention.ms")
    with kafka_peers(folder / "kafka", 3) as (kafka, pids), kafka_console(folder) as console, three(site) as cluster:
        found = Beside(folder, console, kafka, cluster.everywhere, cluster, pids)
        for topic, assignment in (("pair", "1:2,2:3"), ("alone", "1")):
            words = ("--create", "--topic", topic, "--replica-assignment", assignment)
            local = ("--config", "remote.storage.enable=false", "--config", "min.insync.replicas=1")
            found.once(TOPICS, *words, *local)
        yield found


def test_refusals_are_kafkas(beside: Beside) -> None:
    """Codes and words of what is wrong, and of what is so already."""
    wrong: list[tuple[str, int, list[int] | None]] = [
        ("pair", 0, []),
        ("pair", 0, [1, 9]),
        ("pair", 0, [1, -1]),
        ("pair", 0, [2, 1, 2]),
        ("pair", 9, [1]),
        ("nope", 0, [1]),
        ("pair", 0, None),
        ("pair", 0, [1, 2]),
    ]
    kafka, ours = beside.raw(*wrong)
    assert ours == kafka
    assert [code for code, _ in ours] == [39, 39, 39, 39, 3, 3, 85, 0]
    kafka, ours = beside.raw(("pair", 0, [1]), ("pair", 0, [1, 2, 3]), ("pair", 0, [2, 1]), factor=False)
    assert ours == kafka and [code for code, _ in ours] == [38, 38, 0]
    kafka, ours = beside.raw(("pair", 0, [1, 2]))
    assert ours == kafka == [(0, None)]


def test_the_command_moves_partitions(beside: Beside) -> None:
    """--generate, --execute with a throttle, --verify until it is over, which clears the throttle, --list."""
    topics = beside.folder / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "pair"}]}))
    words = ("--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3")
    kafka, ours = beside.both(MOVES, *words)
    assert kafka[0] == ours[0] == 0
    assert [line for line in kafka[1] if line[0] != "{"] == [line for line in ours[1] if line[0] != "{"]
    now = json.dumps({"replicas": [1, 2]}, separators=(",", ":"))[1:-1]
    assert any(now in line for line in ours[1])
    plan = beside.plan(pair_0=[2, 1], pair_1=[3, 1, 2], alone_0=[3])
    said = beside.once(MOVES, "--execute", "--reassignment-json-file", plan, "--throttle", "10000000")
    assert "Successfully started partition reassignments for alone-0,pair-0,pair-1" in said
    said = beside.same(MOVES, "--verify", "--reassignment-json-file", plan, until="Clearing broker-level throttles")
    assert sum("is completed" in line for line in said) == 3
    assert beside.same(MOVES, "--list") == ["No partition reassignments found."]
    lines = beside.same(TOPICS, "--describe")
    assert any("Topic: alone\tPartition: 0\tLeader: 3\tReplicas: 3\tIsr: 3" in line for line in lines)


def test_a_move_to_a_dead_broker_is_listed_and_called_off(beside: Beside) -> None:
    """It is told as under way, described with who joins and leaves, not started over, and cancelled."""
    os.kill(beside.pids[DEAD - 1], signal.SIGKILL)
    beside.cluster.kill(DEAD)
    for address in (beside.kafka, beside.ours):
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        wait_until(lambda admin=admin: DEAD not in admin.list_topics(timeout=10).brokers, "its session ended")  # type: ignore[misc]
    # The tool itself starts no move to a broker that is away, and cannot reach it to clear throttles.
    assert beside.raw(("pair", 0, [1, 3])) == [[(0, None)]] * 2
    plan = beside.plan(pair_0=[1, 3])
    said = beside.same(MOVES, "--list", until="pair-0")
    assert "pair-0: replicas: 1,3,2. adding: 3. removing: 2." in said
    words = ("--reassignment-json-file", plan, "--preserve-throttles")
    beside.same(MOVES, "--verify", *words, until="still in progress")
    lines = beside.same(TOPICS, "--describe", "--topic", "pair", until="Isr: 1,2\t")
    assert any("Adding Replicas: 3" in line and "Removing Replicas: 2" in line for line in lines)
    for name in ("under-replicated", "at-min-isr", "under-min-isr", "unavailable"):
        beside.same(TOPICS, "--describe", f"--{name}-partitions")
    beside.once(MOVES, "--execute", "--reassignment-json-file", beside.plan(pair_1=[1, 2]))
    plan = beside.plan(pair_0=[1, 3])
    said = beside.once(MOVES, "--cancel", *words)
    assert "Successfully cancelled partition reassignment for: pair-0" in said
    beside.same(MOVES, "--list", until="No partition reassignments found.")
    assert beside.raw(("pair", 0, None)) == [[(85, None)]] * 2


def test_a_topic_is_created_while_a_broker_is_away(beside: Beside) -> None:
    """The dead broker of the test above gets a replica, because the others are too few. It does not lead, and is not in
    sync. A replication factor above the number of registered brokers is refused in the same words."""
    words = ("--create", "--partitions", "3", "--config", "remote.storage.enable=false")
    beside.once(TOPICS, *words, "--topic", "meanwhile", "--replication-factor", "3")
    refused = beside.once(TOPICS, *words, "--topic", "more", "--replication-factor", "4")
    assert any("only 3 broker(s) are registered" in line for line in refused)
    for address in (beside.kafka, beside.ours):
        partitions = (
            AdminClient({"bootstrap.servers": address}).list_topics("meanwhile", timeout=10).topics["meanwhile"]
        )
        for partition in partitions.partitions.values():
            assert partition.replicas[2] == DEAD and sorted(partition.isrs) == [1, 2], (address, partition)
            assert partition.leader == partition.replicas[0]
