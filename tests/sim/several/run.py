"""One simulated run of several brokers: a seed in, an outcome out.

Owns the draw of a run's shape from its seed, and its acts: faults; heal, and leaders for all within 30 s (liveness);
writes resume and the end is reached (G13); audit; every broker restarted, and the same again. Always true: same seed
and number of brokers, same digest (for one commit and Python minor version).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from coldstore.stores.faulty import Fault
from seams.rng import SeededRng
from tests.sim import acts, checker
from tests.sim.actors import GroupMember, Producer, Reader
from tests.sim.history import History, Place
from tests.sim.invariants import watch_roots
from tests.sim.loop import SimLoop
from tests.sim.run import BROKER_SETTINGS, FAULTY, TIERING_DRAINS_S, WRITES_RESUME_S, Outcome, concluded, played
from tests.sim.several.crowd import Crowd, Operator
from tests.sim.several.ends import Ends
from tests.sim.several.fleet import Fleet, brokers_are_seen
from tests.sim.several.god import God
from tests.sim.several.kinds import Kind
from tests.sim.several.losses import Losses
from tests.sim.several.nemesis import SeveralNemesis

DURATION_S = 40.0
LEADERS_S = 30.0  # for every partition, from the end of the last fault
SETS_FULL_S = 60.0
PARTITIONS = {"log": 3, "kept": 1}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a seed draws."""

    seed: int
    brokers: int
    duration_s: float
    replication_factor: int
    min_in_sync: int
    deaf: bool  # one broker stays cut off after the last fault, until the others lead
    sync: bool
    kinds: tuple[Kind, ...]
    faults: tuple[Fault, ...]
    settings: tuple[str, ...]
    producers: int
    pace_s: float
    segment_bytes: int


def shape_of(seed: int, brokers: int, duration_s: float, replication_factor: int | None = None) -> Shape:
    """The run that `seed` stands for: a quarter of them with one replica a partition, the others mostly with a minimum
    of two in sync. What is given is not drawn."""
    rng = SeededRng(f"several/{brokers}/{seed}")
    drawn = min(brokers, 1 if rng.randrange(4) == 0 else 3)
    replicas = drawn if replication_factor is None else replication_factor
    min_in_sync = min(replicas, (1, 2, 2, 2, 2, 3)[rng.randrange(6)])
    deaf = rng.randrange(3) == 0
    kinds = tuple(kind for kind in Kind if rng.randrange(2)) if rng.randrange(8) else ()
    faults = tuple(fault for fault in FAULTY if rng.randrange(2))
    sync = rng.randrange(4) != 0
    settings = (
        f"thermocline.flush={'sync' if sync else 'os'}",
        f"thermocline.reservation.offsets={(40, 300, 1 << 20)[rng.randrange(3)]}",
        f"thermocline.cache.bytes={(0, 20_000, 1 << 30)[rng.randrange(3)]}",
        f"thermocline.seal.on.shutdown={('true', 'false')[rng.randrange(2)]}",
        "broker.session.timeout.ms=1500",
        "broker.heartbeat.interval.ms=300",
        "thermocline.lease.ms=4000",
        "thermocline.lease.interval.ms=1000",
        "replica.lag.time.max.ms=3000",
        f"default.replication.factor={replicas}",
        f"offsets.topic.replication.factor={replicas}",
    )
    return Shape(
        seed,
        brokers,
        duration_s,
        replicas,
        min_in_sync,
        deaf,
        sync,
        kinds,
        faults,
        settings,
        3 + rng.randrange(3),
        (0.15, 0.4, 1.0)[rng.randrange(3)],
        (2500, 6000, 20_000)[rng.randrange(3)],
    )


def simulate(seed: int, brokers: int, duration_s: float = DURATION_S, replication_factor: int | None = None) -> Outcome:
    """Run a seed to its end. Deterministic; nothing of it touches the real world."""
    shape = shape_of(seed, brokers, duration_s, replication_factor)

    def make(loop: SimLoop) -> SeveralRun:
        settings = [*BROKER_SETTINGS, *shape.settings]
        return SeveralRun(shape, Fleet(loop, f"several/{brokers}/{seed}", brokers, settings))

    with brokers_are_seen():
        return played(make)


class SeveralRun:
    """The acts of one run."""

    def __init__(self, shape: Shape, fleet: Fleet) -> None:
        self._shape = shape
        self.cluster = self._fleet = fleet
        self._findings: list[checker.Finding] = []
        self._places: list[Place] = [(name, i) for name, count in PARTITIONS.items() for i in range(count)]
        self._stage = Crowd(fleet, History(), _nobody, asyncio.Event(), [], {})
        losses = Losses(fleet, self._stage.history)
        self._nemesis = SeveralNemesis(
            self._stage,
            losses,
            shape.kinds,
            shape.faults,
            self._places,
            replicas=shape.replication_factor,
            sync=shape.sync,
        )
        self._god = God(fleet, self._stage, losses, sync=shape.sync)
        self._ends = Ends(fleet, self._stage, self._places)

    def _found(self, kind: str, detail: str) -> None:
        self._findings.append(checker.Finding(kind, detail))

    async def play(self) -> Outcome:
        stage, shape, nemesis = self._stage, self._shape, self._nemesis
        keeper = asyncio.create_task(nemesis.processes.keep_up())
        watching = [asyncio.create_task(self._god.watch()), asyncio.create_task(watch_roots(self._fleet, stage))]
        if not await nemesis.until(self._all_serve, 20.0):
            self._found("not-ready", f"not every broker came up on empty disks and an empty bucket: {self._down()}")
            return self.outcome()
        await acts.create_topics(
            stage, self._found, PARTITIONS, shape.segment_bytes, {"min.insync.replicas": str(shape.min_in_sync)}
        )
        producers = [
            Producer(stage, f"p{i}", self._places[i % len(self._places)], shape.pace_s) for i in range(shape.producers)
        ]
        readers = [Reader(stage, f"again{i}", place, again=True) for i, place in enumerate(self._places[:2])]
        readers += [Reader(stage, f"tail{i}", place, again=False) for i, place in enumerate(self._places[1:])]
        member = GroupMember(stage, "group0", ("log", 0))
        writing = [asyncio.create_task(producer.run()) for producer in producers]
        others = [asyncio.create_task(actor.run()) for actor in (*readers, member, Operator(stage, self._places))]
        breaking = asyncio.create_task(nemesis.run())
        await asyncio.sleep(shape.duration_s)
        stage.stopping.set()
        await breaking
        await self._mend()
        _, late = await asyncio.wait(writing, timeout=WRITES_RESUME_S)
        if late:
            self._found("writes-stuck", f"{len(late)} producers unanswered {WRITES_RESUME_S} s after the last fault")
        for task in (*late, *others):
            task.cancel()
        for task in await asyncio.gather(*writing, *others, return_exceptions=True):
            if isinstance(task, Exception):
                raise task
        await acts.read_all(stage, self._found, self._places)
        await acts.read_group(member, self._found)
        await self._are_whole("after the last write")
        await self._ends.read_copies(self._found)
        await self._audit()
        await nemesis.restart_all()
        await self._are_whole("after clean restarts")
        await acts.read_again(stage, self._found, self._places)
        await self._ends.read_copies(self._found)
        for task in (keeper, *watching):
            task.cancel()
        for task in await asyncio.gather(keeper, *watching, return_exceptions=True):
            if isinstance(task, Exception):
                raise task
        return self.outcome()

    async def _mend(self) -> None:
        """The last fault is over: leaders for all soon, also while one broker hears nobody; then full in-sync sets."""
        nemesis = self._nemesis
        if self._shape.deaf:
            deaf = nemesis.deafen()
            await nemesis.heal(but=deaf)
            if not await nemesis.until(lambda: not any(self._ends.not_led(without=deaf)), LEADERS_S):
                without = [*self._ends.not_led(without=deaf)]
                self._found("leaderless", f"{LEADERS_S:.0f} s without node {deaf.node_id}: {without}")
        await nemesis.heal()
        await self._are_whole("after the last fault")

    async def _are_whole(self, when: str) -> None:
        ends, nemesis = self._ends, self._nemesis
        if not await nemesis.until(lambda: not any(ends.not_led()), LEADERS_S):
            self._found("leaderless", f"{LEADERS_S:.0f} s {when}: {[*ends.not_led()]}")
        if not await nemesis.until(lambda: not any(ends.not_full()), SETS_FULL_S):
            self._found("sets-not-full", f"{SETS_FULL_S:.0f} s {when}: {[*ends.not_full()]}")

    # --- what is so ---
    def _all_serve(self) -> bool:
        return all(seat.serving for seat in self._fleet.seats)

    def _down(self) -> str:
        return ", ".join(f"node {seat.node_id} does not serve" for seat in self._fleet.seats if not seat.serving)

    async def _audit(self) -> None:
        """Quiescence: what is led is copied, the books of every manifest balance."""
        if not await self._nemesis.until(lambda: not any(self._lagging()), TIERING_DRAINS_S):
            self._found("tiering-stuck", f"not drained {TIERING_DRAINS_S} s after the last fault: {[*self._lagging()]}")
        await asyncio.sleep(10.0)  # late writes land, graces pass
        await acts.audit_bucket(self._fleet, self._found)

    def _lagging(self) -> Iterator[str]:
        for node, partition in self._fleet.replicas():
            if partition.leading and partition.tier.enabled and partition.tier.status().copy_lag_bytes > 0:
                yield f"{node.name} {partition.topic}-{partition.index}: {partition.tier.status()}"

    def outcome(self, *more: checker.Finding) -> Outcome:
        """What came of it so far."""
        self._findings += more
        return concluded(self._shape, self._stage, self._nemesis.hits, self._findings, several=True)


def _nobody() -> object:
    raise AssertionError("clients of several brokers are told of none")
