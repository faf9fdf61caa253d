"""Stock Kafka clients behind one small face: write these records, read a topic from its start to its end.

Owns what each client can and cannot do (`WRITES`, `READS`: the matrix of the evidence tests) and how its records are
turned into `Record`. Must not know the broker: everything goes over the Kafka port.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import kafka.codec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition

from tests.support.clients.access import Where, access_of

READ_TIMEOUT_S = 60.0
WRITE_TIMEOUT_S = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Record(NamedTuple):
    """One record as a client shows it. `headers` in order; a null header value is None."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


class ReadFailed(Exception):
    """The client reported an error, or the end was not reached in time."""


Ends = Mapping[int, int]  # partition → offset after the last one to read


def digest(records: Iterable[Record]) -> str:
    """One hash over (partition, offset, key, value, timestamp, headers), in the order of partition and offset."""
    found = hashlib.sha256()
    for record in sorted(records, key=lambda r: (r.partition, r.offset)):
        found.update(repr(tuple(record)).encode())
    return found.hexdigest()


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Written(NamedTuple):
    """A record to write; `timestamp_ms` None: the client's clock."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def write_confluent(
    bootstrap: str, topic: str, partition: int, records: Sequence[Written], codec: str, idempotent: bool
) -> None:
    """librdkafka through confluent-kafka."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": idempotent,
            "acks": "all",
            "compression.type": codec,
            "linger.ms": 5,
            "batch.num.messages": 50,
        }
    )
    failures: list[KafkaError] = []
    for record in records:
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=partition,
            timestamp=record.timestamp_ms or 0,
            headers=list(record.headers),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    left = producer.flush(WRITE_TIMEOUT_S)
    assert not left and not failures, f"{left} records not acknowledged, failures {failures[:3]}"


def write_kafka_python(
    bootstrap: str, topic: str, partition: int, records: Sequence[Written], codec: str, idempotent: bool
) -> None:
    """kafka-python."""
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=idempotent,
        acks="all",
        compression_type=None if codec == "none" else codec,
        linger_ms=5,
    )
    try:
        sent = [
            producer.send(
                topic,
                value=record.value,
                key=record.key,
                partition=partition,
                timestamp_ms=record.timestamp_ms,
                headers=list(record.headers),
            )
            for record in records
        ]
        producer.flush(WRITE_TIMEOUT_S)
        for future in sent:
            future.get(WRITE_TIMEOUT_S)
    finally:
        producer.close()


def write_aiokafka(
    bootstrap: str, topic: str, partition: int, records: Sequence[Written], codec: str, idempotent: bool
) -> None:
    """aiokafka."""

    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=idempotent,
            acks="all",
            compression_type=None if codec == "none" else codec,
            linger_ms=5,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
                for record in records
            ]
            await asyncio.wait_for(asyncio.gather(*sent), WRITE_TIMEOUT_S)
        finally:
            await producer.stop()

    asyncio.run(run())


def write_kcat(
    bootstrap: str, topic: str, partition: int, records: Sequence[Written], codec: str, idempotent: bool
) -> None:
    """kcat: one record a line, key and value apart by a tab, the same headers on all, its own clock, empty = null."""
    headers = records[0].headers
    assert all(r.headers == headers and r.timestamp_ms is None for r in records)
    command = ["kcat", "-q", "-b", bootstrap, "-P", "-t", topic, "-p", str(partition), "-K", "\t", "-Z", "-z", codec]
    command += ["-X", f"enable.idempotence={str(idempotent).lower()}", "-X", "acks=all"]
    command += ["-X", "batch.num.messages=50"]  # as write_confluent: batches fit into small segments
    for name, value in headers:
        command += ["-H", name if value is None else f"{name}={value.decode()}"]
    lines = b"".join((r.key or b"") + b"\t" + (r.value or b"") + b"\n" for r in records)
    done = subprocess.run(command, input=lines, capture_output=True, timeout=WRITE_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()


# ── reading from 0 to the end ────────────────────────────────────────────────────────────────────────────────────────


def read_confluent(
    bootstrap: str,
    topic: str,
    ends: Ends,
    timeout_s: float = READ_TIMEOUT_S,
    *,
    rack: str = "",
    isolation: str = "read_committed",
) -> list[Record]:
    """librdkafka: done when the position, or the end-of-partition event, reaches every end. Checks CRCs."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.error.backoff.ms": 50,
            "fetch.queue.backoff.ms": 10,
            "client.rack": rack,
            "isolation.level": isolation,
        }
    )
    found: list[Record] = []
    open_partitions = {p for p, end in ends.items() if end > 0}
    deadline = time.monotonic() + timeout_s
    consumer.assign([TopicPartition(topic, partition, 0) for partition in open_partitions])
    try:
        while open_partitions:
            for message in consumer.consume(500, timeout=0.2):
                error = message.error()
                if error is None:
                    at = message.timestamp()[1]
                    headers = tuple((name, value) for name, value in message.headers() or ())
                    place = (message.partition(), message.offset())
                    found.append(Record(*place, message.key(), message.value(), at, headers))
                    if message.offset() + 1 >= ends[message.partition()]:
                        open_partitions.discard(message.partition())
                elif error.code() == KafkaError._PARTITION_EOF:
                    if message.offset() >= ends[message.partition()]:
                        open_partitions.discard(message.partition())
                elif not error.retriable():
                    raise ReadFailed(str(error))
            if open_partitions and time.monotonic() > deadline:
                raise ReadFailed(f"confluent: {open_partitions} not at the end after {timeout_s} s")
    finally:
        consumer.close()
    return _below(found, ends)


def read_kafka_python(
    bootstrap: str,
    topic: str,
    ends: Ends,
    timeout_s: float = READ_TIMEOUT_S,
    *,
    isolation: str = "read_uncommitted",
) -> list[Record]:
    """kafka-python: done when the position reaches every end."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="none",
        enable_auto_commit=False,
        check_crcs=True,
        isolation_level=isolation,
    )
    partitions = [PyTopicPartition(topic, partition) for partition in ends]
    consumer.assign(partitions)
    for partition in partitions:
        consumer.seek(partition, 0)
    found = []
    deadline = time.monotonic() + timeout_s
    try:
        while any(consumer.position(partition) < ends[partition.partition] for partition in partitions):
            for messages in consumer.poll(timeout_ms=200).values():
                for m in messages:
                    headers = tuple((name, value) for name, value in m.headers)
                    found.append(Record(m.partition, m.offset, m.key, m.value, m.timestamp, headers))
            if time.monotonic() > deadline:
                at = {p.partition: consumer.position(p) for p in partitions}
                raise ReadFailed(f"kafka-python: at {at} of {dict(ends)} after {timeout_s} s")
    finally:
        consumer.close()
    return _below(found, ends)


def read_aiokafka(
    bootstrap: str,
    topic: str,
    ends: Ends,
    timeout_s: float = READ_TIMEOUT_S,
    *,
    rack: str = "",
    isolation: str = "read_uncommitted",
) -> list[Record]:
    """aiokafka: done when the position reaches every end."""

    async def run() -> list[Record]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="none",
            enable_auto_commit=False,
            check_crcs=True,
            client_rack=rack or None,
            isolation_level=isolation,
        )
        await consumer.start()
        partitions = [AioTopicPartition(topic, partition) for partition in ends]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        found = []
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                at = {p.partition: await consumer.position(p) for p in partitions}
                if all(at[partition] >= end for partition, end in ends.items()):
                    return _below(found, ends)
                if time.monotonic() > deadline:
                    raise ReadFailed(f"aiokafka: at {at} of {dict(ends)} after {timeout_s} s")
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    for m in messages:
                        headers = tuple((name, value) for name, value in m.headers)
                        found.append(Record(m.partition, m.offset, m.key, m.value, m.timestamp, headers))
        finally:
            await consumer.stop()

    return asyncio.run(run())


def read_kcat(bootstrap: str, topic: str, ends: Ends, timeout_s: float = READ_TIMEOUT_S) -> list[Record]:
    """kcat -e, a partition after the other: done when it says so. `%h` shows names and values as text."""
    found = []
    for partition in ends:
        command = ["kcat", "-b", bootstrap, "-C", "-q", "-e", "-t", topic, "-p", str(partition), "-o", "0"]
        command += ["-X", "fetch.wait.max.ms=10"]  # how long it takes to see the end
        command += ["-X", "check.crcs=true", "-f", "%o %T %K %S %h\\n%k%s\\n"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as late:
            raise ReadFailed(f"kcat: partition {partition} not at the end after {timeout_s} s") from late
        if done.returncode:
            raise ReadFailed(done.stderr.decode())
        found += _kcat_records(partition, done.stdout)
    return _below(found, ends)


def _below(found: Iterable[Record], ends: Ends) -> list[Record]:
    return [record for record in found if record.offset < ends[record.partition]]


def _kcat_records(partition: int, text: bytes) -> Iterable[Record]:
    at = 0
    while at < len(text):
        line_end = text.index(b"\n", at)
        offset, timestamp, key_length, length, headers = text[at:line_end].decode().split(" ", 4)
        at = line_end + 1
        key_end = at + max(int(key_length), 0)
        value_end = key_end + max(int(length), 0)
        key = None if int(key_length) < 0 else text[at:key_end]
        value = None if int(length) < 0 else text[key_end:value_end]
        pairs = tuple(_kcat_header(pair) for pair in headers.split(",") if pair)
        yield Record(partition, int(offset), key, value, int(timestamp), pairs)
        at = value_end + 1


def _kcat_header(pair: str) -> tuple[str, bytes | None]:
    name, _, value = pair.partition("=")
    return name, None if value == "NULL" else value.encode()


Writer = Callable[[str, str, int, Sequence[Written], str, bool], None]
Reader = Callable[..., list[Record]]

_KAFKA_PYTHON_CODECS = tuple(codec for codec in CODECS if codec != "snappy" or kafka.codec.has_snappy())
_HAS_KCAT = shutil.which("kcat") is not None

# What each client of this environment writes: (codecs, with and without idempotence).
WRITES: dict[str, tuple[Writer, tuple[str, ...], tuple[bool, ...]]] = {
    "confluent-kafka": (write_confluent, CODECS, (True, False)),
    "kafka-python": (write_kafka_python, _KAFKA_PYTHON_CODECS, (True, False)),
    "aiokafka": (write_aiokafka, CODECS, (True, False)),
    "kcat": (write_kcat, CODECS, (True, False)),
}
# What each client reads: all codecs, but kafka-python needs the package python-snappy for that one.
READS: dict[str, tuple[Reader, tuple[str, ...]]] = {
    "confluent-kafka": (read_confluent, CODECS),
    "kafka-python": (read_kafka_python, _KAFKA_PYTHON_CODECS),
    "aiokafka": (read_aiokafka, CODECS),
    "kcat": (read_kcat, CODECS),
}
# What they are, wherever the tests run: docs/compatibility.md.
CLIENTS = {
    "confluent-kafka": "Python on librdkafka",
    "kafka-python": "pure Python; snappy where python-snappy is installed",
    "aiokafka": "Python, asyncio",
    "kcat": "command line on librdkafka",
}
assert WRITES.keys() == READS.keys() == CLIENTS.keys()
if not _HAS_KCAT:
    WRITES.pop("kcat")
    READS.pop("kcat")


def missing_clients() -> list[str]:
    """Why the matrix is smaller than it could be, for a skip or a warning."""
    found = [] if _HAS_KCAT else ["kcat is not on the path (apt-get install kcat)"]
    if not kafka.codec.has_snappy():
        found.append("kafka-python has no snappy (pip install python-snappy)")
    return found


# ── admin ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def create_topic(where: Where, topic: str, partitions: int = 1, replicas: int = 1, **configs: object) -> None:
    """A topic with `configs`, dots written as underscores."""
    named = {name.replace("_", "."): str(value) for name, value in configs.items()}
    admin = AdminClient(access_of(where).confluent())
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=replicas, config=named)
    for created in admin.create_topics([wanted], request_timeout=30, operation_timeout=30).values():
        created.result(40)


def alter_topic(where: Where, topic: str, **configs: object) -> None:
    """Set topic configs."""
    from confluent_kafka.admin import AlterConfigOpType

    entries = [
        ConfigEntry(name.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    admin = AdminClient(access_of(where).confluent())
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(30)


def delete_topic(where: Where, topic: str) -> None:
    admin = AdminClient(access_of(where).confluent())
    for deleted in admin.delete_topics([topic], operation_timeout=30).values():
        deleted.result(40)


def end_offsets(where: Where, topic: str, partitions: int) -> dict[int, int]:
    """The high watermark of each partition."""
    consumer = Consumer({**access_of(where).confluent(), "group.id": "ends"})
    try:
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]
            for partition in range(partitions)
        }
    finally:
        consumer.close()


def commit_offset(bootstrap: str, group: str, topic: str, partition: int, offset: int) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer(settings)
    try:
        consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
    finally:
        consumer.close()


def committed_offset(bootstrap: str, group: str, topic: str, partition: int) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=30)
    finally:
        consumer.close()
    if found.error is not None:
        raise KafkaException(found.error)
    return found.offset
