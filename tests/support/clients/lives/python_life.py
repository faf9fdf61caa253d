"""Lives of the Python clients: `python -m tests.support.clients.lives.python_life CLIENT ACCESS …`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as PyKafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from tests.support.clients.access import Access, Login
from tests.support.clients.kafka_python_refresh import survive_resets

survive_resets()

PAUSE_S: Final = 0.01
TURN_S: Final = 0.05
TURN_RECORDS: Final = 20
PATIENCE_S: Final = 120
STUCK_S: Final = 15
SESSION_S: Final = 10
BEGINS_AGAIN: Final = "begins-again"


class BeginAgain(Exception):
    """The copy cannot go on: the program has to begin again, as a supervisor begins a service again."""


def tell(line: str) -> None:
    print(line, flush=True)


# ── confluent-kafka ──────────────────────────────────────────────────────────────────────────────────────────────────


CONFLUENT: Final = {"log_level": 0, "reconnect.backoff.max.ms": 500, "message.timeout.ms": PATIENCE_S * 1000}


def write_confluent(access: Access, topic: str, records: int) -> None:
    writer = Producer({**access.confluent(), **CONFLUENT, "enable.idempotence": True})

    def told(error: object, message: Message) -> None:
        assert error is None, error
        tell(f"acked {(message.value() or b'').decode()}")

    for number in range(records):
        writer.produce(topic, b"%d" % number, on_delivery=told)
        writer.poll(PAUSE_S)
    assert writer.flush(PATIENCE_S) == 0


def copy_confluent(access: Access, topic: str, copy: str, group: str, transactional_id: str, records: int) -> None:
    producer = Producer(
        {**access.confluent(), **CONFLUENT, "transactional.id": transactional_id, "message.timeout.ms": 50_000}
    )
    consumer = Consumer(
        {
            **access.confluent(),
            "log_level": 0,
            "group.id": group,
            "session.timeout.ms": SESSION_S * 1000,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        _patiently(lambda: producer.init_transactions(30))  # ends what the producer before it left open
        consumer.subscribe([topic])
        places = [ConfluentTopicPartition(topic, at) for at in consumer.list_topics(topic, 30).topics[topic].partitions]
        committed = consumer.committed(places, 30)
        assert all(at.error is None for at in committed), committed
        done = sum(max(at.offset, 0) for at in committed)
        while done < records:
            read = [one for one in consumer.consume(TURN_RECORDS, 1.0) if one.error() is None]
            if not read:
                continue
            producer.begin_transaction()
            for message in read:
                producer.produce(copy, message.value())
            ends = consumer.position(consumer.assignment())
            metadata = consumer.consumer_group_metadata()
            _within(lambda: _patiently(lambda: producer.send_offsets_to_transaction(ends, metadata, 30)))  # noqa: B023
            _patiently(lambda: producer.commit_transaction(30))
            done += len(read)
            tell(f"copied {done}")
            time.sleep(TURN_S)
    except KafkaException as failed:
        if not failed.args[0].txn_requires_abort():
            raise
        raise BeginAgain(repr(failed)) from failed
    consumer.close()


def _patiently(call: Callable[[], object]) -> None:
    """Again where librdkafka says that the call may be tried again."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            call()
        except KafkaException as failed:
            if not failed.args[0].retriable() or time.monotonic() > until:
                raise
        else:
            return


# ── kafka-python ─────────────────────────────────────────────────────────────────────────────────────────────────────


KAFKA_PYTHON: Final = {
    "retry_backoff_ms": 50,
    "reconnect_backoff_max_ms": 500,
    "delivery_timeout_ms": PATIENCE_S * 1000,
}


def write_kafka_python(access: Access, topic: str, records: int) -> None:
    writer = KafkaProducer(
        **access.kafka_python(), **KAFKA_PYTHON, enable_idempotence=True, acks="all", max_block_ms=60_000
    )
    sent = []
    for number in range(records):
        future = writer.send(topic, b"%d" % number)
        future.add_callback(lambda _, number=number: tell(f"acked {number}"))
        sent.append(future)
        time.sleep(PAUSE_S)
    for future in sent:
        future.get(PATIENCE_S)
    writer.close()


def copy_kafka_python(access: Access, topic: str, copy: str, group: str, transactional_id: str, records: int) -> None:
    producer = KafkaProducer(
        **access.kafka_python(), **KAFKA_PYTHON, transactional_id=transactional_id, transaction_timeout_ms=60_000
    )
    consumer = KafkaConsumer(
        topic,
        **access.kafka_python(),
        group_id=group,
        session_timeout_ms=SESSION_S * 1000,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        metadata_max_age_ms=2_000,
    )
    try:
        producer.init_transactions()  # ends what the producer before it left open
        places = [TopicPartition(topic, at) for at in sorted(consumer.partitions_for_topic(topic) or ())]
        done = sum(consumer.committed(at) or 0 for at in places)
        while done < records:
            found = consumer.poll(5_000, max_records=TURN_RECORDS)
            if not found:
                continue
            producer.begin_transaction()
            for place in found.values():
                for record in place:
                    producer.send(copy, record.value)
            ends = {at: OffsetAndMetadata(place[-1].offset + 1, "", -1) for at, place in found.items()}
            metadata = consumer.group_metadata()
            _within(lambda: producer.send_offsets_to_transaction(ends, metadata))  # noqa: B023 - awaited here
            _within(producer.commit_transaction)
            done += sum(map(len, found.values()))
            tell(f"copied {done}")
            time.sleep(TURN_S)
    except PyKafkaError as failed:
        raise BeginAgain(repr(failed)) from failed
    consumer.close(autocommit=False)


def _within(call: Callable[[], None]) -> None:
    """BeginAgain when it lasts.

    kafka-python 3.0.12 asks for the coordinator of a group once, so a transaction that met the end of that broker waits
    for ever. librdkafka 2.16.0 ignores the time-out of send_offsets_to_transaction (its issue 5456), and never asks
    again for a coordinator whose broker left the metadata meanwhile (its issue 5511).
    """
    failed: list[PyKafkaError | KafkaException] = []

    def guarded() -> None:
        try:
            call()
        except (PyKafkaError, KafkaException) as failure:
            failed.append(failure)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(STUCK_S)
    if failed:
        raise failed[0]
    if thread.is_alive():
        raise BeginAgain(f"no answer within {STUCK_S} s")


# ── aiokafka ─────────────────────────────────────────────────────────────────────────────────────────────────────────


AIOKAFKA: Final = {"retry_backoff_ms": 50, "metadata_max_age_ms": 2_000}


async def write_aiokafka(access: Access, topic: str, records: int) -> None:
    async with AIOKafkaProducer(
        **access.aiokafka(), **AIOKAFKA, enable_idempotence=True, request_timeout_ms=PATIENCE_S * 1000
    ) as writer:
        sent = []
        for number in range(records):
            future = await writer.send(topic, b"%d" % number)
            future.add_done_callback(lambda done, number=number: done.exception() or tell(f"acked {number}"))
            sent.append(future)
            await asyncio.sleep(PAUSE_S)
        await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_S)


async def copy_aiokafka(access: Access, topic: str, copy: str, group: str, transactional_id: str, records: int) -> None:
    async with AIOKafkaProducer(**access.aiokafka(), **AIOKAFKA, transactional_id=transactional_id) as producer:
        done = 0
        while done < records:
            done = await _copy_aiokafka(access, producer, topic, copy, group, done, records)


async def _copy_aiokafka(
    access: Access, producer: AIOKafkaProducer, topic: str, copy: str, group: str, done: int, records: int
) -> int:
    """Until a transaction is aborted, or all is copied; how many records are."""
    async with AIOKafkaConsumer(
        topic, **access.aiokafka(), group_id=group, enable_auto_commit=False, auto_offset_reset="earliest"
    ) as consumer:
        while done < records:
            found = await consumer.getmany(timeout_ms=1_000, max_records=TURN_RECORDS)
            if not found:
                continue
            try:
                async with producer.transaction():
                    for place in found.values():
                        for record in place:
                            await producer.send(copy, record.value)
                    ends = {
                        AioTopicPartition(at.topic, at.partition): place[-1].offset + 1 for at, place in found.items()
                    }
                    await producer.send_offsets_to_transaction(ends, group)
            except AioKafkaError as failed:
                print(f"aborted for {failed!r}", file=sys.stderr)
                return done
            done += sum(map(len, found.values()))
            tell(f"copied {done}")
            await asyncio.sleep(TURN_S)
    return done


@dataclass(frozen=True)
class Life:
    write: Callable[[Access, str, int], Coroutine[None, None, None] | None]
    """Of the access, the topic and the number of records."""
    copy: Callable[[Access, str, str, str, str, int], Coroutine[None, None, None] | None]
    """Of the access, the topic, its copy, the group, the transactional id and the number of records."""


LIVES: Final = {
    "confluent-kafka": Life(write_confluent, copy_confluent),
    "kafka-python": Life(write_kafka_python, copy_kafka_python),
    "aiokafka": Life(write_aiokafka, copy_aiokafka),
}


def read_access(file: Path) -> Access:
    given: dict[str, Any] = json.loads(file.read_text())
    return Access(given["bootstrap"], None if given["login"] is None else Login(**given["login"]))


def _live(client: str, access_file: str, topic: str, *names: str, begins_again: bool) -> None:
    access, life = read_access(Path(access_file)), LIVES[client]
    copy, group, transactional_id, records = names
    if not begins_again and (writing := life.write(access, topic, int(records))) is not None:
        asyncio.run(writing)
    copying = life.copy(access, topic, copy, group, transactional_id, int(records))
    if copying is not None:
        asyncio.run(copying)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != BEGINS_AGAIN]
    begins_again = len(words) < len(sys.argv[1:])
    try:
        _live(*words, begins_again=begins_again)
    except BeginAgain as failed:
        # A new image of the process: no thread of the old clients goes on beside the new ones.
        print(f"begins again after {failed}", file=sys.stderr, flush=True)
        arguments = sys.orig_argv if begins_again else [*sys.orig_argv, BEGINS_AGAIN]
        os.execv(sys.executable, arguments)
