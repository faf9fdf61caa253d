"""Kafka's `ConsumerGroupCommand` says the same of our broker as of Apache Kafka 4.3.1, refusals too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from tests.support.buckets import DirectoryBucket
from tests.support.kafka_console import kafka_console
from tests.support.kafka_peer import kafka_peer
from tests.support.kafka_tools import require_kafka
from tests.support.site import QUICK, Site
from tests.support.stock_clients import Written, commit_offset, create_topic, write_confluent
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


def _fill(broker: str) -> None:
    """Two topics, ten records a partition an hour apart, and groups that committed in them."""
    create_topic(broker, TOPIC, 2, retention_ms=-1)
    create_topic(broker, OTHER, 1, retention_ms=-1)
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
_TRACE_LINE = re.compile(r"^\s+at [\w.$/]+\(|^\s+\.\.\. \d+ more")


def comparable(text: str, bootstrap: str) -> list[str]:
    """Lines without what is each broker's own: addresses, ids that are made up, column widths, the order of rows (that
    of hash tables) and the frames of stack traces."""
    lines = text.replace(bootstrap, "BROKER").splitlines()
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


def test_the_tool_says_the_same_of_both(ask: Ask) -> None:
    """Every question in turn: the later ones see what the earlier ones changed."""
    different = []
    for label, words in QUESTIONS.items():
        ours, theirs = ask(*words)
        assert SAID.get(label, "exit") in theirs, f"{label}: the question is not understood\n{theirs}"
        if ours != theirs:
            different.append(f"--- {label}: {' '.join(words)}\nours:\n{ours}\nApache Kafka:\n{theirs}")
    assert not different, "\n".join(different)
