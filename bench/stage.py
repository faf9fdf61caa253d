"""Where rows are measured: the brokers, started when a row first asks for them, and rounds in which they take turns.

Always true: all brokers that a row names run while it is measured, and only one of them has work; before each turn
memory is settled. Knows no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from bench import loads
from bench.sides import CalmMachine, Side, create, delete, kafka_peer, thermocline, wait_cold
from bench.table import Measured, Row

LOG_BYTES = 1 << 30


class Log(NamedTuple):
    """A filled topic: every partition surely holds offsets below `end`, all of them cold if it is a cold one."""

    topic: str
    partitions: int
    end: int


class Stage:
    """The brokers end with `sides`."""

    def __init__(self, root: Path, rounds: int, sides: ExitStack) -> None:
        self.root = root
        self.rounds = rounds
        self.sides = sides
        self._machine = CalmMachine()
        self._logs: dict[tuple[str, str], Log] = {}

    @cached_property
    def kafka(self) -> Side:
        """Apache Kafka, its JVM warm."""
        side = self.sides.enter_context(kafka_peer())
        with self.topics([side], "warm", 4) as topic:
            loads.produce(side, topic, 4, 1024, 900, seconds=3)
            loads.produce(side, topic, 4, 16 << 10, seconds=3)
        return side

    @cached_property
    def synced(self) -> Side:
        """Ours with its defaults: fdatasync before an ack of acks=all."""
        return self.sides.enter_context(thermocline(self.root, "synced"))

    @cached_property
    def paged(self) -> Side:
        """Ours with thermocline.flush=os: what Kafka does by default."""
        return self.sides.enter_context(thermocline(self.root, "paged", settings={"thermocline.flush": "os"}))

    @contextmanager
    def topics(self, sides: Sequence[Side], topic: str, partitions: int, **configs: object) -> Iterator[str]:
        """A topic on several sides for the length of the block."""
        for side in sides:
            create(side, topic, partitions, **configs)
        try:
            yield topic
        finally:
            for side in sides:
                delete(side, topic)

    def log(self, side: Side, partitions: int, *, cold: bool) -> Log:
        """1 GiB of 1 KB records in batches of 16 KiB; filled once, shared by the rows that read it."""
        topic = f"{'cold' if cold else 'hot'}-{partitions}"
        if (side.address, topic) not in self._logs:
            tiering = {"remote_storage_enable": "true", "segment_bytes": 16 << 20, "local_retention_ms": 1}
            create(side, topic, partitions, **(tiering if cold else {}))
            end = loads.fill(side, topic, partitions, LOG_BYTES)
            if cold:
                end = min(wait_cold(side, topic, int(end * 0.8)))
            self._logs[side.address, topic] = Log(topic, partitions, end)
        return self._logs[side.address, topic]

    def rounds_of(self, *turns: Callable[[], None]) -> None:
        """Each round every turn once, after the machine calmed down."""
        for _ in range(self.rounds):
            for turn in turns:
                self._machine.settle()
                turn()

    def compare(self, row: Row, peer: Callable[[], Measured], ours: Callable[[], Measured]) -> list[Row]:
        """Fill a row in turns."""
        self.rounds_of(lambda: row.peer.append(peer()), lambda: row.ours.append(ours()))
        return [row]
