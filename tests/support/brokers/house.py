"""Brokers 1, 2, 3, … of one bucket in virtual time, each with a disk, a way to the bucket and links of its own.

Owns what befalls them: what cuts one off, kills or stops one, fills its disk. `log` is a topic that is on all of them.
Always true: they are whole brokers (`broker_kit`); broker 2 is the one whose image tests look at, unless it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from broker.membership.session import Session
from broker.metadata.records import NO_LEADER, Row
from seams.rng import SeededRng
from tests.sim.world.links import both_ways
from tests.sim.world.loop import Process, SimLoop
from tests.support.brokers.broker_kit import Life, Place
from tests.support.disk.crash_disk import CrashDisk
from tests.support.store.faulty_store import FaultyStore
from tests.support.waiting import until

T = TypeVar("T")

DISK_BYTES = 64 << 20
QUICK_LEASE = ("thermocline.lease.ms=-1", "thermocline.lease.interval.ms=-1")
"""As a broker on a directory bucket has it, without any config."""


class House:
    """Make it inside a coroutine test."""

    def __init__(self, *settings: str, own: Mapping[int, tuple[str, ...]] | None = None) -> None:
        self.place = Place(*settings)
        self.own = own or {}
        """Settings of one broker, by node id."""
        self.lives: dict[int, Life] = {}
        self.processes: dict[int, Process] = {}
        self.disks: dict[int, CrashDisk] = {}
        self.stores: dict[int, FaultyStore] = {}
        self.watched = 2

    async def start(self, node_id: int) -> None:
        """From its disk as it is."""
        place = self.place
        place.disk = self.disks.setdefault(node_id, CrashDisk(capacity_bytes=DISK_BYTES))
        if node_id not in self.stores:
            self.stores[node_id] = FaultyStore(place.memory, SeededRng(f"store/{node_id}"))
        place.store = self.stores[node_id]
        process = self.processes[node_id] = Process(f"{node_id}", str(node_id))

        def make() -> Life:
            return place.make(f"node.id={node_id}", *self.own.get(node_id, ()), directory=str(node_id))

        life = process.context.run(make)
        await self.within(node_id, life.start())
        self.lives[node_id] = life

    async def within(self, node_id: int, work: Coroutine[Any, Any, T]) -> T:
        """Done by that process."""
        return await asyncio.get_running_loop().create_task(work, context=self.processes[node_id].context)

    # ── what befalls them ────────────────────────────────────────────────────────────────────────────────────────
    async def kill(self, *node_ids: int) -> None:
        """SIGKILL, of all at once: what was written stays in the page cache, its kernel says farewell."""
        for node_id in node_ids:
            self.place.net.drop_process(self.processes[node_id])
        await asyncio.gather(*[self.within(node_id, self.lives.pop(node_id).crash()) for node_id in node_ids])

    def stop(self, *node_ids: int) -> None:
        """SIGSTOP."""
        for node_id in node_ids:
            self.processes[node_id].paused = True

    def go_on(self, *node_ids: int) -> None:
        """SIGCONT."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        for node_id in node_ids:
            loop.resume(self.processes[node_id])

    def cut_off(self, node_id: int) -> None:
        """From the other brokers; nobody is told. The bucket is reached."""
        others = [(str(node_id), str(other)) for other in self.processes if other != node_id]
        self.place.net.links.cut(both_ways(others))

    def heal(self) -> None:
        self.place.net.links.heal()

    # ── what is seen ─────────────────────────────────────────────────────────────────────────────────────────────
    def session(self, node_id: int) -> Session:
        return self.lives[node_id].session

    @property
    def controllers(self) -> list[int]:
        """Who believes to be one."""
        return [node_id for node_id in self.lives if self.session(node_id).is_controller]

    @property
    def sessions(self) -> dict[int, int]:
        """Nodes in session, as the watched one has it, with their broker epochs."""
        nodes = self.lives[self.watched].context.metadata.image.nodes
        return {node_id: node.broker_epoch for node_id, node in nodes.items() if node.active}

    def row(self, index: int = 0) -> Row:
        return self.lives[self.watched].context.metadata.topic("log").rows[index]

    def serves(self, index: int = 0) -> bool:
        """Whether it is led by a broker that lives and has it open."""
        leader = self.row(index).leader
        return leader in self.lives and ("log", index) in self.lives[leader].context.registry.partitions

    async def led_by(self, node_id: int, most_s: float, index: int = 0) -> float:
        """Until it is, and serves; the seconds it took."""
        return await until(
            lambda: self.row(index).leader == node_id and (node_id == NO_LEADER or self.serves(index)), most_s
        )


@asynccontextmanager
async def house(
    partitions: int = 1, *settings: str, brokers: int = 3, own: Mapping[int, tuple[str, ...]] | None = None
) -> AsyncIterator[House]:
    """Serving, with the topic `log` at replication factor 3 and a minimum of 2; broker 1 is the controller."""
    it = House(*settings, own=own)
    try:
        for node_id in range(1, brokers + 1):
            await it.start(node_id)
        await it.lives[1].context.controller.create_topic(
            "log", partitions, {"min.insync.replicas": "2"}, replication_factor=3
        )
        await until(lambda: all(life.context.metadata.topic_named("log") for life in it.lives.values()), 10)
        await until(lambda: all(it.serves(index) for index in range(partitions)), 10)
        yield it
    finally:
        for node_id in it.lives:
            if it.processes[node_id].paused:
                it.go_on(node_id)
        await it.kill(*it.lives)
