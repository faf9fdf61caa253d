"""A history on both brokers, compared after every step; many histories on one site; the first difference.

Always true: what is found can be repeated by the site's seed and the number of the history, alone where it does not
need those before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeVar

from tests.differential import facts
from tests.differential.brokers import Pair
from tests.differential.history import Burst, Happening, Kind, Step, draw, site
from tests.differential.reference import check_log
from tests.sim.world.loop import SimLoop

T = TypeVar("T")

PER_SITE: Final = 60
_CHECKPOINTED_MS: Final = 6_500  # over replica.high.watermark.checkpoint.interval.ms, so one follows the last record
_END: Final[tuple[Step, ...]] = (
    Happening(Kind.RELEASE),
    Happening(Kind.ROOM),
    Happening(Kind.HEAL),
    Happening(Kind.RELAX),
    Happening(Kind.RESERVED),
    Happening(Kind.PASS, 30),
)


class Difference(AssertionError):
    """The two ways are not one."""

    def __init__(self, step: int, found: Sequence[str]) -> None:
        super().__init__(f"after step {step}:\n    " + "\n    ".join(found[:12]))
        self.step = step
        self.found = found


@dataclass
class Tally:
    """What ran, so that a run that tests nothing is seen."""

    histories: int = 0
    frames: int = 0
    runs: Counter[int] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    batches: int = 0  # recomputed by the reference
    segments: int = 0

    def add(self, other: Tally) -> None:
        self.histories += other.histories
        self.frames += other.frames
        self.batches += other.batches
        self.segments += other.segments
        self.runs.update(other.runs)
        self.happened.update(other.happened)


class Judge:
    """Compares the two brokers of a pair."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self._seen = facts.Seen(), facts.Seen()

    def wires(self, step: int) -> None:
        short, long = self.pair.ways
        if "answers together" in facts.NOT_YET and self._answers_wait(step):
            return
        found: list[str] = []
        for connection in sorted(short.wires.keys() | long.wires.keys()):
            pair = short.wires.get(connection), long.wires.get(connection)
            found += [f"connection {connection}, {one}" for one in facts.differences(*map(facts.of_wire, pair))]
        if found:
            raise Difference(step, found)
        for way in (short, long):
            for wire in way.wires.values():
                wire.answered.clear()

    def _answers_wait(self, step: int) -> bool:
        """Whether the short way may still owe answers that the long way gave: those it gave are the first of them."""
        short, long = self.pair.ways
        for connection, wire in short.wires.items():
            given = long.wires[connection]
            if not given.answered.startswith(wire.answered):
                raise Difference(step, facts.differences(facts.of_wire(wire), facts.of_wire(given)))
            if wire.closed and given.closed:  # what was owed is lost
                wire.answered[:] = given.answered
        return not short.workers.open.is_set()

    def all(self, step: int, touched: set[tuple[str, int]]) -> None:
        short, long = self.pair.ways
        found = facts.differences(facts.of_broker(short), facts.of_broker(long))
        for key in sorted(touched):
            both = [way.context.registry.partitions.get(key) for way in (short, long)]
            if None in both:
                if both[0] is not both[1]:
                    found.append(f"{key}: only one has it")
                continue
            states = [
                facts.of_partition(way, partition, seen)  # type: ignore[arg-type]
                for way, partition, seen in zip((short, long), both, self._seen, strict=True)
            ]
            found += [f"{key[0]}-{key[1]}, {one}" for one in facts.differences(*states)]
        if found:
            raise Difference(step, found)

    def files(self, step: int) -> None:
        found = facts.differences(*map(facts.of_files, self.pair.ways))
        if found:
            raise Difference(step, found)


async def live(pair: Pair, judge: Judge, steps: Sequence[Step], tally: Tally) -> None:
    """One history, from its first connection to quiet. Raises Difference."""
    pair.begin()
    touched: set[tuple[str, int]] = set()
    at = -1
    for at, step in enumerate(steps):
        await pair.perform(step)
        if isinstance(step, Burst):
            tally.frames += len(step.frames)
            touched |= {(part.topic, part.index) for frame in step.frames for part in frame.parts}
        else:
            tally.happened[step.kind.value] += 1
            touched |= {(step.topic, step.index)}
        judge.wires(at)
    for step in _END:
        await pair.perform(step)
    judge.wires(at + 1)
    judge.all(at + 1, touched)
    tally.histories += 1


async def _live_all(seed: int | str, numbers: Sequence[int], tally: Tally, given: Sequence[Step] | None) -> None:
    place = site(Random(f"site/{seed}"))
    pair = Pair(place)
    await pair.start()
    judge = Judge(pair)
    number = -1
    try:
        for number in numbers:
            await live(pair, judge, draw(place, f"{seed}/{number}") if given is None else given, tally)
        number = -1
        await pair.perform(Happening(Kind.PASS, _CHECKPOINTED_MS))
        judge.files(len(numbers))
        for partition in pair.ways[0].context.registry.partitions.values():
            batches, segments = check_log(pair.ways[0], partition)
            tally.batches += batches
            tally.segments += segments
        tally.runs.update(pair.ways[0].runs)
    except BaseException as failure:
        failure.add_note(f"site {seed}, history {number}")
        failure.history, failure.histories = number, len(numbers)  # type: ignore[attr-defined]
        raise
    finally:
        await pair.close()


def run_site(
    seed: int | str, numbers: Sequence[int] = range(PER_SITE), *, given: Sequence[Step] | None = None
) -> Tally:
    """The histories of these numbers, one after the other on one pair of brokers. Raises Difference.

    `given`: these steps instead of the first history's."""
    tally = Tally()
    with _quiet():
        _play(_live_all(seed, numbers, tally, given))
    return tally


def _play(coroutine: Coroutine[Any, Any, T]) -> T:
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(coroutine)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()


@contextmanager
def _quiet() -> Any:
    """A full disk and a sleeping machine are the broker's to tell, and nobody's to read here."""
    nobody = logging.NullHandler()
    logging.root.addHandler(nobody)
    try:
        yield
    finally:
        logging.root.removeHandler(nobody)
