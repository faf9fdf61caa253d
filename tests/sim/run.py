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
from dataclasses import dataclass, field
from unittest import mock

from broker import app
from broker.error_codes import ErrorCode
from coldstore.bucket_inspection import BucketInspector
from coldstore.stores.faulty import Fault
from hotstore import ahead
from logformat.errors import Corrupt
from seams.rng import SeededRng
from tests.sim import checker
from tests.sim.actors import NO_ANSWER, Admin, GroupMember, Producer, Reader, Stage
from tests.sim.client import ServerError
from tests.sim.cluster import Cluster, Observed
from tests.sim.history import Final, History, Place
from tests.sim.invariants import watch_partitions, watch_roots
from tests.sim.loop import Deadlock, Livelock, SimLoop
from tests.sim.nemesis import LATER, LEASE_S, Kind, Nemesis
from tests.sim.workers import SimWorkers

WRITES_RESUME_S = 40.0
READERS_REACH_END_S = 60.0
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

    shape: Shape
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
    loop = SimLoop()
    gc_was_on = gc.isenabled()
    gc.disable()  # a collection would run finalisers of dead processes at a moment that the seed does not decide
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None  # dead processes' coroutines, thrown away at the end
    try:
        asyncio.set_event_loop(loop)
        cluster = Cluster(
            loop, f"run/{seed}", directory_bucket=shape.directory_bucket, settings=[*BROKER_SETTINGS, *shape.settings]
        )
        with mock.patch.object(app, "Broker", Observed), mock.patch.object(ahead, "UNIT_BYTES", AHEAD_UNIT_BYTES):
            run = _Run(shape, cluster)
            try:
                return loop.run_until_complete(run.play())
            except (Deadlock, Livelock) as stuck:
                return run.outcome(checker.Finding("stuck", str(stuck)))
            except Corrupt as broken:  # what lies in the bucket, met by those who look behind the brokers' backs
                return run.outcome(checker.Finding("unreadable", str(broken)))
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # coroutines of the dead that never ran
            cluster.bury()
            asyncio.set_event_loop(None)
            with contextlib.suppress(RuntimeError):
                loop.close()
            del cluster, loop
            gc.collect()
        sys.unraisablehook = hook
        if gc_was_on:
            gc.enable()


class _Run:
    """The acts of one run."""

    def __init__(self, shape: Shape, cluster: Cluster) -> None:
        self._shape = shape
        self._cluster = cluster
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
        await self._create_topics()
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
        others.append(asyncio.create_task(watch_partitions(self._cluster, stage)))
        others.append(asyncio.create_task(watch_roots(self._cluster, stage)))
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
        await self._read_group(member)
        await self._audit()
        await self._once_more()
        keeper.cancel()
        return self.outcome()

    async def _create_topics(self) -> None:
        """`log`: kept for ever, tiered at once. `kept`: retention by size."""
        segment = {"internal.segment.bytes": str(self._shape.segment_bytes), "remote.storage.enable": "true"}
        client = self._stage.client()
        for name, partitions, configs in (
            ("log", 2, {"local.retention.bytes": "1", "retention.ms": "-1"}),
            ("kept", 1, {"local.retention.bytes": "4000", "retention.bytes": "30000"}),
        ):
            for _ in range(20):
                try:
                    await client.create_topic(name, partitions, segment | configs)
                    break
                except (*NO_ANSWER, ServerError) as failure:
                    if isinstance(failure, ServerError) and failure.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                        break
                    await asyncio.sleep(0.5)
            else:
                self._found("not-ready", f"topic {name} could not be created")

    async def _read_all(self) -> None:
        """Everything, from the log start to the end, by one last reader (G13)."""
        if not await self._nemesis.ready(30.0):
            self._found("not-ready", "no broker serves 30 s after the last fault")
            return
        for place in self._places:
            reader = Reader(self._stage, "final", place, again=False)
            found = None
            for _ in range(20):
                found = await reader.ends()
                if found is not None:
                    break
                await asyncio.sleep(0.5)
            if found is None:
                self._found("unreadable", f"{place}: ListOffsets unanswered after the last fault")
                continue
            start, end = found
            reader.position = start
            if await reader.read_to(end, READERS_REACH_END_S):
                # A DeleteRecords that nobody waits for any more may still land meanwhile (seed 1859).
                self._history.add(Final(place, max(start, reader.log_start), end))
            else:
                self._found("unseen", f"{place}: stuck at {reader.position} of [{start}, {end})")

    async def _read_group(self, member: GroupMember) -> None:
        for _ in range(20):
            if await member.step(read_only=True):
                return
            await asyncio.sleep(0.5)
        self._found("unreadable", "OffsetFetch unanswered after the last fault")

    async def _audit(self) -> None:
        """Quiescence: the backlog drained, the books of every manifest balance, nothing but orphans of dead epochs."""
        cluster, node = self._cluster, self._nemesis.node
        deadline_s = cluster.loop.time() + TIERING_DRAINS_S
        while (lagging := _lagging(node.broker)) and cluster.loop.time() < deadline_s:
            await asyncio.sleep(1.0)
        if lagging:
            self._found("tiering-stuck", f"not drained {TIERING_DRAINS_S} s after the last fault: {lagging}")
        await asyncio.sleep(10.0)  # late writes land, graces pass
        workers = SimWorkers(cluster.loop, SeededRng("audit"))
        inspector = BucketInspector(cluster.plain_store(), workers)  # type: ignore[arg-type]
        for topic_id, partition in await inspector.partitions():
            for found in await inspector.verify(topic_id, partition, deep=True):
                if found.kind.is_damage:
                    self._found("bucket-damage", f"{topic_id}/{partition}: {found}")

    async def _once_more(self) -> None:
        """A clean stop and a start: the same records again, and no object left that a claim should have collected."""
        await self._nemesis.restart()
        if not await self._nemesis.ready(30.0):
            self._found("not-ready", "no broker serves 30 s after a clean restart")
            return
        for place in self._places:
            reader = Reader(self._stage, "after", place, again=False)
            ends = await reader.ends()
            if ends is not None:
                reader.position = ends[0]
                if not await reader.read_to(ends[1], READERS_REACH_END_S):
                    self._found("unseen", f"{place}: stuck at {reader.position} of {ends} after a clean restart")
        await asyncio.sleep(ORPHANS_GO_S)
        cluster, node = self._cluster, self._nemesis.node
        if node.broker is None or node.broker.rooms.replicas is None:
            return
        topics = node.broker.rooms.replicas._topics
        workers = SimWorkers(cluster.loop, SeededRng("audit"))
        inspector = BucketInspector(cluster.plain_store(), workers)  # type: ignore[arg-type]
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
        stage, cluster = self._stage, self._cluster
        self._findings += [checker.Finding("unexpected", text) for text in (*stage.unexpected, *cluster.failures)]
        self._findings += checker.check(self._history.events, retained=["kept"])
        self._findings = list(dict.fromkeys(self._findings))
        hits = Counter(self._nemesis.hits)
        hits.update({f"bucket {fault.value}": count for fault, count in cluster.store.hits.items()})
        hits.update({f"net {name}": count for name, count in cluster.net.hits.items()})
        hits.update(
            {f"disk {name}": n for name, n in cluster.machines[0].disk.hits.items() if name.startswith("fault:")}
        )
        return Outcome(
            self._shape,
            self._history.digest(),
            cluster.loop.time(),
            cluster.loop.callbacks,
            stage.acked,
            sum(1 for event in self._history.events if type(event).__name__ == "Poll"),
            stage.checked,
            hits,
            stage.errors,
            self._findings,
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
