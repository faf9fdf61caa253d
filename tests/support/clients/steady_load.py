"""A producer that writes until it is told to stop, and remembers exactly what was acknowledged at which offset.

Owns one idempotent confluent-kafka producer in a thread, acks=all. Always true: `acked` holds an offset only when the
client reported it delivered; one whose fate is unknown is not in it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time

from confluent_kafka import KafkaError, Message, Producer

from tests.support.clients.stock_clients import Record

_PAUSE_S = 0.002
_numbers = itertools.count()  # never one twice, over all loads of the test process


class SteadyLoad:
    """Use as a context manager. Values are '<topic> <number> …', numbers ascending in each topic."""

    def __init__(self, bootstrap: str, topics: tuple[str, ...], value_bytes: int = 700) -> None:
        self.acked: dict[str, dict[int, bytes]] = {topic: {} for topic in topics}
        self._padding = bytes(value_bytes)
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.num.messages": 4,
                "queue.buffering.max.messages": 64,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SteadyLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(0)

    def stop(self, flush_s: float) -> None:
        """Write nothing more; wait so long for what is under way, give the rest up."""
        self._stop.set()
        self._thread.join()
        self._producer.flush(flush_s)
        self._producer.purge()
        self._producer.flush(1)

    @property
    def acked_count(self) -> int:
        return sum(map(len, self.acked.values()))

    def _run(self) -> None:
        while not self._stop.is_set():
            for topic in self.acked:
                value = f"{topic} {next(_numbers)} ".encode() + self._padding
                with contextlib.suppress(BufferError):
                    self._producer.produce(topic, value, partition=0, on_delivery=self._delivered)
            self._producer.poll(0)
            time.sleep(_PAUSE_S)  # the load's rate, not a wait for anything

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            topic, offset, value = message.topic(), message.offset(), message.value()
            assert topic is not None and offset is not None and isinstance(value, bytes)
            self.acked[topic][offset] = value


def assert_kept(acked: dict[int, bytes], found: list[Record], log_start: int = 0) -> None:
    """Every acknowledged record at its offset from `log_start` on; none twice; in the order they were sent."""
    values = {record.offset: record.value for record in found}
    missing = [offset for offset, value in acked.items() if offset >= log_start and values.get(offset) != value]
    assert not missing, f"{len(missing)} acknowledged records are not at their offsets: {missing[:5]}"
    numbers = [int((record.value or b"").split(b" ")[1]) for record in sorted(found, key=lambda r: r.offset)]
    assert numbers == sorted(set(numbers)), "a record is there twice, or out of order"
