"""Stock clients that write and commit all the while: an idempotent producer and a group of one, in threads of theirs.

Owns what each of them was told: acknowledged records, acknowledged commits, records read. Always true: what is noted
was told by the client itself; what goes wrong ends the run and is raised by `join`. Must not know brokers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as PyKafkaError

from tests.support.clients.kafka_python_refresh import survive_resets

survive_resets()

PARTITIONS = 3
POLL_MS = 5_000
"""kafka-python's group: longer than any join takes. 3.0.12 drops the answer of a join that a poll gave up waiting for
where the join was begun by new metadata, sends no heartbeat any more and asks for nothing, without an error."""
_PAUSE_S = 0.01
_BATCH_BYTES = 2048  # what gathered while nobody led fits a segment of 4 KiB (RECORD_LIST_TOO_LARGE else, as in Kafka)
_AGAIN_S = 60_000  # ms that a record may take: longer than any election


@dataclass
class Run:
    """One client's. Values are numbers in the order they were sent, each to partition number % PARTITIONS."""

    bootstrap: str
    topic: str
    group: str
    sent: int = 0
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(partition, offset) by number."""
    read: list[tuple[int, int, int]] = field(default_factory=list)
    """(partition, offset, number), in the order they came."""
    committed: dict[int, int] = field(default_factory=dict)
    """The highest position of each partition whose commit was acknowledged."""
    commits: int = 0
    below: list[str] = field(default_factory=list)
    """Records that were read again though a commit behind them was acknowledged."""
    failures: list[BaseException] = field(default_factory=list)
    writing_ends: threading.Event = field(default_factory=threading.Event)
    reading_ends: threading.Event = field(default_factory=threading.Event)
    _threads: dict[str, threading.Thread] = field(default_factory=dict)

    # ── what clients were told ───────────────────────────────────────────────────────────────────────────────────
    def next_value(self) -> tuple[bytes, int, int]:
        """(value, partition, number) to send."""
        number, self.sent = self.sent, self.sent + 1
        return b"%d" % number, number % PARTITIONS, number

    def came(self, partition: int, offset: int, value: bytes | None) -> None:
        if offset < self.committed.get(partition, 0):
            self.below.append(f"{partition}: {offset} came, {self.committed[partition]} was committed")
        self.read.append((partition, offset, int(value or b"")))

    def took(self, positions: dict[int, int]) -> None:
        """A commit of these was acknowledged."""
        self.commits += 1
        for partition, offset in positions.items():
            self.committed[partition] = max(self.committed.get(partition, 0), offset)

    @property
    def has_read_all(self) -> bool:
        return {number for *_, number in self.read} >= self.acknowledged.keys()

    # ── threads ──────────────────────────────────────────────────────────────────────────────────────────────────
    def begin(self, write: Callable[[Run], None], read: Callable[[Run], None]) -> None:
        for name, work in (("write", write), ("read", read)):
            thread = self._threads[name] = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            thread.start()

    def _run(self, work: Callable[[Run], None]) -> None:
        try:
            work(self)
        except BaseException as failure:  # noqa: BLE001 - raised by whoever looks (`check`)
            self.failures.append(failure)

    def check(self) -> None:
        for failure in self.failures:
            raise failure
        assert not self.below, self.below[:5]

    def end(self, name: str, timeout_s: float) -> None:
        """End the `write` or `read` thread, and wait for it."""
        (self.writing_ends if name == "write" else self.reading_ends).set()
        self._threads[name].join(timeout_s)
        assert not self._threads[name].is_alive(), f"{name} does not end"
        self.check()


def _ends(read: list[tuple[int, int]]) -> dict[int, int]:
    return {partition: offset + 1 for partition, offset in read}


# ── confluent-kafka ──────────────────────────────────────────────────────────────────────────────────────────────────


def write_confluent(run: Run) -> None:
    failed: list[str] = []

    def told(number: int) -> Callable[[object, object], None]:
        def on_delivery(error: object, message: object) -> None:
            if error is not None:
                failed.append(str(error))
            else:
                run.acknowledged[number] = (message.partition(), message.offset())  # type: ignore[attr-defined]

        return on_delivery

    producer = Producer(
        {
            "bootstrap.servers": run.bootstrap,
            "enable.idempotence": True,
            "message.timeout.ms": _AGAIN_S,
            "batch.size": _BATCH_BYTES,
        }
    )
    while not run.writing_ends.is_set():
        value, partition, number = run.next_value()
        producer.produce(run.topic, value, partition=partition, on_delivery=told(number))
        producer.poll(_PAUSE_S / 4)
    left = producer.flush(_AGAIN_S / 1000)
    assert not left and not failed, (left, failed[:3])


def read_confluent(run: Run) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": run.bootstrap,
            "group.id": run.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([run.topic])
    try:
        while not run.reading_ends.is_set():
            for message in consumer.consume(100, timeout=0.2):
                assert message.error() is None, message.error()  # what it may try again it does not show
                run.came(message.partition(), message.offset(), message.value())
            try:
                done = consumer.commit(asynchronous=False)
            except KafkaException:
                continue  # none new, or not known to be durable: it is committed again with the next
            run.took({at.partition: at.offset for at in done or [] if at.error is None and at.offset >= 0})
    finally:
        consumer.close()


# ── kafka-python ─────────────────────────────────────────────────────────────────────────────────────────────────────


def write_kafka_python(run: Run) -> None:
    producer = KafkaProducer(
        bootstrap_servers=run.bootstrap,
        enable_idempotence=True,
        acks="all",
        delivery_timeout_ms=_AGAIN_S,
        batch_size=_BATCH_BYTES,
    )
    sent = []
    while not run.writing_ends.is_set():
        value, partition, number = run.next_value()
        sent.append((number, producer.send(run.topic, value, partition=partition)))
        time.sleep(_PAUSE_S)
    for number, future in sent:
        told = future.get(_AGAIN_S / 1000)
        run.acknowledged[number] = (told.partition, told.offset)
    producer.close(10)


def read_kafka_python(run: Run) -> None:
    consumer = KafkaConsumer(
        run.topic,
        bootstrap_servers=run.bootstrap,
        group_id=run.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        metadata_max_age_ms=2_000,  # an assignor without metadata of the topic looks again then, not after 5 minutes
    )
    try:
        consumer.partitions_for_topic(run.topic)  # asks for the metadata: a join before it is followed by another
        while not run.reading_ends.is_set():
            found = [record for records in consumer.poll(POLL_MS).values() for record in records]
            for record in found:
                run.came(record.partition, record.offset, record.value)
            if not found:
                continue
            try:
                consumer.commit()
            except PyKafkaError:
                continue
            run.took(_ends([(record.partition, record.offset) for record in found]))
    finally:
        consumer.close(autocommit=False)


# ── aiokafka ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_aiokafka(run: Run) -> None:
    asyncio.run(_write_aiokafka(run))


async def _write_aiokafka(run: Run) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=run.bootstrap,
        enable_idempotence=True,
        request_timeout_ms=_AGAIN_S,
        max_batch_size=_BATCH_BYTES,
    )
    await producer.start()
    sent = []
    try:
        while not run.writing_ends.is_set():
            value, partition, number = run.next_value()
            sent.append((number, await producer.send(run.topic, value, partition=partition)))
            await asyncio.sleep(_PAUSE_S)
        for number, future in sent:
            told = await asyncio.wait_for(future, _AGAIN_S / 1000)
            run.acknowledged[number] = (told.partition, told.offset)
    finally:
        await producer.stop()


def read_aiokafka(run: Run) -> None:
    asyncio.run(_read_aiokafka(run))


async def _read_aiokafka(run: Run) -> None:
    consumer = AIOKafkaConsumer(
        run.topic,
        bootstrap_servers=run.bootstrap,
        group_id=run.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        while not run.reading_ends.is_set():
            found = [record for records in (await consumer.getmany(timeout_ms=200)).values() for record in records]
            for record in found:
                run.came(record.partition, record.offset, record.value)
            if not found:
                continue
            try:
                await asyncio.wait_for(consumer.commit(), _AGAIN_S / 1000)
            except (AioKafkaError, TimeoutError):
                continue
            run.took(_ends([(record.partition, record.offset) for record in found]))
    finally:
        await consumer.stop()


CLIENTS = {
    "confluent-kafka": (write_confluent, read_confluent),
    "kafka-python": (write_kafka_python, read_kafka_python),
    "aiokafka": (write_aiokafka, read_aiokafka),
}
