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
from bench.sides import (
    CalmMachine,
    KafkaPeer,
    Side,
    Thermocline,
    create,
    delete,
    kafka_peer,
    thermocline,
    wait_cold,
)
from bench.table import Measured, Row

LOG_BYTES = 1 << 30
MORE_ROUNDS = 5  # where the first ones differ by more than SPREAD_MAX
SPREAD_MAX = 0.15
ROUNDS_TO_JUDGE = 3  # fewer are a quick look
PAGED = {"thermocline.flush": "os"}


class Log(NamedTuple):
    """A filled topic: every partition surely holds offsets below `end`, all of them cold if it is a cold one."""

    topic: str
    partitions: int
    end: int


class Stage:
    """The brokers end with `sides`. `beside`: a checkout of another version of ours, which then is the peer."""

    def __init__(self, root: Path, rounds: int, sides: ExitStack, beside: Path | None = None) -> None:
        self.root = root
        self.rounds = rounds
        self.sides = sides
        self.beside = beside
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
        return self.sides.enter_context(thermocline(self.root, "paged", settings=PAGED))

    @cached_property
    def _other_synced(self) -> Side:
        return self.sides.enter_context(thermocline(self.root, "other-synced", checkout=self.beside))

    @cached_property
    def _other_paged(self) -> Side:
        return self.sides.enter_context(thermocline(self.root, "other-paged", settings=PAGED, checkout=self.beside))

    def peer_of(self, ours: Side) -> Side:
        """Whom `ours` (`synced` or `paged`) is compared with: Kafka, or the other version of it in the same mode."""
        if self.beside is None:
            return self.kafka
        return self._other_paged if ours is self.__dict__.get("paged") else self._other_synced

    def fresh(self, root: Path, *, peer: bool) -> KafkaPeer | Thermocline:
        """A broker that was never started, its data below `root`; `peer`: the one we are compared with."""
        if peer and self.beside is None:
            return KafkaPeer(root / "kafka")
        return Thermocline(root, "ours", checkout=self.beside if peer else None)

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

    def rounds_of(self, rows: Sequence[Row], *turns: Callable[[], None]) -> None:
        """Each round every turn once, after the machine calmed down; two rounds more where those of `rows` differ."""
        for number in range(max(self.rounds, MORE_ROUNDS)):
            if number >= self.rounds and (
                self.rounds < ROUNDS_TO_JUDGE or max(row.spread for row in rows) <= SPREAD_MAX
            ):
                return
            for turn in turns:
                self._machine.settle()
                turn()

    def compare(self, row: Row, peer: Callable[[], Measured], ours: Callable[[], Measured]) -> list[Row]:
        """Fill a row in turns."""
        self.rounds_of([row], lambda: row.peer.append(peer()), lambda: row.ours.append(ours()))
        return [row]
