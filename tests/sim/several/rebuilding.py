"""`cluster.json` is lost under load, and an operator makes it anew from the manifests, as `cluster rebuild` does (R29).

Owns that one fault and its mending: every broker is stopped, cleanly or not, the root is deleted or damaged, the pure
plan of `cluster rebuild` says what the new one holds; then all come back with their directories, and the operator goes
on as after a restore, to the word that all is there. Always true: what every run asks, this asks too; what manifests
do not hold, and logs do not know to be committed, may be lost, no more (docs/GUARANTEES.md). `replay` replays one.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from enum import StrEnum

from broker.metadata.cluster_content import ClusterContent
from broker.metadata.rebuild_root import write_rebuilt
from broker.metadata.rebuilt import EPOCHS_ABOVE, UNKNOWN_REPLICA, is_rebuilt
from broker.metadata.records import NO_LEADER
from broker.wire.apis import ApiKey
from broker.wire.messages import UnregisterBrokerRequest
from coldstore.keys import METADATA_PREFIX, TOPICS_PREFIX, MetadataKey, cluster_key, parse_key
from hotstore.file_names import is_stray_dir
from seams.rng import SeededRng
from tests.sim.actors import NO_ANSWER
from tests.sim.nemesis import manifests
from tests.sim.playing import Outcome, played
from tests.sim.run import BROKER_SETTINGS
from tests.sim.several.fleet import Fleet, brokers_are_seen
from tests.sim.several.restoring import BROKERS, DURATION_S, RESTORED_S, Others, Restored, with_transactions
from tests.sim.several.run import Shape, shape_of
from tests.sim.world.loop import SimLoop
from tests.support.store.memory_store import MemoryStore, StoredObject
from thermocline.cli.cluster.restore.rebuild_plan import Found, RebuildPlan, epochs_in, rebuild_plan

DONE_S = 20.0


class Stopped(StrEnum):
    """How every broker ended before."""

    CLEANLY = "stopped cleanly"
    KILLED = "killed"


def replay(seed: int) -> Outcome:
    """Run a seed to its end. Deterministic."""
    drawn = replace(shape_of(seed, BROKERS, DURATION_S), kinds=(), faults=(), deaf=False)
    shape, more = with_transactions(drawn, f"rebuilding/{seed}")

    def make(loop: SimLoop) -> Rebuilt:
        settings = [*BROKER_SETTINGS, *more, *shape.settings]
        return Rebuilt(shape, Fleet(loop, f"rebuilding/{seed}", BROKERS, settings))

    with brokers_are_seen():
        return played(make)


class Rebuilt(Restored):
    """The acts of one run."""

    def __init__(self, shape: Shape, fleet: Fleet) -> None:
        super().__init__(shape, fleet, Others.SAME)
        rng = self._choices = SeededRng(f"rebuilding/{shape.seed}/choices")
        self._stopped = tuple(Stopped)[rng.randrange(len(Stopped))]
        self._is_damaged = rng.randrange(2) == 1
        self._all_noted = False
        self._held: frozenset[str] = frozenset()

    async def break_things(self) -> None:
        """Half of the load before, half after."""
        await asyncio.sleep(self._choices.uniform(0.3, 0.6) * DURATION_S)
        await self._stop_all()
        await self._lose_root()
        await self._rebuild()
        for seat in self._fleet.seats:
            seat.back_at_s = self._stage.now() + self._choices.uniform(0.0, 2.0)
        if not await self._nemesis.until(self._all_came, RESTORED_S):
            self.found("not-back", f"{RESTORED_S:.0f} s after cluster.json was rebuilt not every broker has a session")
        self._nobody_began()
        await self._restore()
        self._nothing_went()
        await self._say_done()
        await self._stage.stopping.wait()

    async def _stop_all(self) -> None:
        fleet, processes = self._fleet, self._nemesis.processes
        self._nemesis.note(f"all brokers are {self._stopped}")
        for seat in fleet.seats:
            seat.back_at_s = float("inf")
        if self._stopped is Stopped.CLEANLY:
            ends = await asyncio.gather(*(processes.restart(seat) for seat in fleet.seats))
            self._all_noted = all(ends)
        for seat in fleet.seats:
            if seat.node is not None and not seat.node.dead:
                fleet.kill(seat.node)

    async def _lose_root(self) -> None:
        """Nobody says whose log is the whole one: of brokers that noted at a clean stop what is committed nothing is
        lost; else what the bucket does not hold may be."""
        fleet = self._fleet
        await fleet.look()
        for seat in () if self._all_noted else fleet.seats:
            await self._losses.lose(seat, "cluster.json")
        objects = self._objects()
        if self._is_damaged:
            objects[cluster_key()].data = objects[cluster_key()].data[:-7]
            self._nemesis.hits["cluster.json damaged"] += 1
        else:
            del objects[cluster_key()]
            self._nemesis.hits["cluster.json lost"] += 1
        self._nemesis.hits[f"rebuilt, all {self._stopped}"] += 1

    def _objects(self) -> dict[str, StoredObject]:
        store = self._fleet.plain_store()
        assert isinstance(store, MemoryStore)
        return store.objects

    async def _rebuild(self) -> None:
        """As the command does it."""
        fleet, store = self._fleet, self._fleet.plain_store()
        root = fleet.root
        assert root is not None and isinstance(root.content, ClusterContent)
        objects = self._objects()
        plan = await self._plan(root.epoch)
        self._held = frozenset(key for key in objects if key.startswith(TOPICS_PREFIX))
        if plan.epoch < root.epoch + EPOCHS_ABOVE:
            self.found("rebuilt-epoch", f"{plan.epoch} after controller epoch {root.epoch}")
        damaged = objects[cluster_key()].etag if self._is_damaged else None
        rng = SeededRng(f"{fleet.seed}/rebuild")
        await write_rebuilt(store, rng, root.content.cluster_id, plan.image(), plan.epoch, damaged)
        fleet.anew()
        self._god.anew()

    async def _plan(self, controller_epoch: int) -> RebuildPlan:
        keys = [key for key in self._objects() if key.startswith(TOPICS_PREFIX)]
        epochs = epochs_in(keys)
        roots = (await manifests(self._fleet)).values()
        found = [Found(of.topic_id, of.partition, of, epochs.get((of.topic_id, of.partition), 0)) for of in roots]
        pages = [key for text in self._objects() if text.startswith(METADATA_PREFIX) and (key := parse_key(text))]
        epoch = max((controller_epoch, *(key.epoch for key in pages if isinstance(key, MetadataKey))))
        return rebuild_plan(found, {}, epoch)

    def _all_came(self) -> bool:
        """A machine that is merely off may hold more than the others: the operator goes on when all are there."""
        image = self._newest_there()
        return image is not None and all(
            seat.serving and seat.node_id in image.nodes and image.nodes[seat.node_id].active
            for seat in self._fleet.seats
        )

    def _nobody_began(self) -> None:
        """Nobody leads before a person said that all who hold something are there."""
        image = self._newest_there()
        for topic in () if image is None else image.topics.values():
            for index, row in enumerate(topic.rows):
                if row.leader != NO_LEADER:
                    self.found("began-unasked", f"{topic.name}-{index}: {row}")

    def _nothing_went(self) -> None:
        """Neither from the bucket nor from a place on a disk, before a person said that all is there."""
        if gone := sorted(self._held - self._objects().keys()):
            self.found("deleted-while-rebuilt", f"{len(gone)} objects, {gone[:3]} among them")
        for seat in self._fleet.seats:
            directory = f"/data/{seat.directory}"
            if aside := [name for name in seat.machine.disk.list_dir(directory) if is_stray_dir(name)]:
                self.found("set-aside-while-rebuilt", f"node {seat.node_id}: {aside}")

    async def _say_done(self) -> None:
        """`cluster rebuild --done`, until the mark is gone."""
        deadline_s = self._stage.now() + DONE_S
        while self._stage.now() < deadline_s:
            image = self._newest_there()
            if image is not None and not is_rebuilt(image):
                self._nemesis.hits["rebuilt and done"] += 1
                return
            request = UnregisterBrokerRequest(broker_id=UNKNOWN_REPLICA, is_given_up=True)
            try:
                answer = await self._operator.call(ApiKey.UNREGISTER_BROKER, request, 12.0)
                self._nemesis.note(f"done: {answer.error_code} {answer.error_message}")
            except NO_ANSWER:
                pass
            await asyncio.sleep(0.5)
        self.found("not-done", f"{DONE_S:.0f} s after it was restored the cluster is still a rebuilt one")
