"""What befalls processes and their machines, and the supervisor that starts them again.

Owns who is down and until when, and the judgement of exits. Always true: a seat whose time has come is started again; a
process that ends by itself, or does not end when it is told to, is a finding, but for one that the bucket refused
before it served; what a lost disk may cost is noted before anybody can see it; after the last fault who has a log that
only a restart brings back is started again, nobody else. Must not know who is chosen, nor links and stores.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

from broker.metadata.row_steps import holds_alone, is_alone
from seams.rng import SeededRng
from tests.sim.nemesis import KEEPS
from tests.sim.several.checks.losses import Losses
from tests.sim.several.crowd import Crowd
from tests.sim.several.faults.kinds import Kind, Times
from tests.sim.several.fleet import Fleet, Seat
from tests.sim.world.bucket import RemoteBucket
from tests.sim.world.cluster import Node

STOPS_S = 30.0
STARTS_AGAIN_S = 1.0
SPARES_THE_LAST = False
"""No disk is lost with which a set of several replicas is empty: how such a partition begins again is not yet built."""


class Processes:
    """Of one fleet; `hits` counts what took effect."""

    def __init__(self, stage: Crowd, losses: Losses, rng: SeededRng, hits: Counter[str], *, sync: bool) -> None:
        assert isinstance(stage.cluster, Fleet)
        self._stage = stage
        self._fleet: Fleet = stage.cluster
        self._losses = losses
        self._rng = rng
        self._hits = hits
        self._sync = sync
        self._times = Times()
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._stopping: set[str] = set()  # processes that were told to
        self._judged = 0  # of the exits
        self._is_mended = False

    async def keep_up(self) -> None:
        """Until cancelled: who ended is judged, and started again when its time has come."""
        while True:
            self._judge_exits()
            if self._is_mended:
                self._restart_failed()
                self._restore_stranded()
            for seat in self._fleet.seats:
                if seat.serving:
                    seat.blank = False
                elif (seat.node is None or seat.node.dead) and self._stage.now() >= seat.back_at_s:
                    self._fleet.sit(seat)
            await asyncio.sleep(0.1)

    def _judge_exits(self) -> None:
        """Nobody serves under another's node id here, so nobody who serves is refused; who was not told to stop runs
        on; and a directory that nobody served from yet needs a disk with room for its first files (docs/cli.md: 4)."""
        served = {node.name for node in self._fleet.nodes if node.ready_at is not None}
        begun = {name.partition("#")[0] for name in served}
        denied = {node.name for node in self._fleet.nodes if was_denied(node)}
        full = {node.name for node in self._fleet.nodes if node.had_no_room}
        for at_s, name, code in self._fleet.exits[self._judged :]:
            if code == 3 and name not in served and name in denied:
                self._hits["denied at start"] += 1
                self._back_later(name)
            elif code == 3 and name not in served:
                self._hits["refused at start"] += 1
                self._begin_empty(name)
            elif code == 4 and name in full and name.partition("#")[0] not in begun:
                self._hits["no room to begin"] += 1
            elif code != 0 or name not in self._stopping:
                self._stage.unexpected.append(f"{name} ended with exit {code} at {at_s:.3f} s")
        self._judged = len(self._fleet.exits)

    def _back_later(self, name: str) -> None:
        for seat in self._fleet.seats:
            if seat.node is not None and seat.node.name == name:
                seat.back_at_s = max(seat.back_at_s, self._stage.now() + STARTS_AGAIN_S)

    def _restart_failed(self) -> None:
        for seat in self._fleet.seats:
            if seat.node is not None and not seat.node.dead and waits_for_restart(self._fleet, seat):
                self._hits["restarted for a failed log"] += 1
                self._fleet.kill(seat.node)

    def _restore_stranded(self) -> None:
        """A set shrank to one member, which refuses its damaged log: the operator restores the segment
        (docs/operations.md, log_offline)."""
        for seat in self._fleet.seats:
            node = seat.node
            replicas = None if node is None or node.dead or node.broker is None else node.broker.components.replicas
            for place in [] if replicas is None else [(found.topic, found.partition) for found in replicas.damaged]:
                row, rot = self._fleet.row_of(place), seat.rotten.get(place)
                if rot is not None and seat.rotten_in(place) and row is not None and row.in_sync == (seat.node_id,):
                    seat.machine.disk.flip_bit(rot.path, rot.position, rot.bit)
                    del seat.rotten[place]
                    self._hits["a damaged log restored"] += 1
                    self._fleet.kill(node)
                    break

    def _begin_empty(self, name: str) -> None:
        """A broker that the cluster let go, though who drained it had no answer in time: its operator does what the
        refusal says, and gives it an empty directory."""
        newest = self._fleet.newest()
        seat = next((seat for seat in self._fleet.seats if seat.node is not None and seat.node.name == name), None)
        if newest is not None and seat is not None and seat.node_id not in newest.image.nodes:
            self._fleet.replace(seat)
            self._hits["let go, begun empty"] += 1

    async def strike(self, kind: Kind, seat: Seat) -> None:
        """One kind of `OF_PROCESSES`."""
        match kind:
            case Kind.RESTART:
                self._later(self.restart(seat))
            case Kind.REPLACE:
                self._later(self._replace(seat))
            case Kind.PAUSE:
                self._pause(seat)
            case _:
                await self._fell(kind, seat)

    async def _fell(self, kind: Kind, seat: Seat) -> None:
        """Its broker dies at once; for how long is drawn."""
        node = seat.node
        if node is None or node.dead:
            return
        if kind is Kind.DISK_LOSS or (kind is Kind.POWER_CUT and not self._sync):
            if self._spares(seat):
                return
            await self._losses.lose(seat, kind.value)
            if node.dead:
                return  # while the roots were read
        seat.back_at_s = self._stage.now() + self._among(self._times.down)
        if kind is Kind.POWER_CUT:
            keep = KEEPS[self._rng.randrange(len(KEEPS))]
            self._fleet.cut_power(seat, keep, self._rng)
            self._hits[f"{kind.value}, keeps {keep}"] += 1
            return
        if kind is Kind.DISK_LOSS:
            self._fleet.lose_disk(seat)
        else:
            self._fleet.kill(node)
        self._hits[kind.value] += 1

    def _spares(self, seat: Seat) -> bool:
        """Whether its disk may not go."""
        return SPARES_THE_LAST and self._losses.would_empty(seat)

    async def restart(self, seat: Seat) -> bool:
        """A clean stop; the supervisor starts it again. Whether it ended so."""
        node = seat.node
        if node is None or not node.serving or node.name in self._stopping:
            return False
        self._stopping.add(node.name)
        node.stop.set()
        deadline_s = self._stage.now() + STOPS_S
        while not node.main.done() and not node.dead and self._stage.now() < deadline_s:
            if node.paused:
                deadline_s += 0.05
            await asyncio.sleep(0.05)
        if node.main.done():
            self._hits[Kind.RESTART.value] += 1
            return True
        if not node.dead:
            if self._fleet.late is None:  # else it waits for a thread
                self._stage.unexpected.append(f"{node.name} did not stop within {STOPS_S:.0f} s of SIGTERM")
            self._fleet.kill(node)
        return False

    async def _replace(self, seat: Seat) -> None:
        """Stopped as it should be, and begun again by whoever does not care what lay on the disk."""
        node = seat.node
        if await self.restart(seat) and seat.node is node and not self._spares(seat):
            await self._losses.lose(seat, Kind.REPLACE.value)
            if seat.node is node:
                self._fleet.replace(seat)
                self._hits[Kind.REPLACE.value] += 1

    def _pause(self, seat: Seat) -> None:
        node = seat.node
        if node is None or not node.serving:
            return
        self._fleet.pause(node)
        self._hits[Kind.PAUSE.value] += 1

        async def resume(after_s: float) -> None:
            await asyncio.sleep(after_s)
            self._fleet.resume(node)

        self._later(resume(self._among(self._times.paused)))

    def heal(self) -> None:
        """Who is down or paused is so no more; a log that a failed fsync took offline needs a restart (C10)."""
        self._is_mended = True
        for seat in self._fleet.seats:
            seat.back_at_s = min(seat.back_at_s, self._stage.now())
            node = seat.node
            if node is not None and node.paused:
                self._fleet.resume(node)
            if node is not None and not node.dead and seat.machine.disk.hits["fault:sync"]:
                self._fleet.kill(node)

    def _among(self, ranges: Sequence[tuple[float, float]]) -> float:
        return self._rng.uniform(*ranges[self._rng.randrange(len(ranges))])

    def _later(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way[task] = None
        task.add_done_callback(lambda done: self._under_way.pop(done, None))


def was_denied(node: Node) -> bool:
    """Whether the bucket answered 403 to this process."""
    store = getattr(node, "store", None)
    return isinstance(store, RemoteBucket) and store.denied > 0


def waits_for_restart(fleet: Fleet, seat: Seat) -> bool:
    """Whether its disk failed a log that nothing but a restart brings back (docs/operations.md, log_offline): a write
    failed, or the opening, where nobody else is assigned it, or a move has begun since but nobody has joined."""
    node = seat.node
    replicas = None if node is None or node.broker is None else node.broker.components.replicas
    if replicas is None or not any(seat.machine.disk.hits[f"fault:{kind}"] for kind in ("read", "open", "list")):
        return False
    registry = replicas._registry
    logs = [*(partition.log for partition in registry), *(copy.log for copy in registry.followed.values())]
    me = seat.node_id
    refused = [row for place in replicas.damaged if (row := fleet.row_of((place.topic, place.partition))) is not None]
    return any(log.failure for log in logs) or any(
        is_alone(row, me) or (row.leader == me and holds_alone(row, me)) for row in refused
    )
