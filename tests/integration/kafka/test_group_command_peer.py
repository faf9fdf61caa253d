"""Kafka's `ConsumerGroupCommand` says the same of our broker as of Apache Kafka 4.3.1, refusals too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from broker.groups.coordinator import OFFSETS_TOPIC
from broker.groups.records import partition_of
from tests.support.clients.stock_clients import Written, commit_offset, write_confluent
from tests.support.kafka.kafka_console import kafka_console
from tests.support.kafka.kafka_peer import kafka_peer
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.site import QUICK, Site
from tests.support.processes.three_brokers import three
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1_200)]

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TOPIC, OTHER, FIRST_MS, HOUR_MS = "orders", "other", 1_700_000_000_000, 3_600_000


def _reset(group: str, *words: str, topic: str = TOPIC) -> list[str]:
    return ["--reset-offsets", "--group", group, "--topic", topic, *words, "--execute"]


QUESTIONS: dict[str, list[str]] = {
    "list": ["--list"],
    "list states": ["--list", "--state"],
    "list the empty": ["--list", "--state", "Empty"],
    "list types": ["--list", "--type"],
    "list the classic ones": ["--list", "--type", "classic"],
    "describe": ["--describe", "--group", "still"],
    "describe one with a member": ["--describe", "--group", "busy"],
    "describe offsets of all": ["--describe", "--all-groups", "--offsets"],
    "describe members": ["--describe", "--group", "busy", "--members"],
    "describe members and what they read": ["--describe", "--group", "busy", "--members", "--verbose"],
    "describe members of an empty group": ["--describe", "--group", "left", "--members"],
    "describe states": ["--describe", "--all-groups", "--state"],
    "describe nobody": ["--describe", "--group", "nobody"],
    "describe the members of nobody": ["--describe", "--group", "nobody", "--members"],
    "reset what is read": _reset("busy", "--to-latest"),
    "reset, not done": ["--reset-offsets", "--group", "still", "--all-topics", "--to-earliest", "--dry-run"],
    "reset to an offset": _reset("still", "--to-offset", "7", topic=f"{TOPIC}:0"),
    "reset beyond the end": _reset("still", "--to-offset", "99"),
    "reset by shifting": _reset("still", "--shift-by", "-4"),
    "reset to a time": _reset("still", "--to-datetime", "2023-11-15T02:13:20.001"),
    "reset to an hour ago": _reset("still", "--by-duration", "PT1H"),
    "reset a topic that is none": _reset("still", "--to-latest", topic="nowhere"),
    "reset a group to be": _reset("unborn", "--to-earliest"),
    "describe what was reset": ["--describe", "--group", "still"],
    "describe what was born": ["--describe", "--group", "unborn"],
    "forget what is read": ["--delete-offsets", "--group", "busy", "--topic", TOPIC],
    "forget": ["--delete-offsets", "--group", "still", "--topic", f"{TOPIC}:1", "--topic", OTHER],
    "forget in a topic that is none": ["--delete-offsets", "--group", "still", "--topic", "nowhere"],
    "forget of nobody": ["--delete-offsets", "--group", "nobody", "--topic", TOPIC],
    "describe what is left": ["--describe", "--group", "still"],
    "delete one with a member": ["--delete", "--group", "busy"],
    "delete": ["--delete", "--group", "doomed-1", "--group", "doomed-2"],
    "delete nobody": ["--delete", "--group", "nobody"],
    "delete some": ["--delete", "--group", "doomed-3", "--group", "nobody"],
    "list after it": ["--list"],
}
"""Groups: `busy` has a member, `still` only commits, `left` had a member, `doomed…` are deleted here."""


SAID = {
    "list": "still",
    "describe": "still orders 0 3 10 7 - - -",
    "describe members and what they read": "reader-ID /127.0.0.1 reader 2 - orders:0,1",
    "reset what is read": "the group 'busy' is inactive, but the current state is Stable",
    "reset to a time": "still orders 0 5",
    "forget what is read": "GroupSubscribedToTopicException",
    "delete one with a member": "The group is not empty",
    "delete nobody": "GroupIdNotFoundException",
}
"""What Apache Kafka's answer holds, so that two equal outputs are not two equal failures of the test itself."""


def _commit(broker: str, group: str, topic: str, partition: int, offset: int) -> None:
    """Again while a coordinator has just been made."""
    not_yet = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)

    def committed() -> bool:
        try:
            commit_offset(broker, group, topic, partition, offset)
        except KafkaException as refused:
            assert refused.args[0].code() in not_yet, refused
            return False
        return True

    wait_until(committed, f"{group} commits")


def _fill(broker: str, replicas: int = 1) -> None:
    """Two topics, ten records a partition an hour apart, and groups that committed in them."""
    admin = AdminClient({"bootstrap.servers": broker})
    topics = [
        NewTopic(name, count, replicas, config={"retention.ms": "-1"}) for name, count in ((TOPIC, 2), (OTHER, 1))
    ]
    for made in admin.create_topics(topics).values():
        made.result(60)
    for topic, partition in ((TOPIC, 0), (TOPIC, 1), (OTHER, 0)):
        records = [Written(None, b"%d" % n, FIRST_MS + n * HOUR_MS) for n in range(10)]
        write_confluent(broker, topic, partition, records, "none", True)
    for topic, partition, offset in ((TOPIC, 0, 3), (TOPIC, 1, 10), (OTHER, 0, 5)):
        _commit(broker, "still", topic, partition, offset)
    for number in (1, 2, 3):
        _commit(broker, f"doomed-{number}", TOPIC, 0, number)


def _reader(broker: str, group: str) -> Consumer:
    """A member that has both partitions and committed in one of them."""
    settings = {"bootstrap.servers": broker, "group.id": group, "client.id": "reader", "auto.offset.reset": "earliest"}
    reader = Consumer({**settings, "enable.auto.commit": False, "session.timeout.ms": 45_000})
    reader.subscribe([TOPIC])
    wait_until(lambda: reader.poll(0.1) and len(reader.assignment()) == 2, f"{group} reads")
    (place, *_) = sorted(reader.assignment(), key=lambda p: p.partition)
    place.offset = 4
    reader.commit(offsets=[place], asynchronous=False)
    return reader


_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_COORDINATOR = re.compile(r"BROKER +\(\d+\)")
_TRACE_LINE = re.compile(r"^\s+at [\w.$/]+\(|^\s+\.\.\. \d+ more")


def comparable(text: str, *addresses: str) -> list[str]:
    """Lines without what is each broker's own: addresses, ids that are made up, column widths, the order of rows (that
    of hash tables) and the frames of stack traces."""
    for address in addresses:
        text = text.replace(address, "BROKER")
    lines = _COORDINATOR.sub("BROKER (ID)", text).splitlines()
    return sorted(
        " ".join(_UUID.sub("ID", line).split()) for line in lines if line.strip() and not _TRACE_LINE.match(line)
    )


Ask = Callable[..., list[str]]
"""Words for the tool; what it says of our broker, and of Apache Kafka."""


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Ours, and Apache Kafka, with the same in them."""
    require_kafka()
    home = tmp_path_factory.mktemp("beside")
    site = Site(home, DirectoryBucket(home / "bucket"), {**QUICK, "offsets.topic.num.partitions": 50})
    with site.broker() as ours, kafka_peer(home / "kafka") as theirs, kafka_console(home) as console:
        both = [ours.kafka, theirs]
        readers = []
        for broker in both:
            _fill(broker)
            _reader(broker, "left").close()
            readers.append(_reader(broker, "busy"))

        def of_each(*words: str) -> list[str]:
            found = []
            for broker in both:
                said = console.run(TOOL, "--bootstrap-server", broker, *words)
                found.append("\n".join([f"exit {said.code}", *comparable(f"{said.out}\n{said.err}", broker)]))
            return found

        yield of_each
        for reader in readers:
            reader.close()


def test_the_tool_says_the_same_through_any_of_three_brokers(tmp_path: Path) -> None:
    """Each question goes to another broker than the one before; from the middle on one is dead, which coordinated one
    of these groups: the tool finds its successor by itself, and what it says is what Kafka says."""
    require_kafka()
    site = Site(tmp_path, DirectoryBucket(tmp_path / "bucket"), {**QUICK, "offsets.topic.num.partitions": 50})
    with three(site) as ours, kafka_peer(tmp_path / "kafka") as theirs, kafka_console(tmp_path) as console:
        readers = []
        for everywhere, replicas in ((ours.everywhere, 3), (theirs, 1)):
            _fill(everywhere, replicas)
            _reader(everywhere, "left").close()
            readers.append(_reader(everywhere, "busy"))
        ours.wait(ours.is_whole, "every replica in sync", 90)

        def said(address: str, words: list[str], *addresses: str) -> list[str]:
            found = console.run(TOOL, "--bootstrap-server", address, *words)
            return [f"exit {found.code}", *comparable(f"{found.out}\n{found.err}", *addresses)]

        addresses, different = ours.everywhere.split(","), []
        alive = dict(zip((1, 2, 3), addresses, strict=True))
        for at, (label, words) in enumerate(QUESTIONS.items()):
            if at == len(QUESTIONS) // 2:
                rows = ours.rows(OFFSETS_TOPIC)
                victim = rows[partition_of("still", len(rows))].leader
                ours.kill(victim)
                del alive[victim]
            kafka = said(theirs, words, theirs)
            found = said(list(alive.values())[at % len(alive)], words, *addresses)
            if found != kafka:
                different.append(f"--- {label}: {' '.join(words)}\nours:\n{found}\nApache Kafka:\n{kafka}")
        assert not different, "\n".join(different)
        for reader in readers:
            reader.close()


def test_the_tool_says_the_same_of_both(ask: Ask) -> None:
    """Every question in turn: the later ones see what the earlier ones changed."""
    different = []
    for label, words in QUESTIONS.items():
        ours, theirs = ask(*words)
        assert SAID.get(label, "exit") in theirs, f"{label}: the question is not understood\n{theirs}"
        if ours != theirs:
            different.append(f"--- {label}: {' '.join(words)}\nours:\n{ours}\nApache Kafka:\n{theirs}")
    assert not different, "\n".join(different)
