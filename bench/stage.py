"""Where rows are measured: the brokers, started when a row first asks for them, and rounds in which they take turns.

Always true: all brokers that a row names run while it is measured, and only one of them has work. A turn begins on a
machine that settled: nothing dirty from the turn before, free memory touched, a topic of its own where it writes, all
files in the page cache where it reads. Knows no row.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from bench import loads
from bench.sides import (
    CalmMachine,
    KafkaPeer,
    Side,
    Thermocline,
    create,
    delete,
    kafka_peer,
    read_through,
    wait_cold,
)
from bench.table import Measured, Row

LOG_BYTES = 1 << 30
MORE_ROUNDS = 5  # where the first ones differ by more than SPREAD_MAX
SPREAD_MAX = 0.15
TOUCHED = 2 << 30  # bytes of memory before a turn that says nothing else: three times what most write
ROUNDS_TO_JUDGE = 3  # fewer are a quick look
PAGED = {"thermocline.flush": "os"}
T = TypeVar("T")


class Log(NamedTuple):
    """A filled topic: every partition surely holds offsets below `end`, all of them cold if it is a cold one."""

    topic: str
    partitions: int
    end: int


class Stage:
    """The brokers end with `sides`. `beside`: a checkout of another version of ours, which then is the peer.

    `python` runs ours, `peer_python` a peer that is ours. `scale`: of rows with much data.
    """

    def __init__(
        self,
        root: Path,
        rounds: int,
        sides: ExitStack,
        beside: Path | None = None,
        python: str = sys.executable,
        scale: float = 0.1,
        peer_python: str = sys.executable,
    ) -> None:
        self.root = root
        self.rounds = rounds
        self.sides = sides
        self.beside = beside
        self.python = python
        self.peer_python = peer_python
        self.scale = scale
        self._machine = CalmMachine()
        self._warming_up = False
        self._logs: dict[tuple[str, str], Log] = {}
        self._numbers = itertools.count(1)

    @cached_property
    def kafka(self) -> Side:
        """Apache Kafka, its JVM warm."""
        side = self.sides.enter_context(kafka_peer())
        topic = create(side, "warm", 4)
        loads.produce(side, topic, 4, 1024, 900, seconds=3)
        loads.produce(side, topic, 4, 16 << 10, seconds=3)
        delete(side, topic)
        return side

    @cached_property
    def synced(self) -> Side:
        """Ours with its defaults: fdatasync before an ack of acks=all."""
        return self.sides.enter_context(Thermocline(self.root, "synced", python=self.python).running())

    @cached_property
    def paged(self) -> Side:
        """Ours with thermocline.flush=os: what Kafka does by default."""
        return self.sides.enter_context(Thermocline(self.root, "paged", settings=PAGED, python=self.python).running())

    @cached_property
    def _other_synced(self) -> Side:
        return self.sides.enter_context(self._other("other-synced"))

    @cached_property
    def _other_paged(self) -> Side:
        return self.sides.enter_context(self._other("other-paged", PAGED))

    def _other(self, name: str, settings: Mapping[str, object] | None = None) -> AbstractContextManager[Side]:
        return Thermocline(self.root, name, None, None, settings, self.beside, self.peer_python).running()

    def peer_of(self, ours: Side) -> Side:
        """Whom `ours` (`synced` or `paged`) is compared with: Kafka, or the other version of it in the same mode."""
        if self.beside is None:
            return self.kafka
        return self._other_paged if ours is self.__dict__.get("paged") else self._other_synced

    def fresh(self, root: Path, *, peer: bool) -> KafkaPeer | Thermocline:
        """A broker that was never started, its data below `root`; `peer`: the one we are compared with."""
        if peer and self.beside is None:
            return KafkaPeer(root / "kafka")
        checkout, python = (self.beside, self.peer_python) if peer else (None, self.python)
        return Thermocline(root, "ours", checkout=checkout, python=python)

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

    def writing(
        self,
        side: Side,
        topic: str,
        partitions: int,
        run: Callable[[str], Measured],
        nbytes: int = TOUCHED,
        **configs: object,
    ) -> Measured:
        """`run`, which writes `nbytes` at most, on a topic made for this turn alone.

        So no turn finds disk and page cache fuller than the one before.
        """
        topic = create(side, f"{topic}-{next(self._numbers)}", partitions, **configs)
        try:
            self._settle(nbytes)
            return run(topic)
        finally:
            delete(side, topic)

    def reading(self, side: Side, run: Callable[[], Measured]) -> Measured:
        """`run` while the page cache has all that `side` keeps: what lies idle may go during the other's turn."""
        for directory in side.directories:
            read_through(directory)
        self._settle()
        return run()

    def settled(self, run: Callable[[], T]) -> T:
        """`run` on a calm machine."""
        self._settle()
        return run()

    def _settle(self, nbytes: int = TOUCHED) -> None:
        if not self._warming_up:
            self._machine.settle(nbytes)

    def rounds_of(self, rows: Sequence[Row], *turns: Callable[[], None], warm_up: bool = True) -> None:
        """Each round every turn once, in the opposite order each time; two rounds more where those of `rows` differ.

        A round before them does not count: a JVM compiles what it does often, and so each row meets it alike,
        whatever was measured before. Two versions of ours need neither: loads have a second or two to warm up of their
        own, and who looks at ratios asks for a row again.
        """
        if warm_up and self.beside is None:
            self._warming_up = True
            for turn in turns:
                turn()
            self._warming_up = False
            for row in rows:
                row.forget()
        for number in range(max(self.rounds, MORE_ROUNDS)):
            if number >= self.rounds and (
                self.beside is not None
                or self.rounds < ROUNDS_TO_JUDGE
                or max(row.spread for row in rows) <= SPREAD_MAX
            ):
                return
            for turn in turns if number % 2 == 0 else reversed(turns):
                turn()

    def compare(
        self, row: Row, peer: Callable[[], Measured], ours: Callable[[], Measured], *, warm_up: bool = True
    ) -> list[Row]:
        """Fill a row in turns."""
        self.rounds_of([row], lambda: row.peer.append(peer()), lambda: row.ours.append(ours()), warm_up=warm_up)
        return [row]
