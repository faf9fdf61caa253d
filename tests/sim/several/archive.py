"""A read-only broker beside the brokers whose bucket it reads, in the world of several.

Owns its process, what befalls it (kills, no way to the bucket), its readers, and what is asked of it beyond what
anybody who reads is asked: it never sends a write; what it served lies at its place in the log that is read at the end,
whatever disks were lost, for the bucket lost nothing; in the end it serves all that the bucket holds. Must not know
what befalls the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from broker.config.places import Launch
from coldstore.object_store import ObjectInfo, ObjectStore, Upload
from coldstore.stores.read_only import ReadOnlyStore
from tests.sim.actors import NO_ANSWER, Reader, Stage
from tests.sim.checks.history import Final, Place, Poll
from tests.sim.client import LATEST, Client, ServerError
from tests.sim.several.fleet import Fleet
from tests.sim.several.run import SeveralBrokers, Shape, simulate_beside
from tests.sim.world.cluster import HOST, Node
from tests.sim.world.links import STORE, both_ways
from tests.sim.world.machines import Machine

PORT = 9999
NODE_ID = 100
DIRECTORY = "archive"
NAME = "archive"
SERVES_S = 30.0
REACHES_END_S = 60.0  # an idle root is looked at twice a minute


class WritesSeen(ReadOnlyStore):
    """`ObjectStore` over `store`; `writes` names what was asked for that is no read."""

    def __init__(self, store: ObjectStore, writes: list[str]) -> None:
        super().__init__(store)
        self._writes = writes

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        self._writes.append(f"PUT {key}")
        return await self._store.put_segment(key, body)

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        self._writes.append(f"PUT {key} if {if_match}")
        return await self._store.put_root(key, data, if_match)

    async def delete(self, keys: Sequence[str]) -> None:
        self._writes.append(f"DELETE {keys}")
        await self._store.delete(keys)


class Archive:
    """The process, on a machine of its own."""

    def __init__(self, fleet: Fleet, stage: Stage, hits: Counter[str]) -> None:
        self._fleet = fleet
        self._stage = stage
        self._hits = hits
        self._rng = stage.rng(NAME)
        self._machine = Machine(fleet.loop, NAME)
        self.node: Node | None = None
        self.writes: list[str] = []

    @property
    def serving(self) -> bool:
        return self.node is not None and self.node.serving

    def client(self) -> Client:
        return Client(self._fleet.net, lambda: (HOST, PORT))

    def reader(self, name: str, place: Place, *, again: bool) -> Reader:
        reader = Reader(self._stage, f"{NAME} {name}", place, again=again)
        reader._client = self.client()
        return reader

    async def keep_up(self) -> None:
        """Until cancelled: it is started when it is not there; now and then it dies, or loses its way to the bucket."""
        way = both_ways([(NAME, STORE)])
        while True:
            if self.node is None or self.node.dead:
                self.node = self._start()
            await asyncio.sleep(self._rng.uniform(0.5, 3.0))
            if self._stage.stopping.is_set():
                self._fleet.net.links.heal(way)
                continue
            match self._rng.randrange(12):
                case 0 if self.serving:
                    self._hits["read-only broker killed"] += 1
                    self._fleet.kill(self.node)
                case 1:
                    self._hits["read-only broker without bucket"] += 1
                    self._fleet.net.links.cut(way)
                case 2 | 3:
                    self._fleet.net.links.heal(way)

    def _start(self) -> Node:
        return self._fleet.start(
            DIRECTORY,
            PORT,
            f"node.id={NODE_ID}",
            machine=self._machine,
            launch=Launch(read_only=True),
            way=lambda store: WritesSeen(store, self.writes),
        )


class BesideAnArchive(SeveralBrokers):
    """The acts of one run, and what the read-only broker's clients do beside them."""

    def __init__(self, shape: Shape, fleet: Fleet) -> None:
        super().__init__(shape, fleet)
        self._own_hits: Counter[str] = Counter()
        self._archive = Archive(fleet, self._stage, self._own_hits)

    @property
    def hits(self) -> Mapping[str, int]:
        return Counter(super().hits) + self._own_hits

    def watch(self) -> list[Coroutine[Any, Any, None]]:
        return [*super().watch(), self._archive.keep_up()]

    def readers(self) -> list[Reader]:
        mine = [self._archive.reader(f"{i}", place, again=i % 2 == 0) for i, place in enumerate(self._places)]
        return [*super().readers(), *mine]

    async def end(self) -> None:
        await super().end()
        archive = self._archive
        if not await self._nemesis.until(lambda: archive.serving, SERVES_S):
            self.found("archive-away", f"no read-only broker {SERVES_S:.0f} s after everything was over")
            return
        for place in self._places:
            await self._read_to_the_end(place)
        if archive.writes:
            self.found("archive-wrote", f"{len(archive.writes)} writes: {archive.writes[:5]}")
        self._served_what_is_there()

    async def _read_to_the_end(self, place: Place) -> None:
        """It serves all that the bucket holds, soon."""
        reader = self._archive.reader("final", place, again=False)
        held = max(
            partition.tier.remote_end_offset
            for _, partition in self._fleet.replicas()
            if partition.leading and (partition.topic, partition.index) == place
        )
        end, deadline_s = -1, self._stage.now() + REACHES_END_S
        while end < held and self._stage.now() < deadline_s:
            try:
                end = await reader._client.list_offset(*place, LATEST)
            except (*NO_ANSWER, ServerError):
                await asyncio.sleep(0.5)
        if end != held:
            self.found("archive-end", f"{place}: it ends at {end}, the bucket at {held}")
        elif not await reader.read_to(end, REACHES_END_S):
            self.found("archive-unseen", f"{place}: stuck at {reader.position} of {end}")

    def _served_what_is_there(self) -> None:
        """Every value it served lies at its offset in the log that was read at the end; no loss excuses another: what
        is in the bucket was never lost."""
        events = self._stage.history.events
        finals = {event.place: event for event in events if isinstance(event, Final)}
        there: dict[Place, dict[int, str]] = {place: {} for place in finals}
        polls = [event for event in events if isinstance(event, Poll)]
        for poll in polls:
            if poll.consumer == "final":
                for batch in poll.batches:
                    there[poll.place].update(enumerate(batch.values, batch.base))
        for poll in polls:
            final = finals.get(poll.place)
            if final is None or not poll.consumer.startswith(NAME):
                continue
            for batch in poll.batches:
                for offset, value in enumerate(batch.values, batch.base):
                    if final.start <= offset < final.end and there[poll.place].get(offset) != value:
                        found = there[poll.place].get(offset)
                        self.found("archive-differs", f"{poll.place} {offset}: served {value}, there is {found}")
                        return


simulate = partial(simulate_beside, "archive", BesideAnArchive)
"""As `several.run.simulate`, with a read-only broker beside them."""
