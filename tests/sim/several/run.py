"""One simulated run of several brokers: a seed in, an outcome out.

Owns the draw of a run's shape from its seed, and what its acts are in a world of several brokers: after the last fault
leaders for all within 30 s, also while one broker hears nobody, and full in-sync sets within 60 s (liveness); every
copy read; every broker restarted, and the same again. Always true: same seed
and number of brokers, same digest (for one commit and Python minor version).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from seams.rng import SeededRng
from tests.sim import acts
from tests.sim.actors import Admin, Reader
from tests.sim.checks.history import History, Place
from tests.sim.checks.invariants import watch_roots
from tests.sim.client import Client
from tests.sim.guarded import SETTINGS as GUARDED_SETTINGS
from tests.sim.guarded import is_guarded
from tests.sim.nemesis import KEEPS
from tests.sim.playing import Actor, Load, Outcome, Play, played
from tests.sim.run import BROKER_SETTINGS, FAULTY, authorizer_of, codec_of
from tests.sim.several.checks.ends import Ends
from tests.sim.several.checks.god import God
from tests.sim.several.checks.losses import Losses
from tests.sim.several.crowd import Crowd, Operator
from tests.sim.several.faults.kinds import DRAWN_APART, OF_REFUSALS, Kind
from tests.sim.several.faults.nemesis import SeveralNemesis
from tests.sim.several.fleet import Fleet, brokers_are_seen
from tests.sim.several.near import near_clients, near_readers
from tests.sim.several.reborn import Reborn, ThereAndBack
from tests.sim.table import SETTINGS as TABLE_SETTINGS
from tests.sim.table import TableShape, table_of
from tests.sim.transactions.cast import SETTINGS as TRANSACTION_SETTINGS
from tests.sim.transactions.cast import TransactionShape, transactions_of
from tests.sim.world.cleaning import Breaks
from tests.sim.world.cluster import Node
from tests.sim.world.encryption import drawn_encryption
from tests.sim.world.late import drawn_chance, late_of
from tests.sim.world.loop import SimLoop
from tests.support.store.faulty_store import Fault

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
    local_bytes: int | None  # what logs keep on disk of what the bucket holds; None: as each topic says
    throttled: bool = False  # replicas that are out of sync, all of them
    late: float = 0.0  # the chance that a call of a worker is; 0: none is
    reborn: bool = False  # a topic is deleted and made again while it is written to, replicas leave and come back
    table: TableShape | None = None
    transactions: TransactionShape | None = None
    is_guarded: bool = False  # the ACLs of one topic change


def shape_of(seed: int, brokers: int, duration_s: float, replication_factor: int | None = None) -> Shape:
    """The run that `seed` stands for: a quarter of them with one replica a partition, the others mostly with a minimum
    of two in sync. What is given is not drawn."""
    rng = SeededRng(f"several/{brokers}/{seed}")
    drawn = min(brokers, 1 if rng.randrange(4) == 0 else 3)
    replicas = drawn if replication_factor is None else replication_factor
    min_in_sync = min(replicas, (1, 2, 2, 2, 2, 3)[rng.randrange(6)])
    deaf = rng.randrange(3) == 0
    kinds = tuple(kind for kind in Kind if kind not in DRAWN_APART and rng.randrange(2)) if rng.randrange(8) else ()
    if SeededRng(f"several/{brokers}/{seed}/moves").randrange(2):  # apart, so that the other half is as it was
        kinds += (Kind.MOVE,)
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
        f"transaction.state.log.replication.factor={replicas}",
        f"transaction.state.log.min.isr={min(min_in_sync, 2)}",
    )
    producers = 3 + rng.randrange(3)
    pace_s = (0.15, 0.4, 1.0)[rng.randrange(3)]
    segment_bytes = (2500, 6000, 20_000)[rng.randrange(3)]
    later = SeededRng(f"several/{brokers}/{seed}/later")
    if later.randrange(2) and kinds:
        kinds += (Kind.LAG,)
    if SeededRng(f"several/{brokers}/{seed}/drains").randrange(4) == 0 and brokers > 1:
        kinds += (Kind.DRAIN,)
    refusals = SeededRng(f"several/{brokers}/{seed}/refusals")
    kinds += tuple(kind for kind in OF_REFUSALS if refusals.randrange(4) == 0 and kinds)
    if SeededRng(f"several/{brokers}/{seed}/rot").randrange(4) == 0 and kinds:
        kinds += (Kind.ROTTEN,)
    if SeededRng(f"several/{brokers}/{seed}/configs").randrange(3) == 0:
        kinds += (Kind.CONFIGS,)
    settings += (f"thermocline.follower.skip.bytes={(0, 4000, 64 << 20)[later.randrange(3)]}",)
    settings += codec_of(f"several/{brokers}/{seed}")
    settings += authorizer_of(f"several/{brokers}/{seed}")
    operated = SeededRng(f"several/{brokers}/{seed}/operated")
    is_throttled = operated.randrange(3) == 0
    if is_throttled:
        settings += (f"follower.replication.throttled.rate={(20_000, 100_000)[operated.randrange(2)]}",)
    if operated.randrange(2):
        settings += (f"leader.imbalance.check.interval.seconds={(1, 4)[operated.randrange(2)]}",)
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
        producers,
        pace_s,
        segment_bytes,
        (None, 30_000, 8000)[later.randrange(3)],
        is_throttled,
    )


def with_late(shape: Shape, *, always: bool) -> Shape:
    """Late work, and what it is dangerous to: drawn apart, so that all else is as it was, or always."""
    name = f"several/{shape.brokers}/{shape.seed}"
    is_reborn = SeededRng(f"{name}/reborn").randrange(3) == 0
    return replace(
        shape,
        late=drawn_chance(name, always=always),
        reborn=always or is_reborn,
        table=table_of(name),
        transactions=transactions_of(name, more_lines=1),
        is_guarded=is_guarded(name, shape.settings),
    )


def seats_of(shape: Shape) -> int:
    """How many brokers there are: one more than asked for, where one is drained and its replicas need another place."""
    return shape.brokers + (Kind.DRAIN in shape.kinds)


def simulate(
    seed: int,
    brokers: int,
    duration_s: float = DURATION_S,
    replication_factor: int | None = None,
    *,
    late: bool = False,
) -> Outcome:
    """Run a seed to its end. Deterministic; nothing of it touches the real world."""
    shape = with_late(shape_of(seed, brokers, duration_s, replication_factor), always=late)

    def make(loop: SimLoop) -> SeveralBrokers:
        settings, name = (
            [*BROKER_SETTINGS, *TABLE_SETTINGS, *TRANSACTION_SETTINGS, *shape.settings],
            f"several/{brokers}/{seed}",
        )
        settings += GUARDED_SETTINGS if shape.is_guarded else ()
        late_work, encrypts = late_of(loop, name, shape.late), drawn_encryption(name)
        fleet = Fleet(loop, name, seats_of(shape), settings, late=late_work, encrypts=encrypts)
        return SeveralBrokers(shape, fleet)

    with brokers_are_seen():
        return played(make)


def simulate_beside(
    name: str,
    acts: Callable[[Shape, Fleet], SeveralBrokers],
    seed: int,
    brokers: int,
    duration_s: float = DURATION_S,
    replication_factor: int | None = None,
) -> Outcome:
    """As `simulate`, with the acts of `name` and none of tables and transactions."""
    shape = shape_of(seed, brokers, duration_s, replication_factor)

    def make(loop: SimLoop) -> SeveralBrokers:
        settings = [*BROKER_SETTINGS, *shape.settings]
        return acts(shape, Fleet(loop, f"{name}/{brokers}/{seed}", seats_of(shape), settings))

    with brokers_are_seen():
        return played(make)


class SeveralBrokers(Play):
    """The acts of one run."""

    several = True

    def __init__(self, shape: Shape, fleet: Fleet) -> None:
        stage = Crowd(fleet, History(), _nobody, asyncio.Event(), [], {})
        load = Load(shape.duration_s, shape.producers, shape.pace_s, shape.segment_bytes)
        self._kinds, self._is_sync = shape.kinds, shape.sync
        super().__init__(
            shape, load, fleet, stage, PARTITIONS, shape.table, shape.transactions, is_guarded=shape.is_guarded
        )
        self._fleet = fleet
        self._crowd = stage
        self._deaf, self._min_in_sync, self._local_bytes = shape.deaf, shape.min_in_sync, shape.local_bytes
        self._throttled = {"follower.replication.throttled.replicas": "*"} if shape.throttled else {}
        self._losses = losses = Losses(fleet, stage.history)
        replicas, sync = shape.replication_factor, shape.sync
        self._nemesis = SeveralNemesis(
            stage, losses, shape.kinds, shape.faults, self._places, replicas=replicas, sync=sync
        )
        self._god = God(fleet, stage, losses, sync=sync)
        self._ends = Ends(fleet, stage, self._read_places)
        hits = self._nemesis.hits
        self._reborn = Reborn(stage, replicas, hits) if shape.reborn else None
        self._back = ThereAndBack(stage, hits) if shape.reborn and replicas > 1 else None

    @property
    def clocks_jump(self) -> bool:
        return Kind.CLOCK in self._kinds

    @property
    def hits(self) -> Mapping[str, int]:
        return self._nemesis.hits

    def watch(self) -> list[Coroutine[Any, Any, None]]:
        roots = watch_roots(self._fleet, self._stage, self._fleet.is_deleted)
        looking = (self._god.watch(), self._god.watch_starts(PARTITIONS), roots)
        return [self._nemesis.processes.keep_up(), *looking, *self.rewraps()]

    async def begin(self) -> bool:
        is_up = await self._nemesis.until(lambda: all(seat.serving for seat in self._fleet.seats), 20.0)
        if not is_up:
            down = [seat.node_id for seat in self._fleet.seats if not seat.serving]
            self.found("not-ready", f"nodes {down} did not come up on empty disks and an empty bucket")
        return is_up

    def configs(self) -> Mapping[str, str]:
        kept = {} if self._local_bytes is None else {"local.retention.bytes": str(self._local_bytes)}
        return {"min.insync.replicas": str(self._min_in_sync), **kept, **self._throttled}

    def readers(self) -> list[Reader]:
        readers = [Reader(self._stage, f"again{i}", place, again=True) for i, place in enumerate(self._places[:2])]
        readers += [Reader(self._stage, f"tail{i}", p, again=False) for i, p in enumerate(self._places[1:])]
        return readers + near_readers(self._crowd, self._fleet, self._places)

    def clients_near(self, place: Place) -> Sequence[tuple[str, Client]]:
        return near_clients(self._crowd, self._fleet, place)

    def admin(self) -> Admin:
        return Operator(self._crowd, self._places)

    def others(self) -> Sequence[Actor]:
        return [actor for actor in (self._reborn, self._back) if actor is not None]

    def breaks_cleaning(self) -> Breaks | None:
        if Kind.KILL not in self._kinds:
            return None
        keep = self._stage.rng("kept of a swap")

        def cut_power(node: Node) -> None:
            seat = next(seat for seat in self._fleet.seats if seat.node is node)
            self._fleet.cut_power(seat, KEEPS[keep.randrange(len(KEEPS))], keep)

        return Breaks(self._stage.rng("swaps"), self._fleet.kill, cut_power if self._is_sync else None)

    async def break_things(self) -> None:
        await self._nemesis.run()

    async def mend(self) -> None:
        """Leaders for all soon, also while one broker hears nobody; then full in-sync sets."""
        nemesis = self._nemesis
        if self._deaf:
            deaf = nemesis.deafen()
            await nemesis.heal(but=deaf)
            if not await nemesis.until(lambda: not any(self._ends.not_led(without=deaf)), LEADERS_S):
                without = [*self._ends.not_led(without=deaf)]
                self.found("leaderless", f"{LEADERS_S:.0f} s without node {deaf.node_id}: {without}")
        await nemesis.heal()
        await self._are_whole("after the last fault")
        if not await nemesis.copy_again():
            self.found("unsettled", "changes of topic configs were unanswered after the last fault")

    async def end(self) -> None:
        await self._are_whole("after the last write")
        if self._reborn is not None:
            await self._reborn.read(self.found)
        await self._ends.read_copies(self.found)
        await self._ends.read_tables(self.found)
        await self.drained(lambda: [*self._lagging()])
        await self._nemesis.restart_all()
        await self._are_whole("after clean restarts")
        await acts.read_again(self._stage, self.found, self._read_places)
        await self._ends.read_copies(self.found)
        await self._ends.read_tables(self.found)

    async def _are_whole(self, when: str) -> None:
        ends, nemesis = self._ends, self._nemesis
        if not await nemesis.until(lambda: not any(ends.not_led()), LEADERS_S):
            self.found("leaderless", f"{LEADERS_S:.0f} s {when}: {[*ends.not_led()]}")
        if not await nemesis.until(lambda: not any(ends.not_full()), SETS_FULL_S):
            self.found("sets-not-full", f"{SETS_FULL_S:.0f} s {when}: {[*ends.not_full()]}")

    def _lagging(self) -> Iterator[str]:
        for node, partition in self._fleet.replicas():
            if partition.leading and partition.tier.enabled and partition.tier.status().copy_lag_bytes > 0:
                yield f"{node.name} {partition.topic}-{partition.index}: {partition.tier.status()}"


def _nobody() -> object:
    raise AssertionError("clients of several brokers are told of none")
