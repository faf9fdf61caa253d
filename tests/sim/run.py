"""One simulated run: a seed in, an outcome out.

Owns the draw of a run's shape (bucket, flush mode, fault kinds, load) from its seed, and its three acts: faults, heal
and reach the end (G13), audit. Always true: same seed, same digest (for one commit and Python minor version).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from unittest import mock

from broker import app
from coldstore.stores.faulty import Fault
from hotstore import ahead
from logformat.errors import Corrupt
from seams.rng import SeededRng
from tests.sim import acts, checker
from tests.sim.actors import Admin, GroupMember, Producer, Reader, Stage
from tests.sim.cluster import Cluster, Observed
from tests.sim.history import History, Place
from tests.sim.invariants import watch_partitions, watch_roots
from tests.sim.loop import Deadlock, Livelock, SimLoop
from tests.sim.nemesis import LATER, LEASE_S, Kind, Nemesis

WRITES_RESUME_S = 40.0
TIERING_DRAINS_S = 60.0
ORPHANS_GO_S = 12.0
FAULTY = tuple(fault for fault in Fault if fault not in (Fault.OUTAGE, Fault.DENIED, Fault.READ_ONLY))

AHEAD_UNIT_BYTES = 512  # segments are small here, and their logs take room ahead of them as large ones do
BROKER_SETTINGS = (
    f"thermocline.lease.ms={int(LEASE_S * 1000)}",
    "thermocline.lease.interval.ms=800",
    "thermocline.gc.grace.ms=1500",
    "thermocline.seal.ms=4000",
    "thermocline.store.timeout.ms=2000",
    "thermocline.store.upload.timeout.ms=5000",
    "thermocline.offsets.snapshot.interval.ms=2000",
    "thermocline.prefetch.bytes=20000",
    "log.retention.check.interval.ms=700",
    "remote.log.manager.task.interval.ms=700",
    "remote.log.manager.task.retry.backoff.ms=100",
    "remote.log.manager.task.retry.backoff.max.ms=1500",
    "log.flush.offset.checkpoint.interval.ms=1500",
    "log.flush.start.offset.checkpoint.interval.ms=1500",
    "offsets.topic.num.partitions=2",
    "offsets.topic.segment.bytes=1048576",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a seed draws."""

    seed: int
    duration_s: float
    directory_bucket: bool
    sync: bool
    kinds: tuple[Kind, ...]
    faults: tuple[Fault, ...]
    settings: tuple[str, ...]
    producers: int
    pace_s: float
    segment_bytes: int


@dataclass
class Outcome:
    """What came of it. `findings` is empty when every promise was kept."""

    shape: object
    digest: str
    simulated_s: float
    callbacks: int
    acked: int
    polls: int
    checked: int  # invariants looked at
    hits: Counter[str] = field(default_factory=Counter)
    errors: dict[str, int] = field(default_factory=dict)
    findings: list[checker.Finding] = field(default_factory=list)


def shape_of(seed: int, duration_s: float) -> Shape:
    """The run that `seed` stands for."""
    rng = SeededRng(f"shape/{seed}")
    half = [
        kind for kind in Kind if kind not in LATER and (rng.randrange(2) or (kind is Kind.TOXIC and rng.randrange(2)))
    ]
    later = SeededRng(f"shape/{seed}/later")
    half += [kind for kind in LATER if later.randrange(3) == 0]
    kinds = half if rng.randrange(8) else []  # some runs without any fault: healthy clusters have lost data too
    faults = tuple(fault for fault in FAULTY if rng.randrange(2))
    sync = rng.randrange(4) != 0
    settings = (
        f"thermocline.flush={'sync' if sync else 'os'}",
        f"thermocline.reservation.offsets={(40, 300, 1 << 20)[rng.randrange(3)]}",
        f"thermocline.cache.bytes={(0, 20_000, 1 << 30)[rng.randrange(3)]}",
        f"thermocline.seal.on.shutdown={('true', 'false')[rng.randrange(2)]}",
        f"thermocline.validate.records={('true', 'false')[rng.randrange(2)]}",
    )
    return Shape(
        seed,
        duration_s,
        rng.randrange(2) == 0,
        sync,
        tuple(kinds),
        faults,
        settings,
        2 + rng.randrange(3),
        (0.06, 0.2, 0.6)[rng.randrange(3)],
        (2500, 6000, 20_000)[rng.randrange(3)],
    )


def simulate(seed: int, duration_s: float = 12.0) -> Outcome:
    """Run a seed to its end. Deterministic; nothing of it touches the real world."""
    shape = shape_of(seed, duration_s)

    def make(loop: SimLoop) -> _Run:
        settings = [*BROKER_SETTINGS, *shape.settings]
        return _Run(shape, Cluster(loop, f"run/{seed}", directory_bucket=shape.directory_bucket, settings=settings))

    return played(make)


class Run(Protocol):
    """The acts of one run, over its cluster."""

    cluster: Cluster

    async def play(self) -> Outcome: ...
    def outcome(self, *more: checker.Finding) -> Outcome: ...


def played(make: Callable[[SimLoop], Run]) -> Outcome:
    """Play a run to its end on a loop of its own; nothing of it is left."""
    loop = SimLoop()
    gc_was_on = gc.isenabled()
    gc.disable()  # a collection would run finalisers of dead processes at a moment that the seed does not decide
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None  # dead processes' coroutines, thrown away at the end
    run: Run | None = None
    try:
        asyncio.set_event_loop(loop)
        with mock.patch.object(app, "Broker", Observed), mock.patch.object(ahead, "UNIT_BYTES", AHEAD_UNIT_BYTES):
            run = make(loop)
            try:
                return loop.run_until_complete(run.play())
            except (Deadlock, Livelock) as stuck:
                return run.outcome(checker.Finding("stuck", str(stuck)))
            except Corrupt as broken:  # what lies in the bucket, met by those who look behind the brokers' backs
                return run.outcome(checker.Finding("unreadable", str(broken)))
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # coroutines of the dead that never ran
            if run is not None:
                run.cluster.bury()
            asyncio.set_event_loop(None)
            with contextlib.suppress(RuntimeError):
                loop.close()
            del run, loop
            gc.collect()
        sys.unraisablehook = hook
        if gc_was_on:
            gc.enable()


class _Run:
    """The acts of one run."""

    def __init__(self, shape: Shape, cluster: Cluster) -> None:
        self._shape = shape
        self.cluster = cluster
        self._history = History()
        node = cluster.start("a")
        self._stage = Stage(cluster, self._history, lambda: self._nemesis.node, asyncio.Event(), [], {})
        self._nemesis = Nemesis(self._stage, node, list(shape.kinds), list(shape.faults), sync=shape.sync)
        self._findings: list[checker.Finding] = []
        self._places: list[Place] = [("log", 0), ("log", 1), ("kept", 0)]

    def _found(self, kind: str, detail: str) -> None:
        self._findings.append(checker.Finding(kind, detail))

    async def play(self) -> Outcome:
        stage, shape = self._stage, self._shape
        if not await self._nemesis.ready(20.0):
            self._found("not-ready", "the first broker did not come up on an empty disk and bucket")
            return self.outcome()
        await acts.create_topics(stage, self._found, {"log": 2, "kept": 1}, shape.segment_bytes)
        producers = [
            Producer(stage, f"p{i}", self._places[i % len(self._places)], shape.pace_s) for i in range(shape.producers)
        ]
        readers = [
            Reader(stage, "again0", ("log", 0), again=True),
            Reader(stage, "again1", ("log", 1), again=True),
            Reader(stage, "tail0", ("log", 0), again=False),
            Reader(stage, "tail2", ("kept", 0), again=False),
        ]
        member = GroupMember(stage, "group0", ("log", 0))
        writing = [asyncio.create_task(producer.run()) for producer in producers]
        others = [asyncio.create_task(actor.run()) for actor in (*readers, member, Admin(stage, self._places))]
        others.append(asyncio.create_task(watch_partitions(self.cluster, stage)))
        others.append(asyncio.create_task(watch_roots(self.cluster, stage)))
        keeper = asyncio.create_task(self._nemesis.keep_up())
        breaking = asyncio.create_task(self._nemesis.run())
        await asyncio.sleep(shape.duration_s)
        stage.stopping.set()
        await breaking
        await self._nemesis.heal()
        _, late = await asyncio.wait(writing, timeout=WRITES_RESUME_S)
        if late:
            self._found("writes-stuck", f"{len(late)} producers unanswered {WRITES_RESUME_S} s after the last fault")
        for task in (*late, *others):
            task.cancel()
        for task in await asyncio.gather(*writing, *others, return_exceptions=True):
            if isinstance(task, Exception):
                raise task
        await self._read_all()
        await acts.read_group(member, self._found)
        await self._audit()
        await self._once_more()
        keeper.cancel()
        return self.outcome()

    async def _read_all(self) -> None:
        if not await self._nemesis.ready(30.0):
            self._found("not-ready", "no broker serves 30 s after the last fault")
            return
        await acts.read_all(self._stage, self._found, self._places)

    async def _audit(self) -> None:
        """Quiescence: the backlog drained, the books of every manifest balance, nothing but orphans of dead epochs."""
        cluster, node = self.cluster, self._nemesis.node
        deadline_s = cluster.loop.time() + TIERING_DRAINS_S
        while (lagging := _lagging(node.broker)) and cluster.loop.time() < deadline_s:
            await asyncio.sleep(1.0)
        if lagging:
            self._found("tiering-stuck", f"not drained {TIERING_DRAINS_S} s after the last fault: {lagging}")
        await asyncio.sleep(10.0)  # late writes land, graces pass
        await acts.audit_bucket(cluster, self._found)

    async def _once_more(self) -> None:
        """A clean stop and a start: the same records again, and no object left that a claim should have collected."""
        await self._nemesis.restart()
        if not await self._nemesis.ready(30.0):
            self._found("not-ready", "no broker serves 30 s after a clean restart")
            return
        await acts.read_again(self._stage, self._found, self._places)
        await asyncio.sleep(ORPHANS_GO_S)
        cluster, node = self.cluster, self._nemesis.node
        if node.broker is None or node.broker.rooms.replicas is None:
            return
        topics = node.broker.rooms.replicas._topics
        inspector = acts.inspector_of(cluster)
        for topic_id, partition in await inspector.partitions():
            view = await inspector.view(topic_id, partition)
            topic = topics.get(str(topic_id))
            row = None if topic is None or partition >= topic.partitions else topic.rows[partition]
            if view is not None and row is not None and view.manifest.leader_epoch < row.leader_epoch:
                continue  # nothing to copy, so not claimed: its orphans wait for the next claim (G7)
            plan = await inspector.plan_gc(topic_id, partition)
            if plan.deletable:
                self._found("orphan-leak", f"{topic_id}/{partition}: {[info.key for info in plan.deletable]}")

    def outcome(self, *more: checker.Finding) -> Outcome:
        """What came of it so far."""
        self._findings += more
        return concluded(self._shape, self._stage, self._nemesis.hits, self._findings)


def concluded(
    shape: object,
    stage: Stage,
    hits: Mapping[str, int],
    findings: Sequence[checker.Finding],
    *,
    several: bool = False,
) -> Outcome:
    """What came of a run: `findings` of its acts, all that was not expected, and what the history says."""
    cluster, history = stage.cluster, stage.history
    found = [*findings, *(checker.Finding("unexpected", text) for text in (*stage.unexpected, *cluster.failures))]
    found += checker.check(history.events, retained=["kept"], several=several)
    counted = Counter(hits)
    counted.update({f"bucket {fault.value}": count for fault, count in cluster.store.hits.items()})
    counted.update({f"net {name}": count for name, count in cluster.net.hits.items()})
    for machine in cluster.machines:
        counted.update({f"disk {name}": n for name, n in machine.disk.hits.items() if name.startswith("fault:")})
    return Outcome(
        shape,
        history.digest(),
        cluster.loop.time(),
        cluster.loop.callbacks,
        stage.acked,
        sum(1 for event in history.events if type(event).__name__ == "Poll"),
        stage.checked,
        counted,
        stage.errors,
        list(dict.fromkeys(found)),
    )


def _lagging(broker: Observed | None) -> list[str]:
    """Partitions with sealed, uncopied bytes."""
    if broker is None or broker.rooms.replicas is None:
        return ["no broker"]
    return [
        f"{partition.topic}-{partition.index}: {partition.tier.status()}"
        for partition in broker.rooms.replicas._registry
        if partition.tier.enabled and partition.tier.status().copy_lag_bytes > 0
    ]
