"""A Kafka Streams application (at least once) loses its state directory and gets its counts back from the changelog.

Application and brokers are killed with SIGKILL between the words; the changelog has been cleaned by then.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.support.kafka.kafka_program import kafka_program
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.kafka.word_count import MAIN, compile_word_count
from tests.support.processes.broker_lives import brokers, passes
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(240)]

WORDS = [f"word{number}" for number in range(20)]
CHANGELOG = "word-count-counts-changelog"


class Counts:
    """The newest count of each word, as the output topic has it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "log_level": 0})
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self.newest: dict[str, int] = {}

    def read(self) -> dict[str, int]:
        for message in self._consumer.consume(1000, 0.1):
            if message.error() is None:
                self.newest[message.key().decode()] = int(message.value())
        return self.newest


@pytest.mark.parametrize("count", [1, 3], ids=["one", "three"])
def test_counts_come_back_from_the_changelog(tmp_path: Path, count: int) -> None:
    """No word is missing from a count over three kills; a count is too high only by words that a kill repeated."""
    require_kafka()
    classes = compile_word_count(tmp_path)
    state = tmp_path / "state"
    sent: Counter[str] = Counter()
    with brokers(tmp_path, count) as ours:
        admin = AdminClient({"bootstrap.servers": ours.bootstrap, "log_level": 0})
        made = admin.create_topics([NewTopic(topic, 1, ours.replicas) for topic in ("lines", "counts")])
        for future in made.values():
            future.result(30)
        producer = Producer({"bootstrap.servers": ours.bootstrap, "enable.idempotence": True, "log_level": 0})
        counts = Counts(ours.bootstrap, "counts")
        arguments = (ours.bootstrap, "lines", "counts", str(state), str(ours.replicas), "2000")
        with kafka_program(tmp_path, MAIN, *arguments, classes=classes) as program:

            def more(mark: str) -> None:
                """Each word ten times more, and all of them counted: `mark` is the last word."""
                for _ in range(10):
                    producer.produce("lines", " ".join(WORDS), partition=0)
                producer.produce("lines", mark, partition=0)
                assert producer.flush(60) == 0
                sent.update(dict.fromkeys(WORDS, 10) | {mark: 1})
                wait_until(lambda: is_counted(mark), f"the words before {mark} are counted")
                assert all(counts.newest[word] >= number for word, number in sent.items()), (sent, counts.newest)

            def is_counted(mark: str) -> bool:
                program.check()
                return mark in counts.read()

            def again(lose_state: bool) -> None:
                program.kill()
                if lose_state:
                    shutil.rmtree(state)
                program.start()

            more("first")
            again(lose_state=False)
            more("second")
            ours.crash()
            more("third")
            wait_until(lambda: any(is_shrunk(found) for found in passes(ours.log())), "the changelog is cleaned")
            again(lose_state=True)
            more("fourth")
            program.kill()
            ours.crash()
            again(lose_state=True)
            more("fifth")
            restored = re.findall(rf"restored {CHANGELOG}-0 (\d+)", program.log_path.read_text())
        resource = ConfigResource(ResourceType.TOPIC, CHANGELOG)
        assert admin.describe_configs([resource])[resource].result(30)["cleanup.policy"].value == "compact"
    print(f"sent {sent['word0']}, counted {counts.newest['word0']}, restored {restored}", *passes(ours.log()), sep="\n")
    assert len(WORDS) <= int(restored[-1]) < sum(sent.values())
    # A kill repeats at most the ten lines that were counted last: from the input, and from the repartitioned words.
    assert all(counts.newest[word] <= sent[word] + 4 * 2 * 10 for word in WORDS)


def is_shrunk(found: object) -> bool:
    return found.partition.startswith(CHANGELOG) and found.written_bytes < found.read_bytes  # type: ignore[attr-defined]
