"""A bit flips in what was durable of one replica's log, while its broker is down and others have all of it.

Owns which bit, drawn by an rng of its own. Always true: it is one that the next opening has to find (below the recovery
point, in the file that is read whole); two other members of the in-sync set at least are whole, or it does not flip;
until the log is gone from its place, whoever judges losses and copies takes that replica for one that has nothing.
Counted when the log was moved aside, or cut. Must not know other faults.
"""

from __future__ import annotations

from collections import Counter

from logformat.checkpoints import RECOVERY_POINT_FILE, decode_offsets
from logformat.values import TopicPartition
from tests.sim.checks.history import Note, Place
from tests.sim.several.checks.disks import Disks, base_of, batches_in
from tests.sim.several.checks.losses import Losses
from tests.sim.several.crowd import Crowd
from tests.sim.several.faults.kinds import Kind
from tests.sim.several.faults.processes import Processes
from tests.sim.several.fleet import Fleet, Rot, Seat

WHOLE_OTHERS = 2
_CHECKED_FROM = 16  # of a batch's header: before it lie the offset, the length, and the epoch, which no CRC covers


class Rotting:
    """Of one fleet; `hits` counts what was found."""

    def __init__(self, stage: Crowd, processes: Processes, losses: Losses, hits: Counter[str]) -> None:
        assert isinstance(stage.cluster, Fleet)
        self._stage = stage
        self._fleet: Fleet = stage.cluster
        self._processes = processes
        self._losses = losses
        self._hits = hits
        self._rng = stage.rng("rot")
        self._disks = Disks()

    async def strike(self, seat: Seat) -> None:
        """Kill a broker, and damage one of its logs, where that may be."""
        if seat.node is None or seat.node.dead:
            return
        await self._processes.strike(Kind.KILL, seat)
        places = [place for place in self._fleet.partitions() if self._is_spared(seat, place)]
        while places:
            place = places.pop(self._rng.randrange(len(places)))
            if (rot := self._flip(seat, place)) is not None:
                seat.rotten[place] = rot
                self._stage.history.add(Note(self._stage.now(), f"node {seat.node_id} has a flipped bit in {rot.path}"))
                await self._losses.rot(seat, Kind.ROTTEN.value)
                return

    def _is_spared(self, seat: Seat, place: Place) -> bool:
        """Whether enough others hold all of it."""
        row = self._fleet.row_of(place)
        members = () if row is None else row.in_sync
        whole = [other for other in self._fleet.seats if not other.blank and not other.rotten_in(place)]
        return seat.node_id in members and sum(other.node_id in members for other in whole) > WHOLE_OTHERS

    def _flip(self, seat: Seat, place: Place) -> Rot | None:
        disk, rng = seat.machine.disk, self._rng
        paths = self._disks.places(disk, seat.directory, synced=True).get(place, [])
        checkpoint = disk._names.get(f"/data/{seat.directory}/{RECOVERY_POINT_FILE}")
        if not paths or checkpoint is None:
            return None
        points = decode_offsets(bytes(checkpoint.data), RECOVERY_POINT_FILE)
        point, path = points.get(TopicPartition(*place), 0), paths[-1]
        data = disk._names[path].data
        found = list(batches_in(data, base_of(path)))
        proven = [(at, header) for at, header in found if header.next_offset <= point]
        if len(proven) in (0, len(found)):
            return None  # nothing of it is below, or nobody reads it at the opening
        at, header = proven[rng.randrange(len(proven))]
        position, bit = at + _CHECKED_FROM + rng.randrange(header.size - _CHECKED_FROM), rng.randrange(8)
        disk.flip_bit(path, position, bit)
        return Rot(path, at, bytes(data[at : at + header.size]), position, bit)

    def look(self) -> None:
        """Count those that were found since, and forget them."""
        for seat in self._fleet.everywhere:
            for place in [place for place in seat.rotten if not seat.rotten_in(place)]:
                if seat.rotten.pop(place).path.startswith(f"/data/{seat.directory}/"):
                    self._hits[Kind.ROTTEN.value] += 1
