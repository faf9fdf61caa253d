"""What breaks some of several brokers, seeded: processes, machines, disks, links, the store, clocks.

Always true: each run draws a random half of the fault kinds; every few seconds all faults that last are taken back and
a random subset of the kinds strikes, a quarter of the time none, each on a role drawn for it: any broker, the
controller, the leader of a partition. A fault is counted when it took effect; who is down is started again by the
supervisor when its time has come; `heal` takes everything back. Losses that the promises allow are written into the
history before anybody can see them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from coldstore.stores.faulty import FAULTS_OF, Fault, FaultPlan
from seams.rng import SeededRng
from tests.sim.bucket import RemoteBucket
from tests.sim.history import CALM, Note, Place
from tests.sim.links import CLIENTS, STORE, Link, both_ways
from tests.sim.nemesis import HIGH, KEEPS, LOW, SELDOM
from tests.sim.several.crowd import Crowd
from tests.sim.several.fleet import Fleet, Seat
from tests.sim.several.losses import Losses

STOPS_S = 30.0


class Kind(Enum):
    """Fault kinds; those of the bucket have their own names in `coldstore.stores.faulty`."""

    KILL = "kill -9"
    RESTART = "clean restart"
    POWER_CUT = "power cut"
    PAUSE = "pause"
    DISK_LOSS = "disk loss"
    ISOLATED = "partition, both ways"
    ONE_WAY = "partition, one way"
    SLOW_LINK = "partition, slow"
    FLAPPING = "partition, flapping"
    STORE_AWAY = "store away for one"
    OUTAGE = "bucket outage"
    TOXIC = "bucket toxics"
    SLOW = "slow fsync"
    CLOCK = "wall clock jump"
    CUT = "connection cut"


_LASTING = (
    *(Kind.ISOLATED, Kind.ONE_WAY, Kind.SLOW_LINK, Kind.FLAPPING),
    *(Kind.STORE_AWAY, Kind.OUTAGE, Kind.TOXIC, Kind.SLOW),
)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: how long a broker is down or paused, and how long faults last until the next; a session of 9 s outlives
    some of each."""

    down: tuple[tuple[float, float], ...] = ((0.05, 0.5), (1.0, 4.0), (8.0, 15.0))
    paused: tuple[tuple[float, float], ...] = ((0.1, 1.0), (1.5, 4.0), (8.0, 15.0))
    until_next: tuple[tuple[float, float], ...] = ((0.4, 2.0), (2.0, 7.0), (7.0, 16.0))


class SeveralNemesis:
    """Breaks and mends one fleet."""

    def __init__(
        self,
        stage: Crowd,
        losses: Losses,
        kinds: Sequence[Kind],
        faults: Sequence[Fault],
        places: Sequence[Place],
        *,
        sync: bool,
    ) -> None:
        assert isinstance(stage.cluster, Fleet)
        self._losses = losses
        self._stage = stage
        self._fleet: Fleet = stage.cluster
        self.hits: Counter[str] = Counter()
        self._kinds = kinds
        self._faults = faults
        self._places = places
        self._sync = sync
        self._times = Times()
        self._rng: SeededRng = stage.rng("nemesis")
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._flapping: dict[asyncio.Task[None], None] = {}
        self._stopping: set[str] = set()  # processes that were told to
        self._judged = 0  # of the exits

    def note(self, text: str) -> None:
        self._stage.history.add(Note(self._stage.now(), text))

    async def run(self) -> None:
        """Until told to stop."""
        while True:
            await asyncio.sleep(self._among(self._times.until_next))
            if self._stage.stopping.is_set():
                return
            self._calm()
            if self._rng.randrange(4) == 0:
                continue
            # What lasts comes first, so that processes die and start among it.
            chosen = sorted(
                (kind for kind in self._kinds if self._rng.randrange(5) < 2), key=lambda kind: kind not in _LASTING
            )
            for kind in chosen:
                await self._do(kind, self._target())

    # --- the supervisor ---
    async def keep_up(self) -> None:
        """Until cancelled: who ended is judged, and started again when its time has come."""
        while True:
            self._judge_exits()
            for seat in self._fleet.seats:
                if seat.serving:
                    seat.blank = False
                elif (seat.node is None or seat.node.dead) and self._stage.now() >= seat.back_at_s:
                    self._fleet.sit(seat)
            await asyncio.sleep(0.1)

    def _judge_exits(self) -> None:
        """Nobody serves under another's node id here, so nobody who serves is refused; who was not told to stop runs
        on."""
        served = {node.name for node in self._fleet.nodes if node.ready_at is not None}
        for at_s, name, code in self._fleet.exits[self._judged :]:
            if code == 3 and name not in served:
                self.hits["refused at start"] += 1
            elif code != 0 or name not in self._stopping:
                self._stage.unexpected.append(f"{name} ended with exit {code} at {at_s:.3f} s")
        self._judged = len(self._fleet.exits)

    # --- roles ---
    def _target(self) -> tuple[Seat, str]:
        """Whom the next fault strikes, and as what."""
        rng = self._rng
        any_seat = self._fleet.seats[rng.randrange(len(self._fleet.seats))]
        place = self._places[rng.randrange(len(self._places))]
        match rng.randrange(3):
            case 0 if (controller := self._fleet.controller()) is not None:
                return controller, "the controller"
            case 1 if (leader := self._fleet.leader_of(place)) is not None:
                return leader, f"leader of {place[0]}-{place[1]}"
        return any_seat, "any"

    def _among(self, ranges: Sequence[tuple[float, float]]) -> float:
        return self._rng.uniform(*ranges[self._rng.randrange(len(ranges))])

    # --- kinds ---
    async def _do(self, kind: Kind, target: tuple[Seat, str]) -> None:
        seat, role = target
        self.note(f"{kind.value}: node {seat.node_id}, {role}")
        match kind:
            case Kind.KILL | Kind.POWER_CUT | Kind.DISK_LOSS:
                await self._fell(kind, seat)
            case Kind.RESTART:
                self._later(self._restart(seat), self._under_way)
            case Kind.PAUSE:
                self._pause(seat)
            case Kind.ISOLATED | Kind.ONE_WAY | Kind.SLOW_LINK | Kind.FLAPPING:
                self._part(kind, seat)
            case Kind.STORE_AWAY:
                self._take_store(seat)
            case Kind.OUTAGE:
                self._fleet.store.down = True
            case Kind.TOXIC:
                self._poison()
            case Kind.SLOW:
                if seat.node is not None:
                    seat.node.workers.slow = True
            case Kind.CLOCK:
                if seat.serving and seat.node is not None:
                    seat.node.clock.jump_ms = self._rng.randrange(6_000_000) - 3_000_000
                    self.hits[kind.value] += 1
            case Kind.CUT:
                for transport in list(self._fleet.net.open):
                    if transport in self._fleet.net.open and self._rng.randrange(2):
                        self.hits[kind.value] += 1
                        self._fleet.net.cut(transport)

    async def _fell(self, kind: Kind, seat: Seat) -> None:
        """Its broker dies at once; for how long is drawn."""
        node = seat.node
        if node is None or node.dead:
            return
        if kind is Kind.DISK_LOSS or (kind is Kind.POWER_CUT and not self._sync):
            await self._losses.lose(seat, kind.value)
            if node.dead:
                return  # while the roots were read
        seat.back_at_s = self._stage.now() + self._among(self._times.down)
        if kind is Kind.POWER_CUT:
            keep = KEEPS[self._rng.randrange(len(KEEPS))]
            self._fleet.cut_power(seat, keep, self._rng)
            self.hits[f"{kind.value}, keeps {keep}"] += 1
            return
        if kind is Kind.DISK_LOSS:
            self._fleet.lose_disk(seat)
        else:
            self._fleet.kill(node)
        self.hits[kind.value] += 1

    async def _restart(self, seat: Seat) -> None:
        """A clean stop; the supervisor starts it again."""
        node = seat.node
        if node is None or not node.serving or node.name in self._stopping:
            return
        self._stopping.add(node.name)
        node.stop.set()
        deadline_s = self._stage.now() + STOPS_S
        while not node.main.done() and not node.dead and self._stage.now() < deadline_s:
            if node.paused:
                deadline_s += 0.05
            await asyncio.sleep(0.05)
        if node.main.done():
            self.hits[Kind.RESTART.value] += 1
        elif not node.dead:
            self._stage.unexpected.append(f"{node.name} did not stop within {STOPS_S:.0f} s of SIGTERM")
            self._fleet.kill(node)

    def _pause(self, seat: Seat) -> None:
        node = seat.node
        if node is None or not node.serving:
            return
        self._fleet.pause(node)
        self.hits[Kind.PAUSE.value] += 1

        async def resume(after_s: float) -> None:
            await asyncio.sleep(after_s)
            self._fleet.resume(node)

        self._later(resume(self._among(self._times.paused)), self._under_way)

    def _part(self, kind: Kind, seat: Seat) -> None:
        """Take links away between a broker and some places: a random part of the others, clients seldom, the store
        seldom."""
        rng = self._rng
        others = [other.place for other in self._fleet.seats if other is not seat]
        places = [place for place in others if rng.randrange(3)]
        places += [place for place in (CLIENTS, STORE) if rng.randrange(4) == 0]
        if not places:
            return
        links: list[Link] = [(seat.place, place) for place in places]
        if rng.randrange(2):
            links = [(place, seat.place) for place in places]
        if kind in (Kind.ISOLATED, Kind.FLAPPING, Kind.SLOW_LINK):
            links = both_ways(links)
        self.hits[kind.value] += 1
        if kind is Kind.SLOW_LINK:
            self._fleet.net.links.slow(links, rng.uniform(0.05, 1.5))
        else:
            self._fleet.net.links.cut(links)
        if kind is Kind.FLAPPING:
            self._later(self._flap(links), self._flapping)

    async def _flap(self, links: list[Link]) -> None:
        """Until all is calm: down and up by turns."""
        while True:
            await asyncio.sleep(self._rng.uniform(0.1, 1.2))
            self._fleet.net.links.heal(links)
            await asyncio.sleep(self._rng.uniform(0.05, 0.6))
            self._fleet.net.links.cut(links)

    def _take_store(self, seat: Seat) -> None:
        """Refused at once, or silence."""
        node = seat.node
        if node is None or not isinstance(getattr(node, "store", None), RemoteBucket):
            return
        self.hits[Kind.STORE_AWAY.value] += 1
        if self._rng.randrange(2):
            node.store.down = True  # type: ignore[attr-defined]
        else:
            self._fleet.net.links.cut(both_ways([(seat.place, STORE)]))

    def _poison(self) -> None:
        """A random subset of the run's bucket faults, each at its own rate."""
        rates = {}
        for operation, faults in FAULTS_OF.items():
            for fault in faults:
                if fault in self._faults and self._rng.randrange(2):
                    often = operation in SELDOM or fault in SELDOM
                    rates[operation, fault] = self._rng.uniform(*(HIGH if often else LOW))
        self._fleet.store.plan = FaultPlan(rates, (0.001, 0.05), (0.1, 8.0), flips=lambda key: "/segments/" in key)

    def _later(self, work: Coroutine[Any, Any, None], among: dict[asyncio.Task[None], None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        among[task] = None
        task.add_done_callback(lambda done: among.pop(done, None))

    # --- mending ---
    def _calm(self) -> None:
        """The end of faults that last; who is down, paused or stopping is so for as long as was drawn."""
        self.note(CALM)
        for task in self._flapping:
            task.cancel()
        self._fleet.net.links.heal()
        store = self._fleet.store
        store.plan = replace(store.plan, rates={}, latency_s=(0.001, 0.02))
        store.down = False
        for seat in self._fleet.seats:
            node = seat.node
            if node is None:
                continue
            if isinstance(getattr(node, "store", None), RemoteBucket):
                node.store.down = False  # type: ignore[attr-defined]
            self.hits[Kind.SLOW.value] += node.workers.slowed
            node.workers.slowed, node.workers.slow = 0, False

    def deafen(self) -> Seat:
        """Whom `heal` leaves cut off."""
        return self._target()[0]

    async def heal(self, but: Seat | None = None) -> None:
        """The end of all faults; one broker may stay cut off from everybody and the store."""
        self._calm()
        if but is not None:
            self.note(f"deaf: node {but.node_id}")
            places = [seat.place for seat in self._fleet.seats if seat is not but]
            self._fleet.net.links.cut(both_ways([(but.place, place) for place in (*places, CLIENTS, STORE)]))
            self.hits["partition, one stays deaf"] += 1
        for seat in self._fleet.seats:
            seat.back_at_s = min(seat.back_at_s, self._stage.now())
            if seat.node is not None and seat.node.paused:
                self._fleet.resume(seat.node)

    async def restart_all(self) -> None:
        """One after the other, cleanly."""
        for seat in self._fleet.seats:
            await self._restart(seat)
            await self.until(lambda seat=seat: seat.serving, 30.0)  # type: ignore[misc]

    async def until(self, condition: Callable[[], bool], patience_s: float) -> bool:
        """Wait; whether it came true in time."""
        deadline_s = self._stage.now() + patience_s
        while not condition() and self._stage.now() < deadline_s:
            await asyncio.sleep(0.05)
        return condition()
