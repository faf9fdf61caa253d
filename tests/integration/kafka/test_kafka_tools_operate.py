"""Three brokers beside Apache Kafka 4.3.1: elections that are asked for, log directories and throttles, by its tools.

Replicas are assigned, so both sides lead the same; broker 3 of each is killed, and comes back, on the way. The tests
are steps of one story, in this order.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsRequestDir,
    AlterReplicaLogDirsRequestTopic,
    AlterReplicaLogDirsResponse,
)
from tests.support.kafka.kafka_console import KafkaConsole, Said, kafka_console
from tests.support.kafka.kafka_peer import kafka_peers
from tests.support.kafka.kafka_tools import SCRIPT, require_kafka
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import Three, three
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until
from thermocline.cli.clients.wire_client import WireClient

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(500)]

TOOLS = "org.apache.kafka.tools."
DEAD = 3
MADE = {"three": "1:2:3,2:3:1,3:1:2", "pair": "2:3,3:2", "alone": "1,2,3"}


class Beside(NamedTuple):
    console: KafkaConsole
    folder: Path
    kafka: str
    pids: list[int]
    cluster: Three

    def both(self, tool: str, *words: str) -> tuple[Said, Said]:
        kafka, ours = (
            self.console.run(TOOLS + tool, "--bootstrap-server", address, *words)
            for address in (self.kafka, self.cluster.everywhere)
        )
        return kafka, ours

    def same(self, tool: str, *words: str) -> list[str]:
        """What both say; how they end is the same too."""
        kafka, ours = self.both(tool, *words)
        assert (ours.code, alike(ours)) == (kafka.code, alike(kafka)), f"{words}\n{kafka}\n{ours}"
        return alike(ours)

    def elect(self, kind: str, *words: str) -> list[str]:
        return self.same("LeaderElectionCommand", "--election-type", kind, *words)

    def kill(self) -> None:
        os.kill(self.pids[DEAD - 1], signal.SIGKILL)
        self.cluster.kill(DEAD)
        for admin in self.admins():
            wait_until(lambda admin=admin: DEAD not in admin.list_topics(timeout=10).brokers, "its session ended", 60)  # type: ignore[misc]

    def restart(self) -> None:
        done = subprocess.run(
            [str(SCRIPT), "restart", str(DEAD)],
            env={**os.environ, "KAFKA_PEER_RUN": str(self.folder / "kafka"), "KAFKA_PEER_HEAP": "-Xms256m -Xmx512m"},
            capture_output=True,
            check=True,
            timeout=120,
        )
        self.pids[DEAD - 1] = int(done.stdout)
        self.cluster.start(DEAD)
        for admin in self.admins():
            wait_until(lambda admin=admin: is_whole(admin), "every replica is in sync", 60)  # type: ignore[misc]

    def admins(self) -> list[AdminClient]:
        return [
            AdminClient({"bootstrap.servers": address, "log_level": 0})
            for address in (self.kafka, self.cluster.everywhere)
        ]


def is_whole(admin: AdminClient) -> bool:
    topics = admin.list_topics(timeout=10).topics
    return all(len(p.isrs) == len(p.replicas) for name in MADE for p in topics[name].partitions.values())


def alike(said: Said) -> list[str]:
    """Each line once, sorted, without stack frames, directories and internal topics, which differ; a set is printed in
    any order."""
    lines = [re.sub(r',"log_dirs":\[[^]]*\]', "", line) for line in (said.out + said.err).splitlines()]
    lines = [line for line in lines if line.strip() and not line.startswith("\tat ")]
    lines = [re.sub(r"(?<=for partitions )(.*)$", _named, line) for line in lines]
    return sorted({re.sub(r"\d+ replica", "N replica", line) for line in lines if "__" not in line})


def _named(found: re.Match[str]) -> str:
    return ", ".join(sorted(name for name in found[1].split(", ") if "__" not in name))


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    require_kafka()
    folder: Path = tmp_path_factory.mktemp("operate")
    site = Site(folder, DirectoryBucket(folder / "bucket"))
    with kafka_peers(folder / "kafka", 3) as (kafka, pids), kafka_console(folder) as console, three(site) as cluster:
        found = Beside(console, folder, kafka, pids, cluster)
        for topic, assignment in MADE.items():
            words = "--create", "--topic", topic, "--replica-assignment", assignment
            found.same("TopicCommand", *words, "--config", "remote.storage.enable=false")
        for admin in found.admins():
            wait_until(lambda admin=admin: is_whole(admin), "every replica is in sync", 60)  # type: ignore[misc]
        yield found


def test_nothing_is_elected_where_the_right_ones_lead(beside: Beside) -> None:
    for kind in ("preferred", "unclean"):
        beside.elect(kind, "--all-topic-partitions")
        assert any("lready elected" in line for line in beside.elect(kind, "--topic", "three", "--partition", "0"))
        beside.elect(kind, "--topic", "nope", "--partition", "0")
        beside.elect(kind, "--topic", "three", "--partition", "9")


def test_log_directories_are_described_alike(beside: Beside) -> None:
    """Of all brokers, and of some; each names its one directory and the replicas in it, led and followed."""

    def shown(said: Said) -> dict[int, list[tuple[str, object]]]:
        (line,) = [line for line in said.out.splitlines() if line.startswith("{")]
        brokers = json.loads(line)["brokers"]
        return {
            each["broker"]: sorted(
                (p["partition"], p["isFuture"])
                for of in each["logDirs"]
                for p in of["partitions"]
                if not p["partition"].startswith("__")
            )
            for each in brokers
        }

    for words in ((), ("--topic-list", "three,alone"), ("--broker-list", "2,3"), ("--topic-list", "nope")):
        kafka, ours = beside.both("LogDirsCommand", "--describe", *words)
        assert (ours.code, shown(ours)) == (kafka.code, shown(kafka)), words
    assert shown(ours) == {1: [], 2: [], 3: []}
    kafka, ours = beside.both("LogDirsCommand", "--describe")
    names = {f"{name}-{index}" for name, count in (("three", 3), ("pair", 2), ("alone", 3)) for index in range(count)}
    assert {name for found in shown(ours).values() for name, _ in found} == names


def test_replicas_stay_in_the_one_directory(beside: Beside) -> None:
    """AlterReplicaLogDirs: to where it lies, to a directory that is none, of a replica that lies elsewhere, of nothing
    that is known, and of a name too long for a second directory."""
    wanted = [("three", [0, 9]), ("alone", [0, 1]), ("nope", [0]), ("n" * 220, [0])]

    def judged(address: str, path: str) -> dict[tuple[str, int], str]:
        topics = [AlterReplicaLogDirsRequestTopic(name=name, partitions=indexes) for name, indexes in wanted]
        dirs = [AlterReplicaLogDirsRequestDir(path=at, topics=topics) for at in (path,)]
        host, _, port = address.partition(":")
        with WireClient(host, int(port), timeout_s=30.0) as client:
            asked = AlterReplicaLogDirsRequest(dirs=dirs)
            answer = client.call(ApiKey.ALTER_REPLICA_LOG_DIRS, asked, AlterReplicaLogDirsResponse)
        return {
            (topic.topic_name, part.partition_index): ErrorCode(part.error_code).name
            for topic in answer.results
            for part in topic.partitions
        }

    kafka, ours = beside.kafka.split(",")[0], beside.cluster.everywhere.split(",")[0]
    there, here = str(beside.folder / "kafka" / "data"), directory_of(beside, 1)
    found = judged(ours, here)
    assert found == judged(kafka, there)
    assert found["three", 0] == "NONE" and found["alone", 1] == "REPLICA_NOT_AVAILABLE"
    for path in ("/nowhere", ""):
        assert judged(ours, path) == judged(kafka, path)
    assert judged(ours, f"{here}/") == judged(kafka, f"{there}/")


def directory_of(beside: Beside, node_id: int) -> str:
    said = beside.console.run(
        TOOLS + "LogDirsCommand",
        *("--bootstrap-server", beside.cluster.everywhere, "--describe", "--broker-list", str(node_id)),
    )
    (line,) = [line for line in said.out.splitlines() if line.startswith("{")]
    return str(json.loads(line)["brokers"][0]["logDirs"][0]["logDir"])


THROTTLE = "leader.replication.throttled.rate=1000000,follower.replication.throttled.rate=2000000"


def test_throttles_are_set_shown_and_taken_back_alike(beside: Beside) -> None:
    """As `kafka-reassign-partitions --throttle` does it, and by hand; a wrong list is refused."""

    def both(*words: str) -> tuple[Said, Said]:
        kafka, ours = (
            beside.console.run("kafka.admin.ConfigCommand", "--bootstrap-server", address, *words)
            for address in (beside.kafka, beside.cluster.everywhere)
        )
        return kafka, ours

    def refused(*words: str) -> str:
        """As what; the words differ."""
        kafka, ours = (re.findall(r"errors\.(\w+Exception)", said.err)[0] for said in both(*words))
        assert ours == kafka, words
        return ours

    def configs(*words: str) -> list[str]:
        kafka, ours = both(*words)
        assert (ours.code, alike(ours)) == (kafka.code, alike(kafka)), f"{words}\n{kafka}\n{ours}"
        return alike(ours)

    broker = "--entity-type", "brokers", "--entity-name", "1"
    topic = "--entity-type", "topics", "--entity-name", "three"
    configs("--alter", *broker, "--add-config", THROTTLE)
    assert any("follower.replication.throttled.rate=2000000" in line for line in configs("--describe", *broker))
    lists = "leader.replication.throttled.replicas=[0:1,1:2],follower.replication.throttled.replicas=*"
    configs("--alter", *topic, "--add-config", lists)
    assert any("throttled.replicas=*" in line for line in configs("--describe", *topic))
    assert refused("--alter", *topic, "--add-config", "follower.replication.throttled.replicas=1-2")
    assert refused("--alter", *broker, "--add-config", "follower.replication.throttled.rate=-1")
    names = ",".join(pair.partition("=")[0] for pair in THROTTLE.split(","))
    configs("--alter", *broker, "--delete-config", names)
    configs("--alter", *broker, "--delete-config", "replica.alter.log.dirs.io.max.bytes.per.second")
    configs("--alter", *topic, "--delete-config", "leader.replication.throttled.replicas")
    configs("--alter", *topic, "--delete-config", "follower.replication.throttled.replicas")
    configs("--describe", *broker)


def test_who_is_away_is_not_elected(beside: Beside) -> None:
    """The preferred replica of some is dead, and of `alone-2` all."""
    beside.kill()
    said = beside.elect("preferred", "--topic", "three", "--partition", "2")
    assert any("PreferredLeaderNotAvailable" in line for line in said)
    beside.elect("preferred", "--all-topic-partitions")
    beside.elect("unclean", "--all-topic-partitions")
    said = beside.elect("unclean", "--topic", "alone", "--partition", "2")
    assert any("EligibleLeadersNotAvailable" in line for line in said)


def test_preferred_replicas_lead_again(beside: Beside) -> None:
    """Those of a file, then all the rest; then nothing is left to elect."""
    beside.restart()
    chosen = beside.folder / "chosen.json"
    places = [{"topic": "three", "partition": index} for index in range(3)]
    chosen.write_text(json.dumps({"partitions": places}))
    said = beside.elect("preferred", "--path-to-json-file", str(chosen))
    assert any("three-2" in line and "uccessfully" in line for line in said)
    said = beside.elect("preferred", "--all-topic-partitions")
    assert any("pair-1" in line and "three" not in line for line in said)
    beside.elect("preferred", "--all-topic-partitions")
    leaders = [
        {
            (name, p.id): p.leader
            for name in MADE
            for p in admin.list_topics(timeout=10).topics[name].partitions.values()
        }
        for admin in beside.admins()
    ]
    assert leaders[0] == leaders[1] and leaders[1]["three", 2] == leaders[1]["pair", 1] == 3


def test_a_reassignment_with_a_throttle_sets_it_and_takes_it_back(beside: Beside) -> None:
    """`--execute --throttle`, then `--verify`: rates of all brokers and replicas of the topic, in Kafka's words."""
    plan = beside.folder / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "pair", "partition": 0, "replicas": [1, 2]}]}))
    words = "--reassignment-json-file", str(plan)
    tool = "reassign.ReassignPartitionsCommand"
    said = beside.same(tool, *words, "--execute", "--throttle", "5000000")
    assert any("throttle limit was set to 5000000" in line for line in said)
    for admin in beside.admins():
        wait_until(lambda admin=admin: replicas(admin) == [1, 2], "it is moved", 60)  # type: ignore[misc]
    said = beside.same(tool, *words, "--verify")
    assert any("is completed" in line for line in said) and any("Clearing" in line for line in said)
    assert beside.same(tool, *words, "--verify") == said


def replicas(admin: AdminClient) -> list[int]:
    return list(admin.list_topics(timeout=10).topics["pair"].partitions[0].isrs)
