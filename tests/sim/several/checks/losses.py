"""What the promises allow to be lost, written into the history when it comes to it.

Owns that judgement: a partition whose in-sync set has no disk left that holds what was acknowledged may lose what the
bucket does not hold, nothing else may. Always true: it is judged when a disk goes, and again while some are gone, for a
set may shrink to them by a commit that was under way. Must not know faults.
"""

from __future__ import annotations

from broker.metadata.records import Row
from tests.sim.checks.history import History, Loss, Place
from tests.sim.nemesis import manifests
from tests.sim.several.fleet import Fleet, Seat


class Losses:
    """Of one run."""

    def __init__(self, fleet: Fleet, history: History) -> None:
        self._fleet = fleet
        self._history = history
        self._noted: set[tuple[Place, int]] = set()  # with the partition epoch whose set it was
        self._kind = ""
        self._stopped_s = -1.0

    def would_empty(self, seat: Seat) -> bool:
        """Whether a set of several replicas would have no member left with a disk that kept what was acknowledged."""
        newest = self._fleet.newest()
        blank = {other.node_id for other in self._fleet.seats if other.blank} | {seat.node_id}
        return any(
            len(row.replicas) > 1 and set(row.in_sync) <= blank
            for topic in (() if newest is None else newest.image.topics.values())
            for row in topic.rows
        )

    async def lose(self, seat: Seat, kind: str) -> None:
        """The disk of a seat goes now, or what of it nothing synced."""
        seat.blank = True
        self._kind, self._stopped_s = kind, seat.well_until_s
        self._noted.clear()
        await self.look()

    async def rot(self, seat: Seat, kind: str) -> None:
        """A log of a seat, which says which, is damaged from now on."""
        self._kind, self._stopped_s = kind, seat.well_until_s
        await self.look()

    async def look(self) -> None:
        """Note what is lost by now."""
        if not any(seat.blank or seat.rotten for seat in self._fleet.seats) or not any(self._lost()):
            return
        held = {place: manifest.bucket_end_offset for place, manifest in (await manifests(self._fleet)).items()}
        # Brokers that still run went on acknowledging while the roots were read.
        for place, partition_epoch in self._lost():
            self._noted.add((place, partition_epoch))
            self._fleet.losses += 1
            # Groups' offsets are promised after the snapshot that follows: which takes a broker that is well.
            loss = Loss(place, held.get(place, 0), self._fleet.loop.time(), self._kind, self._stopped_s)
            self._history.add(loss)
            self._fleet.acks.lost(loss)

    def _lost(self) -> list[tuple[Place, int]]:
        newest = self._fleet.newest()
        blank = {seat.node_id for seat in self._fleet.seats if seat.blank}
        return [
            ((topic.name, index), row.partition_epoch)
            for topic in (() if newest is None else newest.image.topics.values())
            for index, row in enumerate(topic.rows)
            if _is_lost(row, blank | self._rotten((topic.name, index)))
            and ((topic.name, index), row.partition_epoch) not in self._noted
        ]

    def _rotten(self, place: Place) -> set[int]:
        return {seat.node_id for seat in self._fleet.seats if seat.rotten_in(place)}


def _is_lost(row: Row, blank: set[int]) -> bool:
    """Whether nobody who holds all that was acknowledged has a disk that kept it."""
    return set(row.in_sync) <= blank
