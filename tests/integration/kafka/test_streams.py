"""Kafka Streams applications lose their state directory and get their stores back from the changelogs.

Application and brokers are killed with SIGKILL between the words; the changelog has been cleaned by then. At least once
a kill may repeat words. Exactly once (KIP-447) each word counts once, and each pair of a windowed join comes out once.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.support.kafka.kafka_program import KafkaProgram, kafka_program
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.kafka.streams_application import MAIN, compile_application
from tests.support.processes.broker_lives import OneBroker, ThreeBrokers, brokers, passes
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(240)]

WORDS = [f"word{number}" for number in range(20)]
CHANGELOG = "word-count-counts-changelog"
AT_LEAST_ONCE, EXACTLY_ONCE = "at_least_once", "exactly_once_v2"


class Output:
    """What a topic of one partition has, at read_committed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        config = {"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": "read_committed"}
        self._consumer = Consumer({**config, "log_level": 0})
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self.values: dict[str, list[str]] = {}
        """Of each key, in their order."""

    def read(self) -> dict[str, list[str]]:
        for message in self._consumer.consume(1000, 0.1):
            if message.error() is None:
                self.values.setdefault(message.key().decode(), []).append(message.value().decode())
        return self.values

    def newest(self, word: str) -> int:
        return int(self.values[word][-1])


@dataclass
class Application:
    """A running application, its brokers and its input."""

    ours: OneBroker | ThreeBrokers
    admin: AdminClient
    producer: Producer
    output: Output
    program: KafkaProgram
    state: Path

    def read(self) -> dict[str, list[str]]:
        self.program.check()
        return self.output.read()

    def again(self, *, lose_state: bool) -> None:
        """kill -9, and its next life."""
        self.program.kill()
        if lose_state:
            shutil.rmtree(self.state)
        self.program.start()


@contextmanager
def application(
    folder: Path, count: int, topology: str, guarantee: str, inputs: Sequence[str], output: str
) -> Iterator[Application]:
    require_kafka()
    classes = compile_application(folder)
    state = folder / "state"
    with brokers(folder, count) as ours:
        admin = AdminClient({"bootstrap.servers": ours.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(topic, 1, ours.replicas) for topic in (*inputs, output)]).values():
            future.result(30)
        producer = Producer({"bootstrap.servers": ours.bootstrap, "enable.idempotence": True, "log_level": 0})
        arguments = (topology, guarantee, ours.bootstrap, ",".join(inputs), output, str(state), str(ours.replicas))
        with kafka_program(folder, MAIN, *arguments, "2000", classes=classes) as program:
            yield Application(ours, admin, producer, Output(ours.bootstrap, output), program, state)


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, EXACTLY_ONCE])
@pytest.mark.parametrize("count", [1, 3], ids=["one", "three"])
def test_counts_come_back_from_the_changelog(tmp_path: Path, count: int, guarantee: str) -> None:
    """No word is missing from a count over three kills; a count is too high only by words that a kill repeated, and
    exactly once never."""
    sent: Counter[str] = Counter()
    with application(tmp_path, count, "count", guarantee, ["lines"], "counts") as app:

        def more(mark: str) -> None:
            """Each word ten times more, and all of them counted: `mark` is the last word."""
            for _ in range(10):
                app.producer.produce("lines", " ".join(WORDS), partition=0)
            app.producer.produce("lines", mark, partition=0)
            assert app.producer.flush(60) == 0
            sent.update(dict.fromkeys(WORDS, 10) | {mark: 1})
            wait_until(lambda: mark in app.read(), f"the words before {mark} are counted")
            short = {word: number for word, number in sent.items() if app.output.newest(word) < number}
            assert not short, (short, {word: app.output.values[word][-3:] for word in short})

        more("first")
        app.again(lose_state=False)
        more("second")
        app.ours.crash()
        more("third")
        wait_until(lambda: any(is_shrunk(found) for found in passes(app.ours.log())), "the changelog is cleaned")
        app.again(lose_state=True)
        more("fourth")
        app.program.kill()
        app.ours.crash()
        app.again(lose_state=True)
        more("fifth")
        restored = re.findall(rf"restored {CHANGELOG}-0 (\d+)", app.program.log_path.read_text())
        resource = ConfigResource(ResourceType.TOPIC, CHANGELOG)
        assert app.admin.describe_configs([resource])[resource].result(30)["cleanup.policy"].value == "compact"
        counted = {word: [int(value) for value in values] for word, values in app.output.values.items()}
    print(
        f"sent {sent['word0']}, counted {counted['word0'][-1]}, restored {restored}", *passes(app.ours.log()), sep="\n"
    )
    if guarantee == EXACTLY_ONCE:
        assert counted == {word: list(range(1, number + 1)) for word, number in sent.items()}
    else:
        assert len(WORDS) <= int(restored[-1]) < sum(sent.values())
        # A kill repeats at most the ten lines counted last: from the input, and from the repartitioned words.
        assert all(counted[word][-1] <= sent[word] + 4 * 2 * 10 for word in WORDS)


def is_shrunk(found: object) -> bool:
    return found.partition.startswith(CHANGELOG) and found.written_bytes < found.read_bytes  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [1, 3], ids=["one", "three"])
def test_each_pair_of_a_windowed_join_comes_out_once(tmp_path: Path, count: int) -> None:
    """Exactly once, over kills of application and broker, with state and without."""
    expected: dict[str, list[str]] = {}
    with application(tmp_path, count, "join", EXACTLY_ONCE, ["left", "right"], "pairs") as app:

        def more(mark: str) -> None:
            """Twenty keys more on the left, the right and the left again: two pairs each."""
            for part, topic in enumerate(("left", "right", "left")):
                for number in range(20):
                    app.producer.produce(topic, f"{mark}.{part}", key=f"{mark}-{number}", partition=0)
            assert app.producer.flush(60) == 0
            keys = [f"{mark}-{number}" for number in range(20)]
            expected.update({key: [f"{mark}.{part}+{mark}.1" for part in (0, 2)] for key in keys})
            wait_until(
                lambda: all(len(app.read().get(key, ())) >= len(expected[key]) for key in keys),
                f"the pairs of {mark} come out",
            )

        more("first")
        app.again(lose_state=False)
        more("second")
        app.ours.crash()
        more("third")
        app.again(lose_state=True)
        more("fourth")
        app.program.kill()
        app.ours.crash()
        app.again(lose_state=False)
        more("fifth")
        app.read()
        assert {key: sorted(pairs) for key, pairs in app.output.values.items()} == expected
