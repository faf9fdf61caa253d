"""What breaks some of several brokers, seeded: processes, machines, disks, links, the store, clocks, settings.

Always true: each run draws a random half of the fault kinds; every few seconds all faults that last are taken back and
a random subset of the kinds strikes, a quarter of the time none, each on a role drawn for it: any broker, the
controller, the leader of a partition. A fault is counted when it took effect; who is down is started again by the
supervisor (`processes`) when its time has come; `heal` takes everything back.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec.structs import replace

from seams.rng import SeededRng
from tests.sim.checks.history import CALM, Note, Place
from tests.sim.nemesis import HIGH, LOW, SELDOM
from tests.sim.several.checks.losses import Losses
from tests.sim.several.crowd import Crowd
from tests.sim.several.faults.draining import Draining
from tests.sim.several.faults.kinds import LASTING, OF_LINKS, OF_PROCESSES, OF_REFUSALS, Kind, Times
from tests.sim.several.faults.processes import Processes
from tests.sim.several.faults.refusals import Refusals
from tests.sim.several.faults.rot import Rotting
from tests.sim.several.faults.settings import Settings
from tests.sim.several.fleet import Fleet, Seat
from tests.sim.world.bucket import RemoteBucket
from tests.sim.world.links import CLIENTS, STORE, Link, both_ways
from tests.support.disk.crash_disk import CAPACITY_BYTES
from tests.support.store.faulty_store import FAULTS_OF, Fault, FaultPlan


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
        replicas: int,
        sync: bool,
    ) -> None:
        assert isinstance(stage.cluster, Fleet)
        self._stage = stage
        self._fleet: Fleet = stage.cluster
        self.hits: Counter[str] = Counter()
        self._kinds = kinds
        self._faults = faults
        self._places = places
        self._replicas = replicas
        self._times = Times()
        self._rng: SeededRng = stage.rng("nemesis")
        self._settings = Settings(stage, self._rng, places, self.hits)
        self._changing: dict[asyncio.Task[None], None] = {}  # settings
        self._flapping: dict[asyncio.Task[None], None] = {}
        self.processes = Processes(stage, losses, self._rng, self.hits, sync=sync)
        self._refusals = Refusals(stage, self.processes, list(places), self.hits)
        self._rotting = Rotting(stage, self.processes, losses, self.hits)
        self._draining = Draining(stage, stage.rng("drains"), self.hits, self.processes.restart)

    def note(self, text: str) -> None:
        self._stage.history.add(Note(self._stage.now(), text))

    async def run(self) -> None:
        """Until told to stop."""
        while True:
            await asyncio.sleep(self._rng.uniform(*self._times.until_next[self._rng.randrange(3)]))
            await self._refusals.until_met()
            if self._stage.stopping.is_set():
                return
            self._calm()
            if self._rng.randrange(4) == 0:
                continue
            # What lasts comes first, so that processes die and start among it.
            chosen = sorted(
                (kind for kind in self._kinds if self._rng.randrange(5) < 2), key=lambda kind: kind not in LASTING
            )
            for kind in chosen:
                await self._do(kind, self._target())

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

    # --- kinds ---
    async def _do(self, kind: Kind, target: tuple[Seat, str]) -> None:
        seat, role = target
        self.note(f"{kind.value}: node {seat.node_id}, {role}")
        if kind in OF_PROCESSES:
            await self.processes.strike(kind, seat)
        elif kind in OF_LINKS:
            self._part(kind, seat)
        elif kind is Kind.ROTTEN:
            await self._rotting.strike(seat)
        elif kind in OF_REFUSALS:
            await self._refusals.strike(kind, seat)
        else:
            self._strike(kind, seat)

    def _strike(self, kind: Kind, seat: Seat) -> None:
        match kind:
            case Kind.LAG:
                self._hold_back(seat)
            case Kind.STORE_AWAY:
                self._take_store(seat)
            case Kind.OUTAGE:
                self._fleet.store.down = True
            case Kind.TOXIC:
                self._poison()
            case Kind.SLOW:
                if seat.node is not None:
                    seat.node.workers.slow = True
            case Kind.FULL:
                disk = seat.machine.disk
                disk.capacity_bytes = CAPACITY_BYTES - disk.space("/").free + self._rng.randrange(4000)
            case Kind.FSYNC:
                seat.machine.disk.inject("sync", errno.EIO, ".log", skip=self._rng.randrange(3))
            case Kind.CLOCK:
                if seat.serving and seat.node is not None:
                    seat.node.clock.jump_ms = self._rng.randrange(6_000_000) - 3_000_000
                    self.hits[kind.value] += 1
            case Kind.CUT:
                for transport in list(self._fleet.net.open):
                    if transport in self._fleet.net.open and self._rng.randrange(2):
                        self.hits[kind.value] += 1
                        self._fleet.net.cut(transport)
            case Kind.MINIMUM:
                topic, least = self._places[self._rng.randrange(len(self._places))][0], self._rng.randrange(3)
                self._begin(self._settings.set_minimum(topic, 1 + least % self._replicas), self._changing)

            case Kind.CONFIGS:
                self._begin(self._settings.change(), self._changing)

            case Kind.MOVE:
                self._begin(self._settings.move(*self._settings.drawn_moves()), self._changing)

            case Kind.DRAIN:
                self._begin(self._draining.drain(seat), self._changing)

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
            self._begin(self._flap(links), self._flapping)

    async def _flap(self, links: list[Link]) -> None:
        """Until all is calm: down and up by turns."""
        while True:
            await asyncio.sleep(self._rng.uniform(0.1, 1.2))
            self._fleet.net.links.heal(links)
            await asyncio.sleep(self._rng.uniform(0.05, 0.6))
            self._fleet.net.links.cut(links)

    def _hold_back(self, seat: Seat) -> None:
        """It keeps its session, and copies nothing from who leads, but for the controller."""
        controller = self._fleet.controller()
        if controller is None or controller is seat:
            return
        leaders = [other for other in self._fleet.seats if other is not seat and other is not controller]
        self.hits[Kind.LAG.value] += 1
        self._fleet.net.links.cut(both_ways([(seat.place, other.place) for other in leaders]))

    def _take_store(self, seat: Seat) -> None:
        """Refused at once, or silence."""
        store = getattr(seat.node, "store", None)
        if not isinstance(store, RemoteBucket):
            return
        self.hits[Kind.STORE_AWAY.value] += 1
        if self._rng.randrange(2):
            store.down = True
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

    def _begin(self, work: Coroutine[Any, Any, None], among: dict[asyncio.Task[None], None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        among[task] = None

        def over(done: asyncio.Task[None]) -> None:
            among.pop(done, None)
            if not done.cancelled() and (failure := done.exception()) is not None:
                self._stage.unexpected.append(f"the nemesis failed: {failure!r}")

        task.add_done_callback(over)

    # --- mending ---
    def _calm(self) -> None:
        """The end of faults that last; who is down, paused or stopping is so for as long as was drawn."""
        self.note(CALM)
        for task in self._flapping:
            task.cancel()
        self._fleet.net.links.heal()
        self._refusals.calm()
        self._rotting.look()
        store = self._fleet.store
        store.plan = replace(store.plan, rates={}, latency_s=(0.001, 0.02))
        store.down = False
        for seat in self._fleet.seats:
            seat.machine.disk.heal()
            seat.machine.disk.capacity_bytes = CAPACITY_BYTES
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
        self.processes.heal()

    async def copy_again(self) -> bool:
        """The end of changes that keep records from the bucket; whether it was answered."""
        if Kind.CONFIGS not in self._kinds:
            return True
        for _ in range(20):
            if await self._settings.copy_again():
                return True
            await asyncio.sleep(0.5)
        return False

    async def restart_all(self) -> None:
        """One after the other, cleanly."""
        for seat in self._fleet.seats:
            await self.processes.restart(seat)
            await self.until(lambda seat=seat: seat.serving, 30.0)  # type: ignore[misc]

    async def until(self, condition: Callable[[], bool], patience_s: float) -> bool:
        """Wait; whether it came true in time."""
        deadline_s = self._stage.now() + patience_s
        while not condition() and self._stage.now() < deadline_s:
            await asyncio.sleep(0.05)
        return condition()
