"""What one broker is refused, until all is calm: a log, by its disk, or its requests, by the bucket.

Owns who is refused what, drawn by an rng of its own. Always true: a disk that refuses a log refuses no other, whoever
runs there, and most of the time the broker begins anew while it does, so that an opening meets it; what the bucket
refuses one broker it gives the others; a refusal is counted when somebody was refused. Must not know other faults.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter

from coldstore.stores.operations import Operation
from tests.sim.checks.history import Note, Place
from tests.sim.several.crowd import Crowd
from tests.sim.several.faults.kinds import Kind
from tests.sim.several.faults.processes import Processes
from tests.sim.several.fleet import Fleet, Seat
from tests.support.disk.crash_disk import Fault
from tests.support.store.faulty_store import WRITES

READS = frozenset(Operation) - WRITES
_RIGHTS = (frozenset(Operation), WRITES, READS)
_DOWN_S = (0.05, 0.4)
_MET_S = 8.0
_LASTS_S = (0.0, 6.0)


class Refusals:
    """Of one fleet; `hits` counts what took effect. `places`: partitions that clients know."""

    def __init__(self, stage: Crowd, processes: Processes, places: list[Place], hits: Counter[str]) -> None:
        assert isinstance(stage.cluster, Fleet)
        self._stage = stage
        self._fleet: Fleet = stage.cluster
        self._processes = processes
        self._known = places
        self._hits = hits
        self._rng = stage.rng("refusals")
        self._faults: list[Fault] = []
        self._denied: list[Seat] = []
        self._is_to_be_met = False

    async def strike(self, kind: Kind, seat: Seat) -> None:
        """`seat`: whom it strikes where no role of a log is drawn."""
        if kind is Kind.DENIED:
            self._deny(seat)
        else:
            await self._refuse_log(seat)

    def _deny(self, seat: Seat) -> None:
        """All of it, writes or reads, also to who is started there meanwhile."""
        denies = _RIGHTS[self._rng.randrange(3)]
        self._fleet.rights[seat.place].denies = denies
        self._denied.append(seat)
        self._note(f"node {seat.node_id} is denied {' '.join(sorted(operation.value for operation in denies))}")

    async def _refuse_log(self, any_seat: Seat) -> None:
        """EIO to reads of open files too; EACCES to what opens them, or lists them."""
        rng, place = self._rng, self._drawn_place()
        seat = self._drawn_holder(place) or any_seat
        below = f"/data/{seat.directory}/{place[0]}-{place[1]}"
        code, operations = (errno.EIO, ("read",)) if rng.randrange(2) else (errno.EACCES, ("open", "list"))
        suffix = ("", "", ".log")[rng.randrange(3)]
        disk = seat.machine.disk
        self._faults += [disk.inject(operation, code, suffix, times=-1, below=below) for operation in operations]
        self._note(f"node {seat.node_id} is refused {place}{suffix}: {errno.errorcode[code]}")
        if rng.randrange(4):
            await self._processes.strike(Kind.RESTART if rng.randrange(4) == 0 else Kind.KILL, seat)
            seat.back_at_s = min(seat.back_at_s, self._stage.now() + rng.uniform(*_DOWN_S))
            self._is_to_be_met = True

    async def until_met(self) -> None:
        """Give an opening that is to meet a refusal the time to meet it, and those who hear of it some more."""
        if not self._is_to_be_met:
            return
        until_s, lasts_s, is_met = self._stage.now() + _MET_S, self._rng.uniform(*_LASTS_S), False
        while self._stage.now() < until_s and not self._stage.stopping.is_set():
            if not is_met and any(fault.struck for fault in self._faults):
                is_met, until_s = True, self._stage.now() + lasts_s
            await asyncio.sleep(0.1)

    def _drawn_place(self) -> Place:
        """Of all partitions, groups' too."""
        places = self._fleet.partitions() or self._known
        return places[self._rng.randrange(len(places))]

    def _drawn_holder(self, place: Place) -> Seat | None:
        """Its leader, or one of its followers; None: anybody."""
        row, rng = self._fleet.row_of(place), self._rng
        role = rng.randrange(3)
        if row is None or role == 0:
            return None
        chosen = [node_id for node_id in row.replicas if (node_id == row.leader) == (role == 1)]
        found = [seat for seat in self._fleet.seats if seat.node_id in chosen]
        return found[rng.randrange(len(found))] if found else None

    def calm(self) -> None:
        """Nobody is refused anything any more."""
        if any(fault.struck for fault in self._faults):
            self._hits[Kind.UNREADABLE.value] += 1
        for seat in self._denied:
            rights = self._fleet.rights[seat.place]
            self._hits[Kind.DENIED.value] += rights.denied > 0
            rights.denies, rights.denied = (), 0
        self._faults.clear()
        self._is_to_be_met = False
        self._denied.clear()

    def _note(self, text: str) -> None:
        self._stage.history.add(Note(self._stage.now(), text))
