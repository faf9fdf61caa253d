"""The clients of the soak, a thread each: producers, the reader that checks them, a group, replays, an admin.

All are stock (librdkafka), all outlive kills: endless patience, short back-offs. What they learn goes into the books.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.soak.ledger import Books
from tests.support.clients.access import Access
from tests.support.clients.stock_clients import create_topic, delete_topic

PADDING = bytes(range(256)) * 64
VALUE_BYTES = 2000
TICK_S = 0.05
_BASE: Mapping[str, object] = {
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 50,
    "socket.timeout.ms": 10_000,
}

TopicBooks = Mapping[int, Books]


def value_of(number: int) -> bytes:
    """A record's value: its number, then bytes that depend on it."""
    head = b"%d " % number
    at = number % 256
    return head + PADDING[at : at + VALUE_BYTES - len(head)]


class Actor:
    """Something that runs in a thread until it is told to stop; what it raises is a problem of the run."""

    def __init__(self, name: str, problems: list[str]) -> None:
        self.name = name
        self.stopping = threading.Event()
        self._problems = problems
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 60.0) -> None:
        self.stopping.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._problems.append(f"{self.name} did not stop within {timeout_s} s")

    def run(self) -> None:
        raise NotImplementedError

    def _guarded(self) -> None:
        try:
            self.run()
        except (KafkaException, AssertionError, ValueError) as error:
            self._problems.append(f"{self.name}: {type(error).__name__}: {error}")


class Writer(Actor):
    """Sends `bytes_per_s` to all partitions of a topic in turn; numbers ascend in each."""

    def __init__(
        self, access: Access, topic: str, books: TopicBooks, bytes_per_s: float, acks: str, problems: list[str]
    ) -> None:
        super().__init__(f"producer of {topic}", problems)
        self._topic, self._books = topic, books
        self._per_tick = max(1, round(bytes_per_s * TICK_S / VALUE_BYTES))
        self._producer = Producer(
            {
                **_BASE,
                **access.confluent(),
                "enable.idempotence": acks == "all",
                "acks": acks,
                "max.in.flight": 5 if acks == "all" else 1,  # without idempotence more would reorder resends
                "message.timeout.ms": 0,  # endless: a record is never given up
                "linger.ms": 20,
                "queue.buffering.max.messages": 4_000,
            }
        )

    def run(self) -> None:
        due = time.monotonic()
        turn = 0
        while not self.stopping.is_set():
            for _ in range(self._per_tick):
                books = self._books[turn % len(self._books)]
                turn += 1
                self._send(books)
            self._producer.poll(0)
            due = max(due + TICK_S, time.monotonic() - 5)
            self.stopping.wait(max(0.0, due - time.monotonic()))  # the load's rate, not a wait for anything
        left = self._producer.flush(60)
        if left:
            self._problems.append(f"{self.name}: {left} records unanswered 60 s after the end")

    def _send(self, books: Books) -> None:
        partition = next(p for p, b in self._books.items() if b is books)
        number = books.sent

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                books.failed(number, str(error))
            else:
                books.acknowledged(number, offset)

        try:
            self._producer.produce(self._topic, value_of(number), partition=partition, on_delivery=delivered)
        except BufferError:
            return  # the broker is away: the load waits
        books.take_number()


class Reader(Actor):
    """Reads every partition of a topic from its first offset to the end, for ever, and checks each record."""

    def __init__(self, access: Access, topic: str, books: TopicBooks, problems: list[str]) -> None:
        super().__init__(f"reader of {topic}", problems)
        self._topic, self._books = topic, books
        self._settings = {
            **_BASE,
            **access.confluent(),
            "group.id": f"reader of {topic}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "queued.max.messages.kbytes": 4096,
            "fetch.wait.max.ms": 200,
            "fetch.min.bytes": 50_000,
        }

    def run(self) -> None:
        consumer = Consumer(self._settings)
        consumer.assign([TopicPartition(self._topic, partition, 0) for partition in self._books])
        try:
            while not self.stopping.is_set():
                for message in consumer.consume(500, timeout=0.5):
                    self._take(message)
        finally:
            consumer.close()

    def _take(self, message: Message) -> None:
        error = message.error()
        partition = message.partition()
        if error is not None:
            if error.code() == KafkaError._AUTO_OFFSET_RESET and partition is not None:
                self._books[partition].note(f"the reader's position is gone: {error}")
            return
        value, offset = message.value(), message.offset()
        assert isinstance(value, bytes) and offset is not None and partition is not None
        number = int(value[: value.index(b" ")])
        if value != value_of(number):
            self._books[partition].note(f"offset {offset} holds other bytes than were sent as number {number}")
        self._books[partition].saw(number, offset)


class GroupMember(Actor):
    """A consumer of a group that commits as it goes; from a committed position nothing is skipped."""

    def __init__(self, access: Access, topic: str, problems: list[str]) -> None:
        super().__init__(f"group on {topic}", problems)
        self._topic = topic
        self._settings = {
            **_BASE,
            **access.confluent(),
            "group.id": f"group on {topic}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10_000,
            "fetch.wait.max.ms": 300,
            "fetch.min.bytes": 100_000,
            "queued.max.messages.kbytes": 4096,
        }
        self.records = 0
        self.commits = 0
        self.generations = 0
        self._committed: dict[int, int] = {}

    def run(self) -> None:
        while not self.stopping.is_set():
            self._one_membership(25.0)

    def _one_membership(self, for_s: float) -> None:
        """Join, read and commit for a while, leave: each time a rebalance. Another one comes where its coordinator is
        away for a session: it goes on from what was committed then, and reads again what was not."""
        consumer = Consumer(self._settings)
        expected: dict[int, int] = {}

        def assigned(_: Consumer, __: list[TopicPartition]) -> None:
            expected.clear()
            self.generations += 1

        consumer.subscribe([self._topic], on_assign=assigned)
        until = time.monotonic() + for_s
        commit_at = time.monotonic() + 1
        try:
            while time.monotonic() < until and not self.stopping.is_set():
                for message in consumer.consume(500, timeout=0.5):
                    self._take(message, expected)
                if time.monotonic() >= commit_at and expected:
                    self._commit(consumer, expected)
                    commit_at = time.monotonic() + 1
        finally:
            consumer.close()

    def _take(self, message: Message, expected: dict[int, int]) -> None:
        if message.error() is not None:
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None
        before = expected.get(partition)
        if before is None:
            floor = self._committed.get(partition, 0)
            if offset < floor:
                self._problems.append(f"{self.name}: partition {partition} goes on at {offset}, committed was {floor}")
        elif offset != before:
            self._problems.append(f"{self.name}: partition {partition} gave {offset} after {before - 1}")
        expected[partition] = offset + 1
        self.records += 1

    def _commit(self, consumer: Consumer, expected: Mapping[int, int]) -> None:
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in expected.items()]
        with contextlib.suppress(KafkaException):  # the broker was killed: it may stand or not
            for done in consumer.commit(offsets=offsets, asynchronous=False) or ():
                if done.error is None:
                    self._committed[done.partition] = max(done.offset, self._committed.get(done.partition, 0))
            self.commits += 1


class Periodic(Actor):
    """Calls `act(turn)` every `every_s`; what the broker's absence makes fail is tried again next time."""

    def __init__(self, name: str, every_s: float, act: Callable[[int], None], problems: list[str]) -> None:
        super().__init__(name, problems)
        self._every_s, self._act = every_s, act
        self.done = 0
        self.absent = 0

    def run(self) -> None:
        turn = 0
        while not self.stopping.wait(self._every_s):
            try:
                self._act(turn)
                self.done += 1
            except KafkaException:
                self.absent += 1
            turn += 1


def replay(access: Access, topic: str, partition: int, records_max: int) -> int:
    """Read from the earliest offset (the cold tier, where local retention is short); records must be dense."""
    settings = {**_BASE, **access.confluent(), "group.id": "replay", "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "error", "check.crcs": True})
    try:
        first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        consumer.assign([TopicPartition(topic, partition, first)])
        count, number_before, until = 0, -1, time.monotonic() + 30
        while first + count < end and count < records_max and time.monotonic() < until:
            for message in consumer.consume(500, timeout=1.0):
                if message.error() is not None:
                    if message.error().code() == KafkaError._AUTO_OFFSET_RESET:
                        return count  # retention overtook the replay
                    continue
                value = message.value()
                assert isinstance(value, bytes)
                number = int(value[: value.index(b" ")])
                assert value == value_of(number), f"replay of {topic}-{partition}: other bytes at {message.offset()}"
                assert number_before in (-1, number - 1), (
                    f"replay of {topic}-{partition}: {number} after {number_before}"
                )
                number_before = number
                count += 1
        return count
    finally:
        consumer.close()


def make_and_drop_topic(access: Access, turn: int, replicas: int) -> None:
    """A topic's whole life: created, written, read back, deleted."""
    topic = f"short-lived-{turn}"
    create_topic(access, topic, 2, replicas)
    producer = Producer({**_BASE, **access.confluent(), "acks": "all", "message.timeout.ms": 20_000})
    for number in range(100):
        producer.produce(topic, value_of(number), partition=number % 2)
    producer.flush(20)
    delete_topic(access, topic)


def delete_records(access: Access, topic: str, below: Mapping[int, int], floors: dict[int, int]) -> None:
    """DeleteRecords up to `below`; what was once the earliest offset never comes back (`floors`)."""
    admin = AdminClient({**_BASE, **access.confluent()})
    wanted = [TopicPartition(topic, partition, offset) for partition, offset in below.items() if offset > 0]
    if not wanted:
        return
    for place, deleted in admin.delete_records(wanted, request_timeout=15).items():
        low = deleted.result(20).low_watermark
        floor = floors.get(place.partition, 0)
        assert low >= floor, f"{topic}-{place.partition} starts at {low} and started at {floor} before"
        floors[place.partition] = low
