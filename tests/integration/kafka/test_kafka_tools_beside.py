"""Apache Kafka's own tools say the same of this broker as of Kafka 4.3.1: the same scenario on both, output for output.

What is made alike before it is compared: addresses, directories, topic ids, Kafka's topic for its remote log metadata,
the order of lines and of configs, Java's stack traces, and the defaults that docs/configuration.md calls ours. As a new
Kafka cluster, ours is told `min.insync.replicas=1` for all brokers first.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from broker.config.definitions import TOPIC
from tests.support.kafka.kafka_console import KafkaConsole, Said, kafka_console
from tests.support.kafka.kafka_peer import kafka_peer
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.broker_process import running_broker
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]

CONFIGS = "kafka.admin.ConfigCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
LOCAL = ("--config", "remote.storage.enable=false")
METADATA_TOPIC = "__remote_log_metadata"
OURS = tuple(name for name, found in TOPIC.items() if found.reason)


class Beside(NamedTuple):
    """Both brokers, and the tools. `places`: what is each one's own, by what it is called instead."""

    console: KafkaConsole
    kafka: str
    ours: str
    places: dict[str, str]

    def run(self, address: str, tool: str, *arguments: str) -> tuple[int, list[str], list[str]]:
        said = self.console.run(tool, "--bootstrap-server", address, *arguments)
        return said.code, self.alike(said.out), self.alike(said.err)

    def same(self, tool: str, *arguments: str) -> Said:
        """Run on both; AssertionError unless they said the same. What ours said."""
        kafka, ours = self.run(self.kafka, tool, *arguments), self.run(self.ours, tool, *arguments)
        assert ours == kafka, f"{tool.split('.')[-1]} {' '.join(arguments)}\nkafka: {kafka}\nours:  {ours}"
        return Said(ours[0], "\n".join(ours[1]), "\n".join(ours[2]))

    def alike(self, text: str) -> list[str]:
        for place, called in self.places.items():
            text = text.replace(place, called)
        text = re.sub(r"TopicId: \S+", "TopicId: ID", text)
        text = re.sub(r"Configs: (\S+)", lambda found: "Configs: " + ",".join(sorted(found[1].split(","))), text)
        lines = (line for line in map(alike_line, text.splitlines()) if line.strip())
        return sorted(line for line in lines if METADATA_TOPIC not in line and not line.startswith("\tat "))


def alike_line(line: str) -> str:
    """A line without what only one of the two can say."""
    if line.startswith('{"brokers"'):
        told = json.loads(line)
        for log_dir in (log_dir for broker in told["brokers"] for log_dir in broker["logDirs"]):
            partitions = [p for p in log_dir["partitions"] if not p["partition"].startswith(METADATA_TOPIC)]
            log_dir["partitions"] = sorted(partitions, key=lambda partition: partition["partition"])
        return json.dumps(told, sort_keys=True)
    line = re.sub(r"DEFAULT_CONFIG:(log\.segment\.bytes)=\d+", r"DEFAULT_CONFIG:\1=OURS", line)
    for name in OURS:
        if line.startswith(f"  {name}=") and "DYNAMIC_TOPIC_CONFIG" not in line:
            return f"  {name}=OURS"
    return line


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    with both_brokers(tmp_path_factory.mktemp("beside")) as found:
        yield found


@contextlib.contextmanager
def both_brokers(folder: Path) -> Iterator[Beside]:
    """Kafka and ours, freshly started; skips where Java is missing."""
    require_kafka()
    settings = {
        "log.retention.check.interval.ms": 1000,
        "remote.log.manager.task.interval.ms": 1000,
        "group.initial.rebalance.delay.ms": 0,
    }
    data = folder / "ours"
    with (
        kafka_peer(folder / "kafka") as kafka,
        kafka_console(folder) as console,
        running_broker(data, None, settings=settings) as broker,
    ):
        ours = broker.ready["kafka"]
        places = {kafka: "ADDRESS", ours: "ADDRESS", str(folder / "kafka/data"): "DIRECTORY", str(data): "DIRECTORY"}
        found = Beside(console, kafka, ours, places)
        alter = ("--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "min.insync.replicas=1")
        assert found.run(ours, CONFIGS, *alter)[0] == 0
        yield found


def topics(beside: Beside) -> Callable[..., Said]:
    return lambda *arguments: beside.same(TOPICS, *arguments)


def test_topics_are_created_listed_described_altered_and_deleted(beside: Beside) -> None:
    """TopicCommand's five verbs, with what each refuses."""
    same = topics(beside)
    made = same("--create", "--topic", "a", "--partitions", "3", "--replication-factor", "1", *LOCAL)
    assert made == (0, "Created topic a.", "")
    assert same("--create", "--topic", "a", "--partitions", "3").code == 1
    assert same("--create", "--topic", "a", "--partitions", "3", "--if-not-exists").code == 0
    same("--create", "--topic", "b.c", *LOCAL, "--config", "retention.ms=1000000", "--config", "segment.bytes=2000000")
    for wrong in (
        ("--topic", "b_c"),
        ("--topic", "bad/name"),
        ("--topic", "x", "--partitions", "0"),
        ("--topic", "x", "--replication-factor", "2"),
        ("--topic", "x", "--config", "nonsense=1"),
        ("--topic", "x", "--config", "retention.ms=soon"),
        ("--topic", "x", "--config", "retention.ms=-2"),
        ("--topic", "x", "--replica-assignment", "1:1"),
        ("--topic", "x", "--replica-assignment", "7"),
    ):
        assert same("--create", *wrong).code == 1, wrong
    same("--create", "--topic", "assigned", "--replica-assignment", "1,1,1", *LOCAL)
    assert same("--list").out.split() == ["a", "assigned", "b.c"]
    same("--list", "--topic", "a.*")
    same("--list", "--exclude-internal")
    same("--describe")
    same("--describe", "--topic", "a")
    same("--describe", "--topic", "a", "--partition-size-limit-per-response", "2")
    assert same("--describe", "--topic", "nope").code == 1
    same("--describe", "--topic", "nope", "--if-exists")
    for health in ("under-replicated", "unavailable", "under-min-isr", "at-min-isr"):
        same("--describe", f"--{health}-partitions")
    same("--describe", "--topics-with-overrides")
    same("--alter", "--topic", "a", "--partitions", "5")
    for count in ("2", "5", "0"):
        assert same("--alter", "--topic", "a", "--partitions", count).code == 1
    assert same("--alter", "--topic", "a", "--partitions", "6", "--replica-assignment", "1,1,1,1,1,7").code == 1
    same("--alter", "--topic", "a", "--partitions", "6", "--replica-assignment", "1,1,1,1,1,1")
    assert same("--alter", "--topic", "nope", "--partitions", "5").code == 1
    same("--alter", "--topic", "nope", "--partitions", "5", "--if-exists")
    same("--describe", "--topic", "a")
    for topic in ("a", "b.c", "assigned"):
        same("--delete", "--topic", topic)
    assert same("--delete", "--topic", "a").code == 1
    same("--delete", "--topic", "a", "--if-exists")
    assert same("--list").out == ""


def test_configs_of_topics_are_altered_and_described(beside: Beside) -> None:
    """ConfigCommand: what is set and its synonyms, everything, and each refusal."""
    topics(beside)("--create", "--topic", "c", *LOCAL, "--config", "segment.bytes=2000000")
    of = ("--entity-type", "topics", "--entity-name")

    def alter(change: str, topic: str = "c", verb: str = "--add-config") -> int:
        return beside.same(CONFIGS, "--alter", *of, topic, verb, change).code

    assert alter("retention.ms=5000,segment.ms=7000") == 0
    assert alter("cleanup.policy=[delete]") == 0
    beside.same(CONFIGS, "--describe", *of, "c")
    for wrong in ("nonsense=1", "retention.ms=x", "max.message.bytes=-1", "retention.ms"):
        assert alter(wrong) == 1, wrong
    for topic in ("nope", "bad/name"):
        assert alter("retention.ms=1", topic) == 1
    assert alter("retention.ms", verb="--delete-config") == 0
    assert alter("nonsense", verb="--delete-config") == 0
    assert alter("segment.ms,cleanup.policy", verb="--delete-config") == 0
    beside.same(CONFIGS, "--describe", *of, "nope")
    beside.same(CONFIGS, "--describe", *of, "c")
    beside.same(CONFIGS, "--describe", *of, "c", "--all")
    topics(beside)("--delete", "--topic", "c")


def test_configs_of_brokers_are_altered_and_described(beside: Beside) -> None:
    """For all brokers and for one: precedence as topics see it, and what may not change."""
    topics(beside)("--create", "--topic", "d", *LOCAL)
    everywhere, one = ("--entity-default",), ("--entity-name", "1")

    def alter(where: tuple[str, ...], change: str, verb: str = "--add-config") -> int:
        return beside.same(CONFIGS, "--alter", "--entity-type", "brokers", *where, verb, change).code

    def describe(*where: str) -> Said:
        return beside.same(CONFIGS, "--describe", "--entity-type", "brokers", *where)

    for where in (everywhere, one, (), ("--entity-name", "2"), ("--entity-name", "x")):
        describe(*where)
    assert alter(everywhere, "message.max.bytes=2000000,log.retention.ms=70000000") == 0
    assert alter(one, "log.retention.ms=60000000") == 0
    # Kafka's broker follows its metadata log a moment after it answered.
    all_of_d = ("--describe", "--entity-type", "topics", "--entity-name", "d", "--all")
    wait_until(lambda: "=60000000" in str(beside.run(beside.kafka, CONFIGS, *all_of_d)), "Kafka follows its change")
    describe(*everywhere)
    describe(*one)
    assert "DYNAMIC_BROKER_CONFIG:log.retention.ms=60000000" in beside.same(CONFIGS, *all_of_d).out
    for where, wrong in (
        (one, "num.partitions=3"),
        (everywhere, "log.dirs=/x"),
        (everywhere, "message.max.bytes=x"),
        (("--entity-name", "2"), "message.max.bytes=3"),
        (("--entity-name", "x"), "message.max.bytes=3"),
    ):
        assert alter(where, wrong) == 1, wrong
    assert alter(everywhere, "message.max.bytes", "--delete-config") == 0
    assert alter(one, "log.retention.ms", "--delete-config") == 0
    alter(everywhere, "log.retention.ms,nonsense", "--delete-config")
    assert alter(everywhere, "log.retention.ms", "--delete-config") == 0
    wait_until(
        lambda: "BROKER_CONFIG:log.ret" not in str(beside.run(beside.kafka, CONFIGS, *all_of_d)), "it again does"
    )
    describe(*everywhere)
    beside.same(CONFIGS, *all_of_d)
    for kind in ("groups", "client-metrics"):
        beside.same(CONFIGS, "--describe", "--entity-type", kind)
    topics(beside)("--delete", "--topic", "d")


TIMES = (
    "latest",
    "earliest",
    "max-timestamp",
    "earliest-local",
    "latest-tiered",
    "earliest-pending-upload",
    *(str(sentinel) for sentinel in range(-1, -7, -1)),
    "1700000000500",
    "1700000001000",
    "9999999999999",
    "0",
    "-7",  # no sentinel: UNSUPPORTED_VERSION
)
WRONG_TIMES = ("soon", "1.5")


def produce(address: str, topic: str, count: int) -> None:
    """Batches of one record, 100 ms apart, alike on both."""
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 0})
    for at in range(count):
        producer.produce(topic, b"v" * 500, partition=0, timestamp=1_700_000_000_000 + at * 100)
        assert producer.flush(30) == 0


def test_offsets_of_all_times_and_log_directories(beside: Beside) -> None:
    """GetOffsetShell with each --time, on a local topic and on one of which a part is only in the bucket; sizes."""
    same = topics(beside)
    bounds = ("message.timestamp.before.max.ms=9223372036854775807", "retention.ms=-1")
    common = [word for bound in bounds for word in ("--config", bound)]
    same("--create", "--topic", "local", "--partitions", "3", *LOCAL, *common)
    sunk = ("remote.storage.enable=true", "internal.segment.bytes=3000", "local.retention.bytes=1")
    same("--create", "--topic", "sunk", *common, *(word for config in sunk for word in ("--config", config)))
    for address in (beside.kafka, beside.ours):
        produce(address, "local", 12)
        produce(address, "sunk", 40)
    earliest_local = ("--topic", "sunk", "--time", "earliest-local")

    def settled() -> bool:
        """Both have sunk what they can: all segments but the active one left the disk."""
        kafka, ours = (beside.run(address, OFFSETS, *earliest_local) for address in (beside.kafka, beside.ours))
        return kafka == ours and kafka[1] != ["sunk:0:0"]

    wait_until(settled, "both have let the same local segments go", timeout_s=90)
    for time in TIMES:
        beside.same(OFFSETS, "--topic", "local", "--time", time)
        beside.same(OFFSETS, "--topic", "sunk", "--time", time)
    for time in WRONG_TIMES:
        assert beside.same(OFFSETS, "--topic", "local", "--time", time).code == 1
    assert beside.same(OFFSETS, "--topic", "sunk", "--time", "earliest").out == "sunk:0:0"
    beside.same(OFFSETS)
    beside.same(OFFSETS, "--topic-partitions", "local:1-3")
    assert beside.same(OFFSETS, "--topic", "nope").code == 1
    beside.same(OFFSETS, "--exclude-internal-topics")
    beside.same(LOG_DIRS, "--describe", "--topic-list", "local")
    beside.same(LOG_DIRS, "--describe", "--topic-list", "nope")
    beside.same(LOG_DIRS, "--describe", "--broker-list", "1", "--topic-list", "local")
    for brokers in ("2", "1,2", "x"):
        assert beside.same(LOG_DIRS, "--describe", "--broker-list", brokers).code == 1
    for topic in ("local", "sunk"):
        same("--delete", "--topic", topic)
