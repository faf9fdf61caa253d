"""Machines, a bucket, and the brokers that run on them.

Owns what survives a process: machines, the bucket, the network. Always true: a broker is started by `broker.app.run`
with the seams of its process; `kill` runs none of its code any more; a power cut kills every process of its machine at
once; a directory bucket lies on the disk of the only machine, so that the cut hits the bucket too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any
from uuid import UUID

from broker import app
from broker.app import Broker
from broker.config.places import Launch
from broker.config.resolve import resolve
from broker.following.image_feed import ImageFeed
from coldstore.encryption.encrypted_store import EncryptedStore
from coldstore.manifest.manifest_format import MANIFEST_FORMAT
from coldstore.object_store import ObjectStore
from coldstore.roots.root_format import RootCodec
from coldstore.stores.directory import DirectoryStore
from hotstore.cleaning.engine import CleanerEngine
from seams.files.disk import Lock
from seams.files.syncs import WorkerSyncs
from seams.loop.beats import BEAT_S, Beats
from seams.rng import SeededRng
from seams.world import World
from tests.sim.checks.history import Place
from tests.sim.checks.read_roots import ReadRoots
from tests.sim.world.bucket import RemoteBucket, Rights, WayToStore
from tests.sim.world.cleaning import SimEngine
from tests.sim.world.clock import SimClock
from tests.sim.world.encryption import RING, seen_by_checker
from tests.sim.world.late import LaneLate, Late
from tests.sim.world.loop import PROCESS, Process, SimLoop, close_coroutine
from tests.sim.world.machines import Machine
from tests.sim.world.net import SimNet
from tests.sim.world.workers import SimWorkers
from tests.support.disk.crash_disk import CAPACITY_BYTES, CrashDisk
from tests.support.disk.late import must_not_come
from tests.support.disk.occupants import watch_calls
from tests.support.store.faulty_store import FaultyStore
from tests.support.store.memory_store import MemoryStore

HOST = "127.0.0.1"
BUCKET_DIR = "/bucket"


class ProcessDisk:
    """The machine's disk as one process holds it: its locks go with it."""

    def __init__(self, disk: CrashDisk) -> None:
        self.inner = disk
        self._locks: list[Lock] = []

    def lock(self, path: str, *, wait_s: float = 0.0) -> Lock:
        lock = self.inner.lock(path, wait_s=wait_s)
        self._locks.append(lock)
        return lock

    def release_all(self) -> None:
        for lock in self._locks:
            lock.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Observed(Broker):
    """The broker itself, remembered by its process so that invariants can look at it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        process = PROCESS.get()
        assert isinstance(process, Node)
        process.broker = self


class Node(Process):
    """One broker process. `exit_code` once it ended by itself."""

    def __init__(self, name: str, address: tuple[str, int], machine: Machine) -> None:
        super().__init__(name, machine.name)
        self.address = address
        self.machine = machine
        self.disk = ProcessDisk(machine.disk)
        self.clock: SimClock = machine.clock()
        self.workers: SimWorkers
        self.stop: asyncio.Event
        self.main: asyncio.Task[int]
        self.broker: Observed | None = None
        self.feed: ImageFeed | None = None  # in worlds of several brokers
        self.led: Callable[[Place, Any], None] | None = None  # told of each leadership there, as it begins
        self.obeys: Callable[[Any], None] | None = None  # and of each image of the cluster that it obeys
        self.logs_gone: Counter[Place] = Counter()  # how often a log of its was removed, or moved aside
        self.ready_at: float | None = None
        self.died_s = float("inf")
        self.had_no_room = False  # when it ended, its disk was full
        self.store: ObjectStore

    @property
    def alive(self) -> bool:
        return not self.dead and not self.main.done()

    @property
    def serving(self) -> bool:
        return self.alive and not self.paused and self.ready_at is not None


class Cluster:
    """The world of one run; everything random in it comes from `seed`."""

    def __init__(
        self,
        loop: SimLoop,
        seed: str,
        *,
        directory_bucket: bool,
        settings: Sequence[str] = (),
        machines: Sequence[str] = ("",),
        late: Late | None = None,
        encrypts: bool = False,
    ) -> None:
        assert len(machines) == 1 or not directory_bucket, "a directory bucket lies on one machine"
        self.loop = loop
        self.seed = seed
        self.settings = list(settings)
        self.directory_bucket = directory_bucket
        self.encrypts = encrypts
        self.machines = [Machine(loop, name) for name in machines]
        self.net = SimNet(loop, SeededRng(f"{seed}/net"))
        self.late = self.net.late = late
        self.outside = copy_context()
        self.store = FaultyStore(MemoryStore(), SeededRng(f"{seed}/store"))
        self.rights: defaultdict[str, Rights] = defaultdict(Rights)  # by place
        self.store_hits: Counter[Any] = Counter()
        self.manifests = ReadRoots(RootCodec(MANIFEST_FORMAT))
        self.over = False
        self.losses = 0  # events after which the promises allow some loss
        self.started = 0
        self.map_bytes = 0  # of a cleaner's map, at most; 0: as configured
        self.nodes: list[Node] = []
        self.graveyard: list[Any] = []
        self.exits: list[tuple[float, str, int]] = []
        self.failures: list[str] = []  # what no promise allows: a broker that ended by an exception nobody expected

    # --- processes ---
    def start(
        self,
        directory: str,
        port: int = 9092,
        *extra: str,
        machine: Machine | None = None,
        launch: Launch = Launch(),  # noqa: B008 - immutable
        way: Callable[[ObjectStore], ObjectStore] = lambda store: store,
    ) -> Node:
        """A broker on `/data/<directory>` of a machine (the first one), as `serve` starts one. `way`: what it has
        instead of its way to the bucket."""
        self.started += 1
        name = f"{directory}#{self.started}"
        node = Node(name, (HOST, port), machine or self.machines[0])
        self.net.places[node.address] = node.place
        self.net.power_on(node.place)
        rng = SeededRng(f"{self.seed}/{name}")
        node.workers = SimWorkers(self.loop, SeededRng(f"{self.seed}/{name}/workers"), self._lanes())
        flags = {
            "log.dirs": f"/data/{directory}",
            "thermocline.bucket": f"file://{BUCKET_DIR}",
            "listeners": f"PLAINTEXT://{HOST}:{port}",
            "thermocline.http": "",
        }
        config = resolve(flags, [*self.settings, *extra], {}, None, launch)
        beats = Beats(SeededRng(f"{self.seed}/{name}/beats").uniform(0.0, BEAT_S))
        syncs = WorkerSyncs(node.workers)
        watch_calls(node.machine.disk)  # what a process holds is a view of it
        world = World(
            node.disk,
            node.workers,
            syncs,
            node.clock,
            rng,
            self.net,
            beats=beats,
            late_effect=must_not_come,  # type: ignore[arg-type]
        )
        node.main = node.context.run(self._launch, node, config, world, way)
        self.nodes.append(node)
        return node

    def _lanes(self) -> LaneLate | None:
        return None if self.late is None else LaneLate(self.late)

    def _launch(
        self, node: Node, config: Any, world: World, way_of: Callable[[ObjectStore], ObjectStore]
    ) -> asyncio.Task[int]:
        node.stop = asyncio.Event()

        def announce(_: str) -> None:
            node.ready_at = self.loop.time()

        def open_bucket(_: Any, world: World) -> ObjectStore:
            if self.directory_bucket:
                directory = DirectoryStore(world.disk, world.workers, BUCKET_DIR, world.rng, clock=world.clock)
                faulty = FaultyStore(directory, SeededRng(f"{self.seed}/{node.name}/store"), self.store.plan)
                faulty.hits = self.store.hits
                node.store = faulty
            else:
                way = WayToStore(self.net.links, node.place, SeededRng(f"{self.seed}/{node.name}/way"))
                node.store = RemoteBucket(self.loop, self.store, self.outside, way, self.rights[node.place], self.late)
            if self.encrypts:
                return way_of(EncryptedStore(node.store, RING, world.workers, world.rng))
            return way_of(node.store)

        def make_engine() -> CleanerEngine:
            return SimEngine(SeededRng(f"{self.seed}/{node.name}/cleaner"), self.map_bytes)

        async def main() -> int:
            try:
                code = await app.run(
                    config, world, node.stop, announce, open_bucket=open_bucket, make_engine=make_engine
                )
            except Exception as failure:
                if node.dead or self.over:
                    raise
                self.failures.append(f"{node.name} ended by {failure!r}")
                logging.getLogger("tests.sim").exception("%s ended", node.name)
                raise
            while not node.workers.is_idle and self.late is not None:
                await asyncio.sleep(0.05)  # a process ends when its threads have
            node.had_no_room = node.machine.disk.capacity_bytes < CAPACITY_BYTES
            self.exits.append((self.loop.time(), node.name, int(code)))
            return int(code)

        task = self.loop.create_task(main(), name=node.name)
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        task.add_done_callback(lambda _: self._gone(node))
        return task

    def _gone(self, node: Node) -> None:
        if not node.dead:
            node.dead, node.died_s = True, self.loop.time()
            self.net.drop_process(node)
            node.disk.release_all()

    def kill(self, node: Node) -> None:
        """SIGKILL: nothing of it runs again; its page cache stays."""
        node.dead, node.died_s = True, min(node.died_s, self.loop.time())
        self.graveyard.extend(node.tasks)
        for task in node.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.net.drop_process(node)
        node.disk.release_all()

    def pause(self, node: Node) -> None:
        node.paused = True

    def resume(self, node: Node) -> None:
        if not node.dead:
            self.loop.resume(node)

    def power_cut(self, keep: float, rng: SeededRng, machine: Machine | None = None) -> None:
        """Every process of a machine (the first one) dies; of what was not synced each piece survives with probability
        `keep`. One of several machines says nothing to anybody until something is started on it."""
        machine = machine or self.machines[0]
        if machine.name:
            self.net.dark.add(machine.name)
        self.graveyard.append(machine.power_cut(keep, rng))
        for node in self.nodes:
            if not node.dead and node.machine is machine:
                self.kill(node)

    def node_at(self, address: tuple[str, int]) -> str:
        """Who answers at an address."""
        node = self._node_at(address)
        return "" if node is None else node.name

    def _node_at(self, address: tuple[str, int]) -> Node | None:
        """The last one started there that was not refused."""
        found = (node for node in reversed(self.nodes) if node.address == address and node.ready_at is not None)
        return next(found, None)

    def copy_at(self, address: tuple[str, int], place: Place) -> str:
        """Whose log of a partition is read at an address: that of the process there, or the next one it made after its
        first went, which begins again."""
        node = self._node_at(address)
        if node is None:
            return ""
        gone = node.logs_gone[place]
        return f"{node.name}, log {gone + 1}" if gone else node.name

    def topic_id_led_at(self, address: tuple[str, int], place: Place) -> UUID | None:
        """Of the log that whoever is at an address leads under this name."""
        node = self._node_at(address)
        replicas = None if node is None or node.broker is None else node.broker.components.replicas
        led = None if replicas is None else replicas._registry.partitions.get(place)
        return None if led is None else led.topic_id

    def said_s(self, name: str, came_s: float) -> float:
        """When a process said at the latest what came then: a slow link carries on what the dead sent."""
        return min([came_s, *(node.died_s for node in self.nodes if node.name == name)])

    def stores(self) -> list[FaultyStore]:
        """Where faults are switched: the shared store, or each process's own way to the directory bucket."""
        if not self.directory_bucket:
            return [self.store]
        return [
            node.store for node in self.nodes if not node.dead and isinstance(getattr(node, "store", None), FaultyStore)
        ]

    def plain_store(self) -> ObjectStore:
        """The bucket without faults and encryption, for the checker."""
        if not self.directory_bucket:
            found = self.store._inner
        else:
            workers = SimWorkers(self.loop, SeededRng("checker"))
            found = DirectoryStore(self.machines[0].disk, workers, BUCKET_DIR, SeededRng("checker"))  # type: ignore[arg-type]
        return seen_by_checker(found) if self.encrypts else found

    def bury(self) -> None:
        """Let go of dead processes' tasks; their `finally` blocks run now, in a world that is over."""
        self.over = self.loop.over = True
        for node in self.nodes:
            self.graveyard.extend(node.tasks)
        for buried in self.graveyard:
            if isinstance(buried, asyncio.Task):
                buried._log_destroy_pending = False  # type: ignore[attr-defined]
                close_coroutine(buried.get_coro())
        self.graveyard.clear()
