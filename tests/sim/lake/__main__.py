"""`python -m tests.sim.lake --seeds 1..20 [--brokers 3]`: runs with readers of the bucket alone."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from tests.sim.checks import checker
from tests.sim.checks.history import Place
from tests.sim.lake.readers import LakeReader, Rows
from tests.sim.playing import Actor, Outcome, Play, played
from tests.sim.run import BROKER_SETTINGS, OF_ONE, OneBroker
from tests.sim.run import shape_of as one_shape_of
from tests.sim.several import run as several
from tests.sim.several.fleet import Fleet, brokers_are_seen
from tests.sim.table import SETTINGS as TABLE_SETTINGS
from tests.sim.table import TABLE
from tests.sim.transactions.cast import SETTINGS as TRANSACTION_SETTINGS
from tests.sim.world.cluster import Cluster
from tests.sim.world.encryption import drawn_encryption
from tests.sim.world.late import late_of
from tests.sim.world.loop import SimLoop
from thermocline.pipeline.scan import SplitReader
from thermocline.pipeline.split import SplitPart

GRACE = "thermocline.cold.compaction.grace.ms=300"
"""Short, so that objects are deleted between a plan and its reads."""


@contextmanager
def moves_are_counted(hits: Counter[str]) -> Iterator[None]:
    """Reads that go on in the object that replaced theirs."""
    moved = SplitReader._moved

    def counted(reader: SplitReader, piece: SplitPart) -> SplitPart | None:
        found = moved(reader, piece)
        hits["lake: moved"] += found is not None
        return found

    with mock.patch.object(SplitReader, "_moved", counted):
        yield


class _Lake(Play):
    lake_hits: Counter[str]

    def others(self) -> Sequence[Actor]:
        self.lake_hits = Counter()
        of_transactions: list[Place] = [] if self._cast is None else list(self._cast.shape.tiered)
        places = [*self._places, *of_transactions]
        if self._table is not None:
            places += [(TABLE, 0), (TABLE, 0)]
        readers = [LakeReader(self._stage, f"lake{n}", places, of_transactions, self.lake_hits) for n in range(6)]
        self._lake_readers = readers
        return [*super().others(), *readers]

    async def end(self) -> None:
        for reader in self._lake_readers:
            for _ in range(3):
                await reader.step()
        await super().end()  # type: ignore[safe-super]

    def outcome(self, *more: checker.Finding) -> Outcome:
        events = self._stage.history.events
        rows = [event for event in events if isinstance(event, Rows)]
        facts = checker._sorted_out(
            [event for event in events if not isinstance(event, Rows)], frozenset(), several=self.several
        )
        finals = {final.place: final for final in facts.finals}
        told = list(more)
        for one in rows:
            final = finals.get(one.place)
            if final is None:
                continue
            there, got = facts.final_values[one.place], dict(one.values)
            for offset in range(max(one.start, final.start), min(one.end, final.end)):
                if got.get(offset) != there.get(offset) and not facts.excused(one.place, offset, one.done_s):
                    name = f"{one.place} {offset}: {got.get(offset)}, in the end {there.get(offset)}"
                    told.append(checker.Finding("lake", f"{name}; [{one.start}, {one.end}) until {one.done_s:.3f} s"))
        found = super().outcome(*told)
        found.hits.update(getattr(self, "lake_hits", {}))
        return found


class OneLake(_Lake, OneBroker):
    pass


class SeveralLake(_Lake, several.SeveralBrokers):
    pass


def more_cold(shape: Any, seed: int) -> Any:
    """Tables are tiered, and transactions compacted, more often than elsewhere."""
    table = shape.table
    if seed % 4:
        table = replace(table, is_tiered=True, delete_retention_ms=5000)
    transactions = shape.transactions
    if seed % 4 != 1:
        transactions = replace(transactions, keys=6, lines=tuple(replace(line, keys=6) for line in transactions.lines))
    return replace(shape, table=table, transactions=transactions)


def one(seed: int, duration_s: float) -> Outcome:
    shape = more_cold(replace(one_shape_of(seed, duration_s), directory_bucket=False), seed)

    def make(loop: SimLoop) -> OneBroker:
        settings = [*BROKER_SETTINGS, *TABLE_SETTINGS, *TRANSACTION_SETTINGS, *OF_ONE, *shape.settings, GRACE]
        name = f"lake/{seed}"
        of_bucket: Any = {"directory_bucket": False, "encrypts": drawn_encryption(name)}
        cluster = Cluster(loop, name, settings=settings, late=late_of(loop, name, shape.late), **of_bucket)
        return OneLake(replace(shape, is_guarded=False), cluster)

    return _played(make)


def many(seed: int, brokers: int, duration_s: float) -> Outcome:
    shape = several.with_late(several.shape_of(seed, brokers, duration_s), always=False)
    shape = more_cold(replace(shape, is_guarded=False), seed)

    def make(loop: SimLoop) -> several.SeveralBrokers:
        settings = [*BROKER_SETTINGS, *TABLE_SETTINGS, *TRANSACTION_SETTINGS, *shape.settings, GRACE]
        name = f"lake/{brokers}/{seed}"
        fleet = Fleet(
            loop,
            name,
            several.seats_of(shape),
            settings,
            late=late_of(loop, name, shape.late),
            encrypts=drawn_encryption(name),
        )
        return SeveralLake(shape, fleet)

    with brokers_are_seen():
        return _played(make)


def _played(make: Callable[[SimLoop], Play]) -> Outcome:
    moved: Counter[str] = Counter()
    with moves_are_counted(moved):
        outcome = played(make)
    outcome.hits.update(moved)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="1..1")
    parser.add_argument("--brokers", type=int, default=0)
    parser.add_argument("--duration", type=float)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO if arguments.verbose else logging.CRITICAL + 1)
    first, _, last = arguments.seeds.partition("..")
    hits: Counter[str] = Counter()
    failed = []
    for seed in range(int(first), int(last or first) + 1):
        began = time.monotonic()
        if arguments.brokers:
            outcome = many(seed, arguments.brokers, arguments.duration or several.DURATION_S)
        else:
            outcome = one(seed, arguments.duration or 20.0)
        hits.update(outcome.hits)
        lake: Mapping[str, int] = {name: n for name, n in sorted(outcome.hits.items()) if name.startswith("lake")}
        print(
            f"seed {seed}: {time.monotonic() - began:.1f} s, {outcome.acked} acked {lake}"
            f"{' FINDINGS' if outcome.findings else ''}",
            flush=True,
        )
        for finding in outcome.findings[:12]:
            print(f"  {finding.kind}: {finding.detail[:700]}", flush=True)
        if outcome.findings:
            failed.append(seed)
    for name, n in sorted(hits.items()):
        if "clean" in name or "lake" in name or "expire" in name:
            print(name, n)
    print("findings:", failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
