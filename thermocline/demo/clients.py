"""The demos' stock producer and consumer: every record acknowledged by all replicas, every byte compared."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from thermocline.demo.keys import client
from thermocline.demo.payload import Failed, Records

STALL_S: Final = 30.0
_POLL_BYTES: Final = 16 << 20  # between two polls of the producer


def produce(bootstrap: str, records: Records, first: int, end: int, watch: Callable[[], None]) -> float:
    """Produce records [first, end) with an idempotent client and acks=all. Returns the seconds taken. Raises Failed."""
    producer = Producer(
        {
            **client(bootstrap),
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 262_144,
        }
    )
    failures: list[str] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    poll_each = _POLL_BYTES // records.value_bytes
    began = time.monotonic()
    for number in range(first, end):
        partition = number % records.partitions
        while True:
            try:
                producer.produce(records.topic, records.value(number), partition=partition, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        if number % poll_each == 0:
            producer.poll(0)
            watch()
    if producer.flush(STALL_S) or failures:
        raise Failed(f"not acknowledged: {failures[:1] or 'some records'}")
    return time.monotonic() - began


def replay(
    bootstrap: str, records: Records, count: int, watch: Callable[[], None], sums: list[int] | None = None
) -> float:
    """Read every partition from offset 0 and compare every byte of `count` records. Returns the seconds taken. Raises
    Failed.

    `sums`: CRC-32 of each partition, to be filled.
    """
    topic, partitions = records.topic, records.partitions
    consumer = reader(bootstrap)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    expected = list(range(partitions))  # the next record of each partition
    began = last = time.monotonic()
    left = count
    while left:
        for message in consumer.consume(2000, timeout=1.0):
            if message.error():
                raise KafkaException(message.error())
            partition, value = message.partition(), message.value()
            assert partition is not None and isinstance(value, bytes)
            number = expected[partition]
            if value != records.value(number) or message.offset() != number // partitions:
                raise Failed(f"{topic}-{partition} at offset {message.offset()}: not what was produced")
            if sums is not None:
                sums[partition] = zlib.crc32(value, sums[partition])
            expected[partition] += partitions
            left -= 1
            last = time.monotonic()
        if time.monotonic() - last > STALL_S:
            raise Failed(f"the replay stalled {left} records before the end")
        watch()
    consumer.close()
    return time.monotonic() - began


def reader(bootstrap: str) -> Consumer:
    """A stock consumer that fails on a gap."""
    return Consumer(
        {
            **client(bootstrap),
            "group.id": "demo",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.message.max.bytes": 8 << 20,
            "queued.max.messages.kbytes": 262_144,
            "log_level": 0,
        }
    )
