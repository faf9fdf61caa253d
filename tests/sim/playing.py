"""What every simulated run is made of, of one broker or several: the loop it is played on, its acts, what comes of it.

Owns the order of the acts: topics, load and faults; the last fault mended, writes resume and the end is reached (G13);
audit; everything again. What differs between worlds are the hooks of `Play`. Always true: nothing of a run is left when
it is over; what did not come true in time is a finding. Must not know faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol
from unittest import mock

from broker import app
from broker.internal_topics import led_shard, rewriting
from hotstore.host import preallocation as ahead
from logformat.errors import Corrupt
from tests.sim import acts, guarded
from tests.sim.actors import Admin, GroupMember, Producer, Reader, Stage
from tests.sim.checks import checker
from tests.sim.checks.history import Place
from tests.sim.checks.tables import check_tables
from tests.sim.checks.transactions import check_transactions
from tests.sim.client import Client
from tests.sim.guarded import Guarded
from tests.sim.table import DIRTY_S, PLACE, TABLE, IdempotentWriter, PlainWriter, TableAdmin, TableReader, TableShape
from tests.sim.transactions.cast import HOT, Cast, TransactionShape
from tests.sim.world import cleaning
from tests.sim.world.cluster import Cluster, Observed
from tests.sim.world.encryption import rewrap_for_ever
from tests.sim.world.loop import Deadlock, Livelock, SimLoop
from tests.support.unexpected import unexpected_failures

WRITES_RESUME_S = 40.0
TIERING_DRAINS_S = 60.0
REWRITTEN_BYTES = 500  # that an internal log grows; 4 MiB else
AHEAD_UNIT_BYTES = 512  # segments are small here, and their logs take room ahead of them as large ones do


@dataclass
class Outcome:
    """What came of a run. `findings` is empty when every promise was kept."""

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


@dataclass(frozen=True, slots=True)
class Load:
    """What clients do, and for how long while things break."""

    duration_s: float
    producers: int
    pace_s: float
    segment_bytes: int


class Actor(Protocol):
    """Acts until it is told to stop, or cancelled."""

    async def run(self) -> None: ...


class Play(ABC):
    """The acts of one run over its cluster. `partitions`: of each topic."""

    several: ClassVar[bool]

    def __init__(
        self,
        shape: object,
        load: Load,
        cluster: Cluster,
        stage: Stage,
        partitions: Mapping[str, int],
        table: TableShape | None = None,
        transactions: TransactionShape | None = None,
        *,
        is_guarded: bool = False,
    ) -> None:
        self.cluster = cluster
        self._seeded = shape
        self._load = load
        self._stage = stage
        self._partitions = partitions
        self._findings: list[checker.Finding] = []
        self._rewrapped: Counter[str] = Counter()
        self._table = table
        self._cast = None if transactions is None else Cast(stage, transactions, is_judged=not self.fences_unasked)
        cluster.map_bytes = 0 if table is None else table.map_bytes
        self._places: list[Place] = [(name, i) for name, count in partitions.items() for i in range(count)]
        """Of which records are deleted, and so on."""
        self._groups = 30 if stage.rng("groups").randrange(3) == 0 else 1
        self._guarded = Guarded(stage) if is_guarded else None
        self._read_places = [*self._places, *(transactions.told_to_main if transactions is not None else ())]
        self._read_places += [guarded.PLACE] if is_guarded else []

    # --- what differs ---
    @property
    @abstractmethod
    def clocks_jump(self) -> bool:
        """Whether wall clocks do."""

    @property
    def fences_unasked(self) -> bool:
        """Whether producers may be fenced though nothing was lost."""
        return self.clocks_jump

    @property
    @abstractmethod
    def hits(self) -> Mapping[str, int]:
        """Faults that took effect."""

    def rewraps(self) -> list[Coroutine[Any, Any, None]]:
        """Where the bucket is encrypted; on a directory nobody else reaches it."""
        cluster = self.cluster
        if not cluster.encrypts or cluster.directory_bucket:
            return []
        return [rewrap_for_ever(cluster.store._inner, cluster.seed, self._rewrapped)]  # type: ignore[arg-type]

    @abstractmethod
    def watch(self) -> list[Coroutine[Any, Any, None]]:
        """What looks on, and keeps brokers up, from the first moment until the run is over."""

    @abstractmethod
    async def begin(self) -> bool:
        """Wait for brokers; whether there are any."""

    @abstractmethod
    def readers(self) -> list[Reader]: ...

    @abstractmethod
    async def break_things(self) -> None:
        """Until the stage is told to stop."""

    @abstractmethod
    async def mend(self) -> None:
        """The end of all faults, and what has to be so soon after it."""

    @abstractmethod
    async def end(self) -> None:
        """After everything was written and read: what has to be so in quiet times, and after clean restarts."""

    def configs(self) -> Mapping[str, str]:
        """Of every topic, beside those of all runs."""
        return {}

    def admin(self) -> Admin:
        return Admin(self._stage, self._places)

    def others(self) -> Sequence[Actor]:
        """Whoever else is about while things break, and is cut off then."""
        return ()

    def clients_near(self, place: Place) -> Sequence[tuple[str, Client]]:
        """Who reads a place elsewhere than of its leader, by name."""
        return ()

    @contextlib.contextmanager
    def rewriting(self) -> Iterator[None]:
        """In some runs internal topics are rewritten after little growth: in others their logs are too short for it."""
        if self._groups == 1 and (self._cast is None or not self._cast.shape.rewrites):
            yield
            return
        hits, rewritten = self._rewrapped if self._cast is None else self._cast.hits, led_shard.Growth.rewritten

        def counted(*args: Any) -> None:
            hits["txn internal log rewritten"] += 1
            rewritten(*args)

        growth = mock.patch.object(led_shard, "GROWTH_BYTES", REWRITTEN_BYTES)
        looks = mock.patch.object(rewriting, "_LOOK_S", 0.7)
        batches = mock.patch.object(rewriting, "_RECORDS_PER_BATCH", 200 if self._groups == 1 else 5)
        with growth, looks, batches, mock.patch.object(led_shard.Growth, "rewritten", counted):
            yield

    def breaks_cleaning(self) -> cleaning.Breaks | None:
        """What strikes the cleaner itself."""
        return None

    # --- the acts ---
    def found(self, kind: str, detail: str) -> None:
        self._findings.append(checker.Finding(kind, detail))

    async def play(self) -> Outcome:
        watching = [asyncio.create_task(watcher) for watcher in self.watch()]
        if not await self.begin():
            return self.outcome()
        stage, load = self._stage, self._load
        more = {} if self._table is None else {TABLE: self._table.configs()}
        more |= {} if self._cast is None else self._cast.shape.topics()
        more |= {} if self._guarded is None else {guarded.PLACE[0]: guarded.CONFIGS}
        await acts.create_topics(stage, self.found, self._partitions, load.segment_bytes, self.configs(), more)
        member = await self._under_load()
        if self._cast is not None:
            await self._cast.settle(self.found)
        if self._guarded is not None:
            await self._guarded.settle(self.found)
        await acts.read_all(stage, self.found, self._read_places)
        await acts.read_group(member, self.found)
        await self._scan("table, final")
        await self._is_clean()
        await self.end()
        await self._scan("table, after")
        if self._cast is not None:
            await self._cast.read(self.found, "tx after")
        await _over(watching)
        return self.outcome()

    async def _under_load(self) -> GroupMember:
        stage, load, places = self._stage, self._load, self._places
        producers = [Producer(stage, f"p{i}", places[i % len(places)], load.pace_s) for i in range(load.producers)]
        names = tuple(f"group{i}" for i in range(self._groups))
        member = GroupMember(stage, names, ("log", 0), 0 if self._groups == 1 else 500)
        writers, tables = self._of_table()
        if self._cast is not None:
            writers += self._cast.writers()
            tables += self._cast.others(self.clients_near)
        if self._guarded is not None:
            writers += self._guarded.writers()
            tables.append(self._guarded)
        writing = [asyncio.create_task(producer.run()) for producer in (*producers, *writers)]
        actors: list[Actor] = [*self.readers(), member, self.admin(), *self.others(), *tables]
        others = [asyncio.create_task(actor.run()) for actor in actors]
        late = self.cluster.late
        if late is not None:
            late.is_on = True
        breaking = asyncio.create_task(self.break_things())
        if (breaks := self.breaks_cleaning()) is not None:
            cleaning.begin_breaking(breaks)
        await asyncio.sleep(load.duration_s)
        cleaning.stop_breaking()
        stage.stopping.set()
        await breaking
        if late is not None:
            late.calm()
        await self.mend()
        _, late = await asyncio.wait(writing, timeout=WRITES_RESUME_S)
        if late:
            self.found("writes-stuck", f"{len(late)} producers unanswered {WRITES_RESUME_S} s after the last fault")
        await _over([*writing, *others], [*late, *others])
        return member

    def _of_table(self) -> tuple[list[Actor], list[Actor]]:
        """Who writes to the compacted topic, who else has to do with it."""
        stage, shape = self._stage, self._table
        if shape is None:
            return [], []
        writers: list[Actor] = [
            IdempotentWriter(stage, "t0", PLACE, shape),
            IdempotentWriter(stage, "t1", PLACE, shape),
            PlainWriter(stage, "t2", PLACE, shape),
        ]
        return writers, [
            TableReader(stage, "scan0", PLACE),
            TableReader(stage, "scan1", PLACE),
            TableAdmin(stage, shape),
        ]

    async def _scan(self, name: str) -> None:
        """All of the compacted topic, in quiet times."""
        if self._table is None:
            return
        reader = TableReader(self._stage, name, PLACE)
        for _ in range(20):
            if await reader.scan(is_final=True):
                return
            await asyncio.sleep(0.5)
        self.found("unreadable", f"{PLACE} could not be read from start to end ({name})")

    async def _is_clean(self) -> None:
        """Nothing stays dirty: every broker's cleaner goes on after the last fault."""
        loop = self.cluster.loop
        deadline_s = loop.time() + DIRTY_S
        while (left := self._dirty()) and loop.time() < deadline_s:
            await asyncio.sleep(0.5)
        if left:
            self.found("cleaner-stuck", f"{DIRTY_S:.0f} s after the last write: {left}")

    def _dirty(self) -> list[str]:
        found = []
        for node in self.cluster.nodes:
            cleaner = None if node.dead or node.broker is None else node.broker.components.cleaner
            for opened, _ in () if cleaner is None else cleaner._candidates():
                part = cleaner._part(opened)
                if part.is_due:
                    found.append(f"{node.name} {opened.place}: {part} {cleaner.uncleanable.get(opened.place)}")
        return found

    async def drained(self, lagging: Callable[[], Sequence[str]]) -> None:
        """Quiescence: what is led is copied, the books of every manifest balance."""
        loop = self.cluster.loop
        deadline_s = loop.time() + TIERING_DRAINS_S
        while (left := lagging()) and loop.time() < deadline_s:
            await asyncio.sleep(1.0)
        if left:
            self.found("tiering-stuck", f"not drained {TIERING_DRAINS_S} s after the last fault: {left}")
        await asyncio.sleep(10.0)  # late writes land, graces pass
        await acts.audit_bucket(self.cluster, self.found)

    def outcome(self, *more: checker.Finding) -> Outcome:
        """What came of it so far: findings of its acts, all that was not expected, and what the history says."""
        self._findings += more
        stage, cluster = self._stage, self.cluster
        found = [*self._findings]
        found += (checker.Finding("unexpected", text) for text in (*stage.unexpected, *cluster.failures))
        retained = frozenset() if self._cast is None else self._cast.shape.retained
        found += checker.check(stage.history.events, {"kept", *retained}, several=self.several)
        if self._table is not None:
            found += (checker.Finding(*told) for told in check_tables(stage.history.events, self._table.rules))
        if self._cast is not None:
            keys = self._cast.shape.keys
            told = check_transactions(stage.history.events, {HOT}, retained, keys)
            found += (checker.Finding(*one) for one in told)
        counted = Counter(self.hits) + self._rewrapped
        counted.update({} if self._cast is None else self._cast.hits)
        counted.update({} if self._guarded is None else self._guarded.hits)
        counted.update(cleaning.hits)
        counted.update({f"bucket {fault.value}": count for fault, count in cluster.store.hits.items()})
        counted.update({f"net {name}": count for name, count in cluster.net.hits.items()})
        counted.update({} if cluster.late is None else cluster.late.hits)
        for machine in cluster.machines:
            counted.update({f"disk {name}": n for name, n in machine.disk.hits.items() if name.startswith("fault:")})
        return Outcome(
            self._seeded,
            stage.history.digest(),
            cluster.loop.time(),
            cluster.loop.callbacks,
            stage.acked,
            sum(1 for event in stage.history.events if type(event).__name__ == "Poll"),
            stage.checked,
            counted,
            stage.errors,
            list(dict.fromkeys(found)),
        )


async def _over(tasks: Sequence[asyncio.Task[Any]], cancelled: Sequence[asyncio.Task[Any]] | None = None) -> None:
    """Wait for the end of tasks, after some (all) were cancelled; what failed fails the run."""
    for task in tasks if cancelled is None else cancelled:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended


def played(make: Callable[[SimLoop], Play]) -> Outcome:
    """Play a run to its end on a loop of its own; nothing of it is left."""
    gc_was_on = gc.isenabled()
    gc.collect()  # garbage that is frozen stays for ever
    gc.freeze()  # a collection at the end looks at this run alone
    loop = SimLoop()  # not before: it would be frozen, and all that it holds (`asyncio.all_tasks` walks dead tasks)
    gc.disable()  # a collection would run finalisers of dead processes at a moment that the seed does not decide
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None  # dead processes' coroutines, thrown away at the end
    run: Play | None = None
    try:
        asyncio.set_event_loop(loop)
        seen = mock.patch.object(app, "Broker", Observed), mock.patch.object(ahead, "UNIT_BYTES", AHEAD_UNIT_BYTES)
        with seen[0], seen[1], cleaning.cleaning_is_seen():
            run = make(loop)
            try:
                with unexpected_failures() as unexpected, run.rewriting():
                    outcome = loop.run_until_complete(run.play())
                outcome.findings += (checker.Finding("unexpected", text) for text in unexpected.found)
                return outcome
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
