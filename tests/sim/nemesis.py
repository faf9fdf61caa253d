"""What breaks things, seeded: processes, power, disks, bucket, network, clocks.

Always true: each run draws a random half of the fault kinds (swarm testing); every few seconds a random subset of them
is switched on, a quarter of the time none; a fault is counted when it took effect, by whoever has it; `heal` takes
everything back. Losses that the promises allow are written into the history before anybody can see them.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from coldstore.keys import RootKey, parse_key
from coldstore.manifest.manifest import Manifest
from coldstore.object_store import ObjectMissing
from coldstore.stores.operations import Operation
from logformat.records import Record, encode_batch
from seams.rng import SeededRng
from tests.sim.actors import Stage
from tests.sim.checks.history import CALM, Epoch, Loss, Note, Outcome, Place, Send
from tests.sim.client import Connection, produce_request
from tests.sim.world.clock import EPOCH_MS
from tests.sim.world.cluster import Cluster, Node
from tests.support.disk import crash_disk
from tests.support.disk.crash_disk import CAPACITY_BYTES
from tests.support.store.faulty_store import FAULTS_OF, WRITES, Fault, FaultPlan

LEASE_S = 3.0


class Kind(Enum):
    """Fault kinds the nemesis draws from; those of the bucket have their own names in
    `tests.support.store.faulty_store`."""

    KILL = "kill -9"
    RESTART = "clean restart"
    POWER_CUT = "power cut"
    PAUSE = "pause within the lease"
    TAKE_OVER = "pause beyond the lease, take-over"
    DISK_LOSS = "disk loss"
    OUTAGE = "bucket outage"
    TOXIC = "bucket toxics"
    FULL = "disk full"
    FSYNC = "fsync EIO"
    SLOW = "slow fsync"
    CLOCK = "wall clock jump"
    CUT = "connection cut"
    DENIED = "credentials refused"
    READ_ONLY = "bucket read-only"
    CRASH_LOOP = "crash loop"
    RIVAL = "a second broker beside it"


LATER = (Kind.DENIED, Kind.READ_ONLY, Kind.CRASH_LOOP, Kind.RIVAL)  # drawn apart: the others' draws stay as they were
_OF_PROCESSES = (
    *(Kind.KILL, Kind.RESTART, Kind.POWER_CUT, Kind.PAUSE, Kind.TAKE_OVER, Kind.DISK_LOSS, Kind.CUT),
    *(Kind.CRASH_LOOP, Kind.RIVAL),
)
SELDOM = (Operation.DELETE, Operation.LIST, Fault.FLIPPED)  # a run makes few of these, or few that can be struck
HIGH, LOW = (0.2, 0.8), (0.02, 0.2)
KEEPS = (0.0, 0.1, 0.5, 0.9, 1.0)


@dataclass
class _DataFault(crash_disk.Fault):
    """A fault of the data directory only: the bucket's directory is another disk."""

    def strikes(self, operation: str, path: str) -> bool:
        return path.startswith("/data/") and super().strikes(operation, path)


class Nemesis:
    """Breaks and mends one cluster. `node` is the broker clients are told of."""

    def __init__(self, stage: Stage, node: Node, kinds: list[Kind], faults: list[Fault], *, sync: bool) -> None:
        self.stage = stage
        self.cluster: Cluster = stage.cluster
        self.node = node
        self.directory = "a"
        self.hits: Counter[str] = Counter()
        self._kinds = kinds
        self._faults = faults
        self._sync = sync
        self._rng: SeededRng = stage.rng("nemesis")
        self._directories = 1
        self._busy = asyncio.Lock()
        self.down_on_purpose = False

    def note(self, text: str) -> None:
        self.stage.history.add(Note(self.stage.now(), text))

    async def run(self) -> None:
        """Until told to stop."""
        while not self.stage.stopping.is_set():
            await asyncio.sleep(self._rng.uniform(0.4, 2.0))
            if self.stage.stopping.is_set():
                return
            async with self._busy:
                self._calm()
                if self._rng.randrange(4) == 0:
                    continue
                # What lasts comes first, so that processes die and start among it.
                chosen = sorted(
                    (kind for kind in self._kinds if self._rng.randrange(5) < (4 if kind is Kind.TOXIC else 2)),
                    key=lambda kind: kind in _OF_PROCESSES,
                )
                for kind in chosen:
                    self.note(kind.value)
                    await self._do(kind)

    async def keep_up(self) -> None:
        """The supervisor of every service: a broker that ended by itself is started again."""
        while True:
            await asyncio.sleep(0.25)
            async with self._busy:
                if self.node.dead:
                    self._judge_exit()
                    await self._start_again()

    def _judge_exit(self) -> None:
        """Exit 3 is for who was replaced: one that served, and whose place nobody took, gave it up for nothing."""
        for _, name, code in self.cluster.exits[-1:]:
            if (name, code) == (self.node.name, 3) and self.node.ready_at is not None:
                self.stage.unexpected.append(f"{name} took itself for replaced at {self.stage.now():.3f} s; nobody did")

    async def _start_again(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.05, 0.5))
        self.node = self.cluster.start(self.directory, self.node.address[1])

    async def ready(self, patience_s: float) -> bool:
        """Wait until the current broker serves."""
        deadline_s = self.stage.now() + patience_s
        while self.stage.now() < deadline_s:
            if self.node.serving:
                return True
            await asyncio.sleep(0.05)
        return False

    # --- kinds ---
    async def _do(self, kind: Kind) -> None:
        match kind:
            case Kind.KILL:
                if self._rng.randrange(3) == 0:  # again while it recovers
                    await self._kill()
                    self.node = self.cluster.start(self.directory, self.node.address[1])
                    await asyncio.sleep(self._rng.uniform(0.0, 0.05))
                await self._kill()
                await self._start_again()
            case Kind.RESTART:
                await self._restart()
            case Kind.POWER_CUT:
                await self._power_cut()
            case Kind.PAUSE:
                await self._pause()
            case Kind.TAKE_OVER:
                await self._take_over()
            case Kind.DISK_LOSS:
                await self._lose_disk()
            case Kind.OUTAGE:
                for store in self.cluster.stores():
                    store.down = True
            case Kind.TOXIC:
                self._poison()
            case Kind.FULL:
                used = CAPACITY_BYTES - self.node.machine.disk.space("/").free
                self.node.machine.disk.capacity_bytes = used + self._rng.randrange(4000)
            case Kind.FSYNC:
                fault = _DataFault("sync", errno.EIO, ".log", self._rng.randrange(3), 1)
                self.node.machine.disk.faults.append(fault)
            case Kind.SLOW:
                self.node.workers.slow = True
            case Kind.CLOCK:
                self.node.clock.jump_ms = self._rng.randrange(6_000_000) - 3_000_000  # topics refuse an hour and more
                self.hits[kind.value] += 1
            case Kind.CUT:
                self._cut()
            case Kind.DENIED | Kind.READ_ONLY:
                for store in self.cluster.stores():
                    store.denies = WRITES if kind is Kind.READ_ONLY else tuple(Operation)
            case Kind.CRASH_LOOP:
                await self._crash_loop()
            case Kind.RIVAL:
                await self._rival()

    async def _crash_loop(self) -> None:
        """Started and killed again and again, each time a little later (fault C4)."""
        for number in range(4 + self._rng.randrange(4)):
            await self._kill()
            self.node = self.cluster.start(self.directory, self.node.address[1])
            await asyncio.sleep(0.01 * 2**number * self._rng.uniform(0.5, 1.5))
        self.hits[Kind.CRASH_LOOP.value] += 1

    async def _rival(self) -> None:
        """A broker on an empty directory, beside one that serves: refused, whatever its wall clock does (C31).
        Not where the store may be late: a lease that is not renewed in time is rightly taken over."""
        holder = self.node
        if not holder.serving or any(store.down or store.denies for store in self.cluster.stores()):
            return
        if self.cluster.late is not None:
            return
        self._directories += 1
        rival = self.cluster.start(f"d{self._directories}", 9092 + self._directories)
        deadline_s = self.stage.now() + 4 * LEASE_S
        while rival.alive and rival.ready_at is None and holder.alive and self.stage.now() < deadline_s:
            await asyncio.sleep(0.2)
            rival.clock.jump_ms = self._rng.randrange(6_000_000) - 3_000_000
        if rival.ready_at is not None and holder.alive:
            self.stage.unexpected.append(f"{rival.name} serves beside {holder.name}, which beats")
        if rival.alive:
            self.cluster.kill(rival)
        elif holder.alive and self.cluster.exits and self.cluster.exits[-1][1] == rival.name:
            self.hits[Kind.RIVAL.value] += 1

    async def _kill(self) -> None:
        if self.node.alive:
            self.hits[Kind.KILL.value] += 1
            self.cluster.kill(self.node)

    async def restart(self) -> None:
        """A clean stop and a start, outside of all faults."""
        async with self._busy:
            await self._restart()

    async def _restart(self) -> None:
        node = self.node
        if not node.serving:
            return
        node.stop.set()
        deadline_s = self.stage.now() + 30.0
        while not node.main.done() and not node.dead and self.stage.now() < deadline_s:
            await asyncio.sleep(0.05)
        if not node.main.done() and not node.dead:  # a swap of the cleaner may be what it was killed in meanwhile
            if self.cluster.late is None:
                self.stage.unexpected.append(f"{node.name} did not stop within 30 s of SIGTERM")
            self.cluster.kill(node)
        self.hits[Kind.RESTART.value] += 1
        await self._start_again()

    async def _power_cut(self) -> None:
        keep = KEEPS[self._rng.randrange(len(KEEPS))]
        if not self._sync:
            await self.lose("page cache")
        self.cluster.power_cut(keep, self._rng)
        self.hits[f"{Kind.POWER_CUT.value}, keeps {keep}"] += 1
        await self._start_again()

    async def _pause(self) -> None:
        if not self.node.serving:
            return
        self.cluster.pause(self.node)
        await asyncio.sleep(self._rng.uniform(0.2, LEASE_S * 0.8))
        self.cluster.resume(self.node)
        self.hits[Kind.PAUSE.value] += 1

    async def _lose_disk(self) -> None:
        self.cluster.kill(self.node)
        await self.lose("disk")
        self.node.machine.lose(self.directory)
        self._directories += 1
        self.directory = f"d{self._directories}"
        self.hits[Kind.DISK_LOSS.value] += 1
        await self._start_again()

    async def _take_over(self) -> None:
        """Stop the broker's time, let another one replace it, and ask the first, resumed, to answer."""
        old = self.node
        if not old.serving:
            return
        witness = Connection()
        await self.cluster.net.connect(*old.address, witness, 5.0)
        self.cluster.pause(old)
        held, stopped_s = await self._held(), self.stage.now()
        for store in self.cluster.stores():
            store.down = False
            store.denies = ()
        self._directories += 1
        directory = f"d{self._directories}"
        port = 9092 + self._directories
        new = self.cluster.start(directory, port)
        deadline_s = self.stage.now() + 40.0
        while not new.serving and new.alive and self.stage.now() < deadline_s:
            await asyncio.sleep(0.05)
        if not new.serving:
            self.note(f"{new.name} could not take over")
            # How far it came nobody knows: the old one goes on if the bucket still says so, else `keep_up` starts it.
            self.cluster.kill(new)
            self.cluster.kill(old)
            await self.lose("take-over", held, stopped_s)
            self.node, self.directory = new, directory
            return
        await self.lose("take-over", held, stopped_s)
        self.stage.history.add(Epoch(new.name, old.name, self.stage.now()))
        self.hits[Kind.TAKE_OVER.value] += 1
        self.node, self.directory = new, directory
        old_directory = old.name.split("#")[0]
        if not old.dead:
            self.cluster.resume(old)
            await self._ask_zombie(old, witness)
            again = self.cluster.start(old_directory, old.address[1])
            await self._expect_refusal(again)

    async def _ask_zombie(self, old: Node, witness: Connection) -> None:
        """Requests to a replaced broker, on a connection from before: nothing may come back but a refusal."""
        for i in range(4):
            value = f"zombie.{old.name}.{i}"
            batch = encode_batch([Record(0, EPOCH_MS, None, value.encode())])
            invoked_s = self.stage.now()
            place = ("log", 0)
            try:
                async with asyncio.timeout(0.5):
                    response = await witness.send(ApiKey.PRODUCE, produce_request(*place, batch))
            except (TimeoutError, Exception):  # noqa: BLE001 - no answer is the right answer
                continue
            answer = response.responses[0].partition_responses[0]
            if answer.error_code == ErrorCode.NONE:
                done_s = self.stage.now()
                self.stage.history.add(
                    Send(value, i, place, (value,), invoked_s, done_s, Outcome.OK, answer.base_offset, old.name)
                )
        witness.close()
        deadline_s = self.stage.now() + 4 * LEASE_S
        while old.alive and self.stage.now() < deadline_s:
            await asyncio.sleep(0.1)
        if old.alive:
            # It may wait for a thread, or for the store, that is late.
            if self.cluster.late is None and not any(store.down for store in self.cluster.stores()):
                self.stage.unexpected.append(f"{old.name} was replaced, resumed, and still runs")
            self.cluster.kill(old)

    async def _expect_refusal(self, again: Node) -> None:
        deadline_s = self.stage.now() + 20.0
        while again.alive and again.ready_at is None and self.stage.now() < deadline_s:
            await asyncio.sleep(0.1)
        if again.ready_at is not None:
            self.stage.unexpected.append(f"{again.name} serves from a directory that was replaced")
        if again.alive:
            self.cluster.kill(again)
        elif self.cluster.exits and self.cluster.exits[-1][1] == again.name:
            self.hits[f"replaced directory: exit {self.cluster.exits[-1][2]}"] += 1

    def _poison(self) -> None:
        """A random subset of the run's bucket faults, each at its own rate."""
        rates: dict[tuple[Operation, Fault], float] = {}
        for operation, faults in FAULTS_OF.items():
            for fault in faults:
                if fault in self._faults and self._rng.randrange(2):
                    often = operation in SELDOM or fault in SELDOM
                    rates[operation, fault] = self._rng.uniform(*(HIGH if often else LOW))
        for store in self.cluster.stores():
            store.plan = FaultPlan(rates, (0.001, 0.05), (0.1, 8.0), flips=lambda key: "/segments/" in key)

    def _cut(self) -> None:
        for transport in list(self.cluster.net.open):
            if transport in self.cluster.net.open and self._rng.randrange(2):
                self.hits[Kind.CUT.value] += 1
                self.cluster.net.cut(transport)

    # --- mending ---
    def _calm(self) -> None:
        self.note(CALM)
        for store in self.cluster.stores():
            store.plan = replace(store.plan, rates={}, latency_s=(0.001, 0.02))
            store.down = False
            store.denies = ()
        self.node.machine.disk.heal()
        self.node.machine.disk.capacity_bytes = CAPACITY_BYTES
        self.hits[Kind.SLOW.value] += self.node.workers.slowed
        self.node.workers.slowed = 0
        self.node.workers.slow = False

    async def heal(self) -> None:
        """The end of all faults; a log that a failed fsync took offline needs its broker's restart (C10)."""
        async with self._busy:
            self._calm()
            for node in self.cluster.nodes:
                if node.paused:
                    self.cluster.resume(node)
            if self.node.machine.disk.hits["fault:sync"] and self.node.alive:
                self.cluster.kill(self.node)
                await self._start_again()

    # --- what may be lost ---
    async def lose(self, kind: str, held: dict[Place, int] | None = None, stopped_s: float = -1.0) -> None:
        """Write down what the promises allow to be lost: everything the bucket does not hold (or did not, `held`)."""
        self.cluster.losses += 1
        held = held or await self._held()
        now_s = self.stage.now()  # a broker that still runs went on acknowledging while the roots were read
        for place, end in held.items():
            self.stage.history.add(Loss(place, end, now_s, kind, stopped_s))
        self.stage.history.add(Loss(("*", 0), 0, now_s, kind, stopped_s))

    async def _held(self) -> dict[Place, int]:
        """Where the bucket's part of every partition ends now."""
        found = await manifests(self.cluster)
        return {place: manifest.bucket_end_offset for place, manifest in found.items()}


async def manifests(cluster: Cluster) -> dict[Place, Manifest]:
    """Every partition's root as the bucket has it, read behind everybody's back."""
    store = cluster.plain_store()
    found: dict[Place, Manifest] = {}
    async for info in store.list("topics/"):
        if _is_root(info.key):
            try:
                got = await store.get(info.key)
            except ObjectMissing:
                continue
            content = cluster.manifests.decode(info.key, got).content
            found[content.topic, content.partition] = content
    return found


@lru_cache(1 << 16)
def _is_root(key: str) -> bool:
    return isinstance(parse_key(key), RootKey)
