"""One simulated run of one broker: a seed in, an outcome out.

Owns the draw of a run's shape (bucket, flush mode, fault kinds, load) from its seed, and what its acts are in a world
of one broker. Always true: same seed, same digest (for one commit and Python minor version).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from broker.config.authorizer import ALLOWS_WITHOUT_ACLS, CLASS_NAME, STANDARD_AUTHORIZER
from coldstore.inspection.orphan_safety import keep_only_copies
from seams.rng import SeededRng
from tests.sim import acts
from tests.sim.actors import Reader, Stage
from tests.sim.checks.history import History
from tests.sim.checks.invariants import watch_partitions, watch_roots
from tests.sim.nemesis import KEEPS, LATER, LEASE_S, Kind, Nemesis
from tests.sim.playing import Load, Outcome, Play, played
from tests.sim.table import SETTINGS as TABLE_SETTINGS
from tests.sim.table import TableShape, table_of
from tests.sim.transactions.cast import SETTINGS as TRANSACTION_SETTINGS
from tests.sim.transactions.cast import TransactionShape, transactions_of
from tests.sim.world.cleaning import Breaks
from tests.sim.world.cluster import Cluster, Node, Observed
from tests.sim.world.encryption import drawn_encryption
from tests.sim.world.late import drawn_chance, late_of
from tests.sim.world.loop import SimLoop
from tests.support.store.faulty_store import Fault

ORPHANS_GO_S = 12.0
PARTITIONS = {"log": 2, "kept": 1}
FAULTY = tuple(fault for fault in Fault if fault not in (Fault.OUTAGE, Fault.DENIED, Fault.READ_ONLY))

CODECS = ("gzip", "snappy", "lz4", "zstd")
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

OF_ONE = ("transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1")


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
    late: float  # the chance that a call of a worker is; 0: none is
    table: TableShape
    transactions: TransactionShape


def shape_of(seed: int, duration_s: float, *, late: bool = False) -> Shape:
    """The run that `seed` stands for; `late`: with late work, which else is drawn."""
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
        *codec_of(f"shape/{seed}"),
        *authorizer_of(f"shape/{seed}"),
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
        drawn_chance(f"shape/{seed}", always=late),
        table_of(f"shape/{seed}"),
        transactions_of(f"shape/{seed}"),
    )


def codec_of(name: str) -> tuple[str, ...]:
    """In some runs topics have a codec of their own: what producers send is recompressed (ADR 31)."""
    drawn = SeededRng(f"{name}/codec").randrange(24)
    return (f"compression.type={CODECS[drawn]}",) if drawn < len(CODECS) else ()


def authorizer_of(name: str) -> tuple[str, ...]:
    """In a sixth of the runs an authorizer is asked about every request. Clients and brokers have no names here: they
    are super users in one half, and allowed what no ACL names in the other."""
    drawn = SeededRng(f"{name}/authorizer").randrange(12)
    if drawn >= 2:
        return ()
    return (f"{CLASS_NAME}={STANDARD_AUTHORIZER}", ("super.users=User:ANONYMOUS", f"{ALLOWS_WITHOUT_ACLS}=true")[drawn])


def simulate(seed: int, duration_s: float = 12.0, *, late: bool = False) -> Outcome:
    """Run a seed to its end. Deterministic; nothing of it touches the real world."""
    shape = shape_of(seed, duration_s, late=late)

    def make(loop: SimLoop) -> OneBroker:
        settings = [*BROKER_SETTINGS, *TABLE_SETTINGS, *TRANSACTION_SETTINGS, *OF_ONE, *shape.settings]
        name = f"run/{seed}"
        late_work = late_of(loop, name, shape.late)
        of_bucket: Any = {"directory_bucket": shape.directory_bucket, "encrypts": drawn_encryption(name)}
        cluster = Cluster(loop, name, settings=settings, late=late_work, **of_bucket)
        return OneBroker(shape, cluster)

    return played(make)


class OneBroker(Play):
    """The acts of one run."""

    several = False

    def __init__(self, shape: Shape, cluster: Cluster) -> None:
        node = cluster.start("a")
        stage = Stage(cluster, History(), lambda: self._nemesis.node, asyncio.Event(), [], {})
        load = Load(shape.duration_s, shape.producers, shape.pace_s, shape.segment_bytes)
        self._shape = shape
        super().__init__(shape, load, cluster, stage, PARTITIONS, shape.table, shape.transactions)
        self._nemesis = Nemesis(stage, node, list(shape.kinds), list(shape.faults), sync=shape.sync)

    @property
    def clocks_jump(self) -> bool:
        return Kind.CLOCK in self._shape.kinds

    @property
    def hits(self) -> Mapping[str, int]:
        return self._nemesis.hits

    def watch(self) -> list[Coroutine[Any, Any, None]]:
        cluster, stage = self.cluster, self._stage
        return [watch_partitions(cluster, stage), watch_roots(cluster, stage), self._nemesis.keep_up(), *self.rewraps()]

    async def begin(self) -> bool:
        is_ready = await self._nemesis.ready(20.0)
        if not is_ready:
            self.found("not-ready", "the first broker did not come up on an empty disk and bucket")
        return is_ready

    def readers(self) -> list[Reader]:
        stage = self._stage
        return [
            Reader(stage, "again0", ("log", 0), again=True),
            Reader(stage, "again1", ("log", 1), again=True),
            Reader(stage, "tail0", ("log", 0), again=False),
            Reader(stage, "tail2", ("kept", 0), again=False),
        ]

    def breaks_cleaning(self) -> Breaks | None:
        if Kind.KILL not in self._shape.kinds:
            return None
        keep = self._stage.rng("kept of a swap")

        def cut_power(_: Node) -> None:
            self.cluster.power_cut(KEEPS[keep.randrange(len(KEEPS))], keep)

        return Breaks(self._stage.rng("swaps"), self.cluster.kill, cut_power if self._shape.sync else None)

    async def break_things(self) -> None:
        await self._nemesis.run()

    async def mend(self) -> None:
        await self._nemesis.heal()
        if not await self._nemesis.ready(30.0):
            self.found("not-ready", "no broker serves 30 s after the last fault")

    async def end(self) -> None:
        """A clean stop and a start: the same records again, and no object left that a claim should have collected."""
        await self.drained(lambda: _lagging(self._nemesis.node.broker))
        await self._nemesis.restart()
        if not await self._nemesis.ready(30.0):
            self.found("not-ready", "no broker serves 30 s after a clean restart")
            return
        await acts.read_again(self._stage, self.found, self._read_places)
        await asyncio.sleep(ORPHANS_GO_S)
        await self._no_orphans(self._nemesis.node.broker)

    async def _no_orphans(self, broker: Observed | None) -> None:
        if broker is None or broker.components.replicas is None:
            return
        topics = broker.components.replicas._topics
        inspector = acts.inspector_of(self.cluster)
        for topic_id, partition in await inspector.partitions():
            view = await inspector.view(topic_id, partition)
            topic = topics.get(str(topic_id))
            row = None if topic is None or partition >= topic.partitions else topic.rows[partition]
            if view is not None and row is not None and view.manifest.leader_epoch < row.leader_epoch:
                continue  # nothing to copy, so not claimed: its orphans wait for the next claim (G7)
            plan = await inspector.plan_gc(topic_id, partition)
            for led in broker.components.replicas._registry:
                state = led.tier.partition_state
                if (state.topic_id, state.partition) == (topic_id, partition):
                    # what only a lost disk held besides is no garbage
                    plan = await keep_only_copies(self.cluster.plain_store(), plan, state.holds)
            if plan.deletable:
                self.found("orphan-leak", f"{topic_id}/{partition}: {[info.key for info in plan.deletable]}")


def _lagging(broker: Observed | None) -> list[str]:
    """Partitions with sealed, uncopied bytes."""
    if broker is None or broker.components.replicas is None:
        return ["no broker"]
    return [
        f"{partition.topic}-{partition.index}: {partition.tier.status()}"
        for partition in broker.components.replicas._registry
        if partition.tier.enabled and partition.tier.status().copy_lag_bytes > 0
    ]
