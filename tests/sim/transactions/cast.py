"""The clients with transactions of one run, and their acts: under load, in quiet times, after restarts.

Owns the draw of their topics and lines. Always true: in quiet times every id is fenced once more, which ends what is
open; then the last stable offset has to reach the high watermark everywhere, and readers see all of it. Must not know
faults.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from seams.rng import SeededRng
from tests.sim.actors import Stage
from tests.sim.acts import Found
from tests.sim.checks.history import Loss, Place
from tests.sim.checks.transactions import ANYWHERE, FINAL, STATE_TOPIC
from tests.sim.client import Client
from tests.sim.transactions.line import CLOSES_S, Line, LineShape
from tests.sim.transactions.looking import GroupOffsets, TransactionReader
from tests.sim.transactions.reborn import BORN, LifeReader, Lives
from tests.sim.transactions.trimming import Trimmer

COLD: Place = ("txcold", 0)
WARM: Place = ("txwarm", 0)
HOT: Place = ("txhot", 0)
"""Tiered, and nothing stays on the disk; tiered; and not tiered."""
COMPACTED = {"min.cleanable.dirty.ratio": "0.0", "max.compaction.lag.ms": "1500"}
ENDS_S = 20.0
ENDS_UNKNOWN_S = 150.0
"""All is ended within this of the last fault; where coordinators lost something, partitions end what nobody knows:
after the longest time-out, a minute, and pauses of who asks coordinators."""
READ_S = 60.0

SETTINGS = (
    "transaction.state.log.num.partitions=2",
    "transaction.state.log.segment.bytes=1048576",
    "transaction.max.timeout.ms=6000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=500",
)

MUST_HIT = (
    *("txn committed", "txn aborted", "txn commit unanswered", "txn producer died", "txn zombie fenced"),
    *("txn timed out", "txn coordinator moved", "txn offsets in a transaction", "txn offset not stable yet"),
    *("txn reads past aborted ones", "txn committed read of the bucket", "txn batch after the end refused"),
    *("txn topic deleted and made again", "txn topic deleted with one open"),
    *("txn records deleted into what is open", "txn records deleted below what is open"),
)
"""What happens in any dozen runs."""

Other = TransactionReader | GroupOffsets | Trimmer | Lives


@dataclass(frozen=True, slots=True)
class TransactionShape:
    """What a seed draws of them. `is_trimmed`: records are deleted there; `retention_bytes` then, -1: none."""

    lines: tuple[LineShape, ...]
    segment_bytes: int
    has_hot: bool
    is_trimmed: bool = False
    retention_bytes: int = -1
    has_lives: bool = False  # of one more topic, with a line of its own
    keys: int = 0  # of topics that are compacted; 0: none is

    @property
    def tiered(self) -> tuple[Place, ...]:
        return COLD, WARM

    @property
    def told_to_main(self) -> tuple[Place, ...]:
        """Whose batches stay, as those of topics without transactions do."""
        return () if self.keys else self.tiered

    @property
    def places(self) -> tuple[Place, ...]:
        return (*self.tiered, HOT) if self.has_hot else self.tiered

    def topics(self) -> Mapping[str, Mapping[str, str]]:
        """Configs by name."""
        segment = {"internal.segment.bytes": str(self.segment_bytes), "retention.ms": "-1"}
        segment |= {"retention.bytes": str(self.retention_bytes)}
        if self.keys:
            segment |= COMPACTED | {"cleanup.policy": "compact,delete" if self.is_trimmed else "compact"}
        tiered = {**segment, "remote.storage.enable": "true"}
        on_disk = 9000 if self.retention_bytes < 0 else min(9000, self.retention_bytes)
        found = {
            COLD[0]: {**tiered, "local.retention.bytes": "1"},
            WARM[0]: {**tiered, "local.retention.bytes": str(on_disk)},
        }
        return {**found, HOT[0]: segment} if self.has_hot else found

    @property
    def retained(self) -> frozenset[str]:
        """Topics whose retention moves the log start by itself."""
        return frozenset(place[0] for place in self.places) if self.retention_bytes >= 0 else frozenset()


def transactions_of(name: str, more_lines: int = 0) -> TransactionShape:
    """Of the run of this name, drawn apart."""
    rng = SeededRng(f"{name}/transactions")
    has_hot = rng.randrange(2) == 0
    places = (COLD, WARM, HOT) if has_hot else (COLD, WARM)
    lines = []
    for number in range(2 + rng.randrange(2) + more_lines):
        version = 2 if number == 0 else 1 if number == 1 else 1 + rng.randrange(2)
        timeout_ms = (1000, 2500, 6000)[rng.randrange(3)]
        lines.append(LineShape(f"x{number}", version, timeout_ms, (0.05, 0.15, 0.4)[rng.randrange(3)], places))
    segment_bytes = (1800, 3500, 9000)[rng.randrange(3)]
    trims = SeededRng(f"{name}/transactions/trims")
    is_trimmed = trims.randrange(3) == 0
    retention_bytes = (-1, 5_000, 20_000)[trims.randrange(3)] if is_trimmed else -1
    lives = SeededRng(f"{name}/transactions/lives")
    has_lives = lives.randrange(3) == 0
    compacted = SeededRng(f"{name}/transactions/compacted")
    keys = (3, 6, 20)[compacted.randrange(3)] if compacted.randrange(4) == 0 else 0
    if has_lives:
        timeout_ms, pace_s = (1000, 2500, 6000)[lives.randrange(3)], (0.05, 0.15)[lives.randrange(2)]
        places = ((WARM, BORN), (COLD, BORN, WARM))[lives.randrange(2)]
        lines.append(LineShape("xb", 1 + lives.randrange(2), timeout_ms, pace_s, places, frozenset({BORN})))
    of_lines = tuple(replace(line, keys=keys) for line in lines)
    return TransactionShape(of_lines, segment_bytes, has_hot, is_trimmed, retention_bytes, has_lives, keys)


class Cast:
    """Of one run. `client_near`: clients that read elsewhere than of leaders, by name."""

    def __init__(self, stage: Stage, shape: TransactionShape, *, is_judged: bool) -> None:
        self._stage, self.shape = stage, shape
        self.hits: Counter[str] = Counter()
        self._lines = [Line(stage, line, self.hits, shape.told_to_main, is_judged=is_judged) for line in shape.lines]
        self._groups = [GroupOffsets(stage, line.name, line.places[0], self.hits) for line in shape.lines]
        self._after = 0

    def writers(self) -> Sequence[Line]:
        return self._lines

    def others(self, near: Callable[[Place], Sequence[tuple[str, Client]]]) -> list[Other]:
        """Readers of each place: of its leader, and where `near` goes; of each group; and who deletes records."""
        found: list[Other] = [*self._groups]
        if self.shape.is_trimmed:
            found.append(Trimmer(self._stage, self.shape.places, self.hits))
        if self.shape.has_lives:
            found += [Lives(self._stage, self.hits), self._reader("tx again lives", BORN, self._stage.client(BORN))]
        for place in self.shape.places:
            clients = [(f"tx again {place[0]}", self._stage.client(place)), *near(place)]
            found += [self._reader(name, place, client) for name, client in clients]
        return found

    def _reader(
        self, name: str, place: Place, client: Client, *, is_committed: bool = True, again: bool = True
    ) -> TransactionReader:
        kind = LifeReader if place == BORN else TransactionReader
        return kind(self._stage, name, place, client, self.hits, self._is_cold, is_committed=is_committed, again=again)

    def _is_cold(self, node_name: str, place: Place, offset: int) -> bool:
        for node in self._stage.cluster.nodes:
            if node.name == node_name and node.broker is not None and node.broker.components.replicas is not None:
                held = node.broker.components.replicas._registry.partitions.get(place)
                return held is not None and offset < held.log.local_log_start_offset
        return False

    async def settle(self, found: Found) -> None:
        """In quiet times: end all, and read all."""
        closed = await asyncio.gather(*(line.close() for line in self._lines))
        for line, is_closed in zip(self._lines, closed, strict=True):
            if not is_closed:
                found("txn-stuck", f"InitProducerId of {line.name} unanswered {CLOSES_S:.0f} s after the last fault")
        has_lost = any(
            isinstance(event, Loss) and event.place[0] in (ANYWHERE[0], STATE_TOPIC)
            for event in self._stage.history.events
        )
        ends_s = ENDS_UNKNOWN_S if has_lost else ENDS_S
        await self.read(found, FINAL, ends_s)
        for group in self._groups:
            for _ in range(int(2 * ends_s)):
                if await group.step(is_final=True):
                    break
                await asyncio.sleep(0.5)
            else:
                found("txn-stuck", f"the offset of {group._line} is not stable, or not told")

    async def read(self, found: Found, name: str, patience_s: float = READ_S) -> None:
        """All places, in both isolations."""
        for is_committed in (True, False):
            readers = [
                self._reader(name, place, self._stage.client(place), is_committed=is_committed, again=False)
                for place in self.shape.places
            ]
            stuck = await asyncio.gather(*(reader.read_all(patience_s) for reader in readers))
            for place, why in zip(self.shape.places, stuck, strict=True):
                if why:
                    kind = "txn-hanging" if is_committed else "unreadable"
                    found(kind, f"{place}: {why} ({name}, {patience_s:.0f} s)")
        if self.shape.has_lives:
            await self._read_life(found, name, patience_s)

    async def _read_life(self, found: Found, name: str, patience_s: float) -> None:
        """The last one, if it lasts until both isolations were read."""
        readers = []
        for is_committed in (True, False):
            client = self._stage.client(BORN)
            reader = self._reader(name, BORN, client, is_committed=is_committed, again=False)
            assert isinstance(reader, LifeReader)
            reader.told = []
            readers.append(reader)
            if why := await reader.read_all(patience_s):
                found("txn-hanging", f"{reader.place}: {why} ({name}, {patience_s:.0f} s)")
        if readers[0].topic_id is not None and readers[0].topic_id == readers[1].topic_id:
            for reader in readers:
                for look in reader.told or ():
                    self._stage.history.add(look)
