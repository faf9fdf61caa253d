"""Constant load from a stock client, in a thread while brokers die, with a list of the acknowledged records.

Every acknowledged record must be found later, at its offset.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from thermocline.demo.clients import reader
from thermocline.demo.keys import client
from thermocline.demo.payload import Failed

TOPIC: Final = "live"
PARTITIONS: Final = 3
_PADDING: Final = bytes(1000)
_BURST: Final = 20  # records
_PAUSE_S: Final = 0.02  # between bursts: about 1 000 records a second
_STALL_S: Final = 30.0


class Load:
    """`acked`: record numbers by (partition, offset). `longest_s`: longest time between two acknowledgements."""

    def __init__(self, bootstrap: str) -> None:
        self.acked: dict[tuple[int, int], int] = {}
        self.refused: list[str] = []
        self.longest_s = 0.0
        self._last_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._producer = Producer({**client(bootstrap), "enable.idempotence": True, "linger.ms": 2, "log_level": 0})

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Raises Failed when a record was refused or never acknowledged."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(_STALL_S)
        if left or self.refused:
            raise Failed(f"the load: {left} records without an answer, {len(self.refused)} refused {self.refused[:1]}")

    def _run(self) -> None:
        numbers = itertools.count()
        while not self._stop.is_set():
            for number in itertools.islice(numbers, _BURST):
                self._producer.produce(
                    TOPIC,
                    number.to_bytes(8, "big") + _PADDING,
                    partition=number % PARTITIONS,
                    on_delivery=self._delivered,
                )
            self._producer.poll(0)
            self._stop.wait(_PAUSE_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        now_s = time.monotonic()
        self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s
        if error is not None:
            self.refused.append(str(error))
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None and offset is not None and isinstance(value, bytes)
        self.acked[partition, offset] = int.from_bytes(value[:8], "big")

    def check(self, bootstrap: str) -> None:
        """Raises Failed unless every acknowledged record is at its offset with its bytes."""
        left = dict(self.acked)
        consumer = reader(bootstrap)
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        last = time.monotonic()
        while left:
            for message in consumer.consume(2000, timeout=1.0):
                if message.error():
                    raise KafkaException(message.error())
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None and offset is not None and isinstance(value, bytes)
                number = left.pop((partition, offset), None)
                if number is not None and value != number.to_bytes(8, "big") + _PADDING:
                    raise Failed(f"{TOPIC}-{partition} at offset {offset}: not what was acknowledged")
                last = time.monotonic()
            if time.monotonic() - last > _STALL_S:
                raise Failed(f"{len(left)} acknowledged records of {TOPIC} are not there")
        consumer.close()
