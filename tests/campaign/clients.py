"""Stock clients of the campaign, a thread each: a writer a library, a reader that never stops, readers of the end.

Every writer is idempotent with acks=all, has endless patience, and writes at a steady rate, so that a gap between
acknowledgements is the cluster's. Must not know faults.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition
from kafka.errors import KafkaError as PyKafkaError

from tests.campaign.books import Book, Reading, value_of
from tests.soak.load import Actor
from tests.support.clients.access import Access
from tests.support.clients.kafka_python_refresh import survive_resets

for name in ("kafka", "aiokafka"):
    logging.getLogger(name).setLevel(logging.CRITICAL)  # each failed connection is a line
survive_resets()

TICK_S = 0.02
ENDLESS_MS = 3_600_000
FLUSH_S = 150.0
Ends = Mapping[int, int]
QUICK = {
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 300,
    "retry.backoff.ms": 50,
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 5_000,
}


class Writer(Actor):
    """Sends numbers to the partitions of `books` in turn, `per_s` records a second in all."""

    library = ""
    is_patient = True

    def __init__(
        self, access: Access, books: Sequence[Book], per_s: float, value_bytes: int, problems: list[str]
    ) -> None:
        super().__init__(f"writer by {self.library}", problems)
        self.access, self.books, self.value_bytes = access, books, value_bytes
        self._per_s = per_s

    def due(self) -> Sequence[Book]:
        """Whose turn it is now, after a wait of at most a tick; what a stall kept back is not made up for."""
        self.stopping.wait(TICK_S)
        now = time.monotonic()
        last, self._last = getattr(self, "_last", now), now
        self._credit = min(getattr(self, "_credit", 0.0) + (now - last) * self._per_s, self._per_s / 4)
        count = int(self._credit)
        self._credit -= count
        turn = getattr(self, "_turn", 0)
        self._turn = turn + count
        return [self.books[index % len(self.books)] for index in range(turn, turn + count)]


class ConfluentWriter(Writer):
    library = "confluent-kafka"
    linger_ms = 5

    def run(self) -> None:
        producer = Producer(
            {
                **QUICK,
                **self.access.confluent(),
                "enable.idempotence": True,
                "acks": "all",
                "message.timeout.ms": 0,
                "linger.ms": self.linger_ms,
                "batch.size": 65_536,
                "queue.buffering.max.messages": 20_000,
            }
        )
        while not self.stopping.is_set():
            for book in self.due():
                self._send(producer, book)
            producer.poll(0)
        left = producer.flush(FLUSH_S)
        if left:
            self._problems.append(f"{self.name}: {left} records unanswered {FLUSH_S} s after the end")

    def _send(self, producer: Producer, book: Book) -> None:
        number = book.sent

        def told(error: KafkaError | None, message: Message) -> None:
            if error is None:
                book.acknowledged(number, message.offset() or 0)
            else:
                book.gave_up(number, str(error))

        value = value_of(number, self.value_bytes)
        try:
            producer.produce(book.topic, value, partition=book.partition, on_delivery=told)
        except BufferError:
            return  # the cluster is away: the load waits
        book.take_number()


class KafkaPythonWriter(Writer):
    library = "kafka-python"

    def run(self) -> None:
        producer = KafkaProducer(
            **self.access.kafka_python(),
            enable_idempotence=True,
            acks="all",
            linger_ms=5,
            batch_size=65_536,
            delivery_timeout_ms=ENDLESS_MS,
            request_timeout_ms=10_000,
            max_block_ms=ENDLESS_MS,
            retry_backoff_ms=50,
            reconnect_backoff_ms=50,
            reconnect_backoff_max_ms=300,
            metadata_max_age_ms=5_000,
        )
        while not self.stopping.is_set():
            for book in self.due():
                number = book.take_number()
                sent = producer.send(book.topic, value_of(number, self.value_bytes), partition=book.partition)
                sent.add_callback(lambda told, book=book, number=number: book.acknowledged(number, told.offset))
                sent.add_errback(lambda error, book=book, number=number: book.gave_up(number, repr(error)))
        try:
            producer.flush(FLUSH_S)
        except PyKafkaError as late:
            self._problems.append(f"{self.name}: {late!r}")
        producer.close(timeout=5)


class AiokafkaWriter(Writer):
    library = "aiokafka"
    is_patient = False  # a batch is given up after request_timeout_ms without a leader

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        producer = AIOKafkaProducer(
            **self.access.aiokafka(),
            enable_idempotence=True,
            acks="all",
            linger_ms=5,
            request_timeout_ms=20_000,
            retry_backoff_ms=50,
            metadata_max_age_ms=5_000,
        )
        await producer.start()
        try:
            while not self.stopping.is_set():
                for book in await asyncio.to_thread(self.due):
                    await self._send(producer, book)
            await asyncio.wait_for(producer.flush(), FLUSH_S)
        except TimeoutError:
            self._problems.append(f"{self.name}: not all was answered {FLUSH_S} s after the end")
        finally:
            await producer.stop()

    async def _send(self, producer: AIOKafkaProducer, book: Book) -> None:
        number = book.sent
        value = value_of(number, self.value_bytes)
        while not self.stopping.is_set():
            try:
                sent = await producer.send(book.topic, value, partition=book.partition)
                break
            except AioKafkaError:
                continue  # no room, or no leader is known, for request_timeout_ms: nothing was taken
        else:
            return
        book.take_number()

        def told(done: asyncio.Future) -> None:  # type: ignore[type-arg]
            error = done.exception()
            if error is None:
                book.acknowledged(number, done.result().offset)
            else:
                book.gave_up(number, repr(error))

        sent.add_done_callback(told)


WRITERS: Mapping[str, type[Writer]] = {w.library: w for w in (ConfluentWriter, KafkaPythonWriter, AiokafkaWriter)}


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────
class LiveReader(Actor):
    """Reads all topics from their first offsets on while they are written, by librdkafka."""

    def __init__(self, access: Access, books: Sequence[Book], value_bytes: int, problems: list[str]) -> None:
        super().__init__("live reader", problems)
        self._access, self._value_bytes = access, value_bytes
        self.readings = {(book.topic, book.partition): Reading(book, "while written") for book in books}

    def run(self) -> None:
        settings = {**QUICK, **self._access.confluent(), "group.id": "live", "enable.auto.commit": False}
        consumer = Consumer(
            {**settings, "auto.offset.reset": "error", "check.crcs": True, "queued.max.messages.kbytes": 4096}
        )
        consumer.assign([TopicPartition(*place, 0) for place in self.readings])
        try:
            while not self.stopping.is_set():
                for message in consumer.consume(1000, timeout=0.5):
                    self._take(message)
        finally:
            consumer.close()

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._problems.append(f"{self.name}: the position is gone: {error}")
            return
        reading = self.readings[message.topic() or "", message.partition() or 0]
        _note(reading, message.offset() or 0, message.value(), self._value_bytes)


def _note(reading: Reading, offset: int, value: object, value_bytes: int) -> None:
    assert isinstance(value, bytes)
    number = int(value[: value.index(b" ")])
    reading.saw(number, offset, value == value_of(number, value_bytes))


READ_S = 300.0


def read_confluent(access: Access, readings: Mapping[int, Reading], topic: str, ends: Ends, value_bytes: int) -> None:
    """Each partition from its first offset to its end. TimeoutError."""
    settings = {**QUICK, **access.confluent(), "group.id": "last", "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "error", "check.crcs": True})
    until = time.monotonic() + READ_S
    consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
    try:
        while any(readings[p].position < end for p, end in ends.items()):
            for message in consumer.consume(1000, timeout=0.5):
                if message.error() is None:
                    _note(readings[message.partition() or 0], message.offset() or 0, message.value(), value_bytes)
            if time.monotonic() > until:
                raise TimeoutError
    finally:
        consumer.close()


def read_kafka_python(
    access: Access, readings: Mapping[int, Reading], topic: str, ends: Ends, value_bytes: int
) -> None:
    """As `read_confluent`."""
    consumer = KafkaConsumer(
        **access.kafka_python(), auto_offset_reset="none", enable_auto_commit=False, check_crcs=True
    )
    until = time.monotonic() + READ_S
    places = [PyTopicPartition(topic, partition) for partition in ends]
    consumer.assign(places)
    for place in places:
        consumer.seek(place, 0)
    try:
        while any(readings[p].position < end for p, end in ends.items()):
            for messages in consumer.poll(timeout_ms=500, max_records=2000).values():
                for message in messages:
                    _note(readings[message.partition], message.offset, message.value, value_bytes)
            if time.monotonic() > until:
                raise TimeoutError
    finally:
        consumer.close()


def read_aiokafka(access: Access, readings: Mapping[int, Reading], topic: str, ends: Ends, value_bytes: int) -> None:
    """As `read_confluent`."""

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            **access.aiokafka(), auto_offset_reset="none", enable_auto_commit=False, check_crcs=True
        )
        await consumer.start()
        places = [AioTopicPartition(topic, partition) for partition in ends]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        try:
            while any(readings[p].position < end for p, end in ends.items()):
                for messages in (await consumer.getmany(timeout_ms=500, max_records=5000)).values():
                    for message in messages:
                        _note(readings[message.partition], message.offset, message.value, value_bytes)
        finally:
            await consumer.stop()

    asyncio.run(asyncio.wait_for(run(), READ_S))


LAST_READERS = {"confluent-kafka": read_aiokafka, "kafka-python": read_confluent, "aiokafka": read_kafka_python}
"""Who reads at the end what each library wrote: another one."""
