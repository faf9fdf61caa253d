"""The history of the cluster's demo: large records, written fast, and checked to the byte.

Owns their contents and one producer and one consumer, stock ones. Always true: a value is computed from its number,
never read back; what is read is compared whole, and summed by partition.
Must not know the broker's code.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from thermocline.demo.payload import Failed

TOPIC: Final = "history"
PARTITIONS: Final = 6
VALUE_BYTES: Final = 64 << 10
_BLOCK_BYTES: Final = 4 << 20
_STALL_S: Final = 30.0


@dataclass
class Bulk:
    """`count` records; record n is value n, of partition n % PARTITIONS, at offset n // PARTITIONS."""

    count: int
    _block: bytes = field(default_factory=lambda: random.Random(16).randbytes(_BLOCK_BYTES + VALUE_BYTES))

    @property
    def size(self) -> int:
        return self.count * VALUE_BYTES

    def value(self, number: int) -> bytes:
        at = number * 7919 % _BLOCK_BYTES
        return number.to_bytes(8, "big") + self._block[at : at + VALUE_BYTES - 8]

    def sums(self) -> list[int]:
        """CRC-32 of each partition's values, one after the other."""
        found = [0] * PARTITIONS
        for number in range(self.count):
            found[number % PARTITIONS] = zlib.crc32(self.value(number), found[number % PARTITIONS])
        return found


def write(bootstrap: str, bulk: Bulk, watch: Callable[[], None]) -> float:
    """All of it, acknowledged by every replica. Seconds taken."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 131_072,
        }
    )
    failures: list[str] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    began = time.monotonic()
    for number in range(bulk.count):
        while True:
            try:
                producer.produce(TOPIC, bulk.value(number), partition=number % PARTITIONS, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
                watch()
        producer.poll(0)
    if producer.flush(_STALL_S) or failures:
        raise Failed(f"not acknowledged: {failures[:1] or 'some records'}")
    return time.monotonic() - began


def check(bootstrap: str, bulk: Bulk, watch: Callable[[], None]) -> tuple[float, list[int]]:
    """Read it all from offset 0; `Failed` for any other byte. Seconds taken, and the CRC-32 of each partition."""
    consumer = reader(bootstrap)
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    following, sums = [0] * PARTITIONS, [0] * PARTITIONS
    left, began = bulk.count, time.monotonic()
    last = began
    while left:
        for message in consumer.consume(200, timeout=1.0):
            if message.error():
                raise KafkaException(message.error())
            partition, value = message.partition(), message.value()
            assert partition is not None and isinstance(value, bytes)
            offset = following[partition]
            if message.offset() != offset or value != bulk.value(offset * PARTITIONS + partition):
                raise Failed(f"{TOPIC}-{partition} at offset {message.offset()}: not what was written")
            sums[partition] = zlib.crc32(value, sums[partition])
            following[partition] = offset + 1
            left -= 1
            last = time.monotonic()
        if time.monotonic() - last > _STALL_S:
            raise Failed(f"reading stalled {left} records before the end")
        watch()
    consumer.close()
    return time.monotonic() - began, sums


def reader(bootstrap: str) -> Consumer:
    """A stock consumer that stands no gap."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.message.max.bytes": 8 << 20,
            "queued.max.messages.kbytes": 131_072,
            "log_level": 0,
        }
    )
