"""Who reads the loops' output: one that never stops, and at the end one after the other from the first offsets.

All read at read_committed, but for `aborted_records`, which counts what they do not show. Must not know faults.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.campaign.clients import QUICK, READ_S
from tests.campaign.transactions.copies import Copies
from tests.soak.load import Actor
from tests.support.clients.access import Access


class LiveCopiesReader(Actor):
    """Reads all output from its first offsets on while it is written, by librdkafka."""

    def __init__(self, access: Access, copies: Mapping[str, Copies], partitions: int, problems: list[str]) -> None:
        super().__init__("live reader of the output", problems)
        self._access, self._copies, self._partitions = access, copies, partitions

    def run(self) -> None:
        consumer = _consumer(self._access, "read_committed")
        consumer.assign([TopicPartition(topic, p, 0) for topic in self._copies for p in range(self._partitions)])
        try:
            while not self.stopping.is_set():
                for message in consumer.consume(1000, timeout=0.5):
                    error = message.error()
                    if error is None:
                        self._copies[message.topic() or ""].saw(*_place(message))
                    elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                        self._problems.append(f"{self.name}: the position is gone: {error}")
        finally:
            consumer.close()


def read_again(access: Access, topic: str, copies: Copies, partitions: int) -> None:
    """All of `topic` at read_committed. TimeoutError."""
    for place in _whole(access, topic, partitions, "read_committed"):
        copies.saw(*place)


def aborted_records(access: Access, topic: str, partitions: int) -> tuple[int, int]:
    """(records of transactions that were to be aborted, all records), at read_uncommitted. TimeoutError."""
    aborted = every = 0
    for _, _, value in _whole(access, topic, partitions, "read_uncommitted"):
        aborted += value.startswith(b"a")
        every += 1
    return aborted, every


def _whole(access: Access, topic: str, partitions: int, isolation: str) -> Iterator[tuple[int, int, bytes]]:
    """Each record (partition, offset, value) up to the end that this level shows."""
    consumer = _consumer(access, isolation)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    until = time.monotonic() + READ_S
    left = set(range(partitions))
    try:
        while left:
            for message in consumer.consume(5000, timeout=0.5):
                error = message.error()
                if error is None:
                    yield _place(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition() or 0)
            if time.monotonic() > until:
                raise TimeoutError(f"{topic}: partitions {sorted(left)} are not read after {READ_S:.0f} s")
    finally:
        consumer.close()


def _consumer(access: Access, isolation: str) -> Consumer:
    return Consumer(
        {
            **QUICK,
            **access.confluent(),
            "group.id": "readers of the output",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "check.crcs": True,
            "queued.max.messages.kbytes": 8192,
        }
    )


def _place(message: Message) -> tuple[int, int, bytes]:
    value = message.value()
    assert isinstance(value, bytes)
    return message.partition() or 0, message.offset() or 0, value


def committed_positions(access: Access, group: str, topic: str, partitions: int) -> dict[int, int]:
    """What the next member of `group` would begin from; no transaction is under way over it."""
    consumer = Consumer({**QUICK, **access.confluent(), "group.id": group, "isolation.level": "read_committed"})
    try:
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        return {at.partition: at.offset for at in consumer.committed(places, 30)}
    finally:
        consumer.close()


def log_ends(access: Access, topic: str, partitions: int) -> Callable[[IsolationLevel], dict[int, int]]:
    """The high watermark of each partition (READ_UNCOMMITTED) or its last stable offset (READ_COMMITTED)."""
    admin = AdminClient({**QUICK, **access.confluent()})

    def at(level: IsolationLevel) -> dict[int, int]:
        asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
        found = admin.list_offsets(asked, isolation_level=level, request_timeout=15)
        return {place.partition: told.result(20).offset for place, told in found.items()}

    return at
