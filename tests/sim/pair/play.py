"""One run of two brokers: a seed in, an outcome out.

Owns the draw of what happens, in which order, and the acts after it: calm, a leader, a last record, everything read,
both machines stopped dead, what lies on their disks recovered. Always true: same seed, same run; every wait is bounded;
only what was promised is judged (`Promises`). What brokers report as a bug of theirs fails the run.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from broker.metadata.records import NO_LEADER
from logformat.errors import ThermoclineError
from seams.rng import SeededRng
from tests.sim.pair.brokers import Brokers
from tests.sim.pair.controller import Controller
from tests.sim.pair.copies import copy_of
from tests.sim.world.clock import EPOCH_MS
from tests.sim.world.late import LONG_S, SHORT_S
from tests.sim.world.loop import Deadlock, Livelock, SimLoop
from tests.support.brokers.broker_kit import SMALL_SEGMENTS
from tests.support.brokers.shared_bucket import NAME
from tests.support.store.faulty_store import FaultPlan
from tests.support.unexpected import unexpected_failures

SETTLES_S = 150.0
RUN_S_MAX = 3600.0
TIERED = {name.replace("_", "."): value for name, value in SMALL_SEGMENTS.items()}
HOT_ONLY = {"internal.segment.bytes": "1000"}
CHANCES = (0.05, 0.25, 0.5)
FULL_OR_BROKEN = ("write", "write", "rename", "open", "sync", "truncate", "read", "list", "unlink")
SUFFIXES = (".tmp", ".log", "", "recovery-point-offset-checkpoint.tmp")


@dataclass
class Outcome:
    """What came of a run. `told`: what was done, in order."""

    seed: int
    findings: list[str] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)
    acked: int = 0
    simulated_s: float = 0.0


class PairPlay:
    """The acts of one run. Make it on the run's loop."""

    def __init__(self, outcome: Outcome) -> None:
        self._rng = rng = SeededRng(f"pair/{outcome.seed}")
        self._outcome = outcome
        self._sync = rng.randrange(2) == 0
        self._brokers = Brokers(
            f"pair/{outcome.seed}",
            CHANCES[rng.randrange(len(CHANCES))],
            (SHORT_S, SHORT_S, LONG_S)[rng.randrange(3)],
            f"thermocline.flush={'sync' if self._sync else 'os'}",
        )
        self._controller = Controller(self._brokers)
        self._configs = TIERED if rng.randrange(5) < 3 else HOT_ONLY
        self._loop = asyncio.get_running_loop()
        self._values = 0
        self._has_lost: dict[int, bool] = {1: False, 2: False}  # power went, and acks meant the page cache
        self._producing: dict[asyncio.Task[Any], int] = {}  # by the node asked
        self._acts: tuple[tuple[int, Callable[[], Coroutine[Any, Any, None]]], ...] = (
            (40, self._produce),
            (22, self._elect),
            (7, self._make_again),
            (4, self._slow_store),
            (5, self._refuse),
            (5, self._delete_records),
            (4, self._kill),
            (2, self._stop),
            (3, self._begin_uncleanly),
            (4, self._move),
        )
        self._weights = sum(weight for weight, _ in self._acts)

    # --- the acts ---
    async def play(self) -> None:
        late = self._brokers.late
        late.is_on = False
        for node_id in (1, 2):
            assert await self._brokers.begin(node_id)
        late.is_on = True
        self._told(f"{'sync' if self._sync else 'os'}, {self._configs}")
        self._make()
        self._brokers.publish()
        try:
            for _ in range(10 + self._rng.randrange(30)):
                await self._one()
            await self._calm()
            leader = await self._led()
            await self._written_and_read(leader)
            self._recover()
        finally:
            self._outcome.hits.update(self._brokers.late.hits)
            for place in self._brokers.places.values():
                self._outcome.hits.update(
                    {f"disk {name}": n for name, n in place.disk.hits.items() if name.startswith("fault:")}
                )
            self._outcome.simulated_s = self._loop.time()

    async def _one(self) -> None:
        rng = self._rng
        drawn = rng.randrange(self._weights)
        for weight, act in self._acts:
            drawn -= weight
            if drawn < 0:
                await act()
                break
        if rng.randrange(5) < 3:
            self._brokers.publish(*((), (1,), (2,), (1, 2), (2, 1))[rng.randrange(5)])
        await asyncio.sleep((0, 0.001, 0.02, 0.3, 1.0, 3.0)[rng.randrange(6)])
        self._start_those_down()
        self._controller.tend()

    def _told(self, what: str) -> None:
        self._outcome.told.append(f"{self._loop.time():.3f} {what}")

    def _hit(self, what: str) -> None:
        self._outcome.hits[what] += 1
        self._told(what)

    def _any(self) -> int:
        return 1 + self._rng.randrange(2)

    # --- what happens ---
    async def _produce(self) -> None:
        rng = self._rng
        until_s = self._loop.time() + (0.0, 0.3, 1.0, 4.0)[rng.randrange(4)]
        while not self._is_led() and self._loop.time() < until_s:
            await asyncio.sleep(0.05)
        leader = self._controller.row.leader
        for _ in range(1 + rng.randrange(14)):
            node_id = self._any() if leader == NO_LEADER or rng.randrange(3) == 0 else leader
            if self._brokers.is_up(node_id):
                self._values += 1
                value = b"%06d" % self._values + b"x" * 90
                task = self._brokers.within(node_id, self._produced(node_id, value))
                self._producing[task] = node_id

    async def _produced(self, node_id: int, value: bytes) -> None:
        """Acks=all, of the topic there is now where this broker leads it."""
        life, topic_id, promises = self._brokers.lives[node_id], self._controller.topic_id, self._controller.promises
        led = life.context.registry.partitions.get((NAME, 0))
        if led is None or str(led.topic_id) != topic_id:
            return
        epoch = led.leader_epoch
        answer = await life.produce(NAME, value)
        if answer.error_code != 0 or self._controller.topic_id != topic_id:
            return
        if epoch < self._controller.row.unclean_epoch:
            return  # a leader that an unclean start overtook promises nothing
        promises.acknowledged(answer.base_offset, value)
        self._outcome.acked += 1

    async def _elect(self) -> None:
        replicas = self._controller.row.replicas
        leader = (*replicas, *replicas, NO_LEADER)[self._rng.randrange(2 * len(replicas) + 1)]
        if self._controller.row.clean and self._controller.elect(leader):
            self._told(f"elects {leader}")

    def _make(self) -> None:
        replicas = ((1, 2), (1, 2), (1, 2), (2, 1), (1,), (2,))[self._rng.randrange(6)]
        self._controller.make(replicas, replicas[self._rng.randrange(len(replicas))], self._configs)
        self._told(f"made {self._controller.topic_id[-3:]} {self._controller.row}")

    async def _make_again(self) -> None:
        rng = self._rng
        self._controller.delete()
        self._hit("topic deleted and made again")
        if rng.randrange(2):
            self._brokers.publish(*((1,), (2,), (1, 2))[rng.randrange(3)])
            await asyncio.sleep((0, 0.01, 1.0)[rng.randrange(3)])
        self._make()

    async def _slow_store(self) -> None:
        latency_s = (0.0, 0.5, 5.0)[self._rng.randrange(3)]
        for place in self._brokers.places.values():
            place.store.plan = FaultPlan(latency_s=(latency_s, latency_s))

    async def _refuse(self) -> None:
        rng = self._rng
        code = (errno.ENOSPC, errno.ENOSPC, errno.EIO)[rng.randrange(3)]
        operations = FULL_OR_BROKEN[:4] if code == errno.ENOSPC else FULL_OR_BROKEN
        operation, suffix = operations[rng.randrange(len(operations))], SUFFIXES[rng.randrange(len(SUFFIXES))]
        node_id = self._any()
        self._brokers.places[node_id].disk.inject(operation, code, suffix, times=1 + rng.randrange(4))
        self._told(f"disk of {node_id}: {operation} of *{suffix} {errno.errorcode[code]}")

    async def _delete_records(self) -> None:
        node_id = self._any()
        if self._brokers.is_up(node_id):
            work = self._brokers.delete_records(node_id, self._rng.randrange(20))
            self._producing[self._brokers.within(node_id, _quiet(work))] = node_id

    async def _kill(self) -> None:
        rng, node_id = self._rng, self._any()
        if node_id not in self._brokers.lives:
            return
        keep = (None, None, 0.0, 0.5, 1.0)[rng.randrange(5)]
        if keep is not None and not self._sync:
            self._has_lost[node_id] = True
        self._brokers.kill(node_id, keep)
        self._hit("kill -9" if keep is None else f"power cut, keeps {keep}")
        self._told(f"killed {node_id}")
        if rng.randrange(4):
            self._controller.ended(node_id)  # else it comes back before anybody noticed

    async def _stop(self) -> None:
        node_id = self._any()
        if not self._brokers.is_up(node_id):
            return
        others = [other for other in self._controller.row.in_sync if other != node_id]
        if self._controller.row.leader == node_id and others and self._rng.randrange(2):
            self._controller.elect(others[0])
            self._brokers.publish()
        self._told(f"stops {node_id}")
        self._go(node_id, self._stopped(node_id))

    async def _stopped(self, node_id: int) -> bool:
        if await self._brokers.end_cleanly(node_id):
            self._hit("clean stop")
        self._controller.ended(node_id)
        return True

    async def _begin_uncleanly(self) -> None:
        node_id = self._any()
        if self._controller.begin_uncleanly(node_id):
            self._hit("unclean election")
            self._told(f"begins uncleanly: {node_id}")

    async def _move(self) -> None:
        """There and, mostly, back."""
        rng, node_id = self._rng, self._any()
        if len(self._controller.row.replicas) > 1:
            if not self._controller.move_off(node_id):
                return
            self._hit("reassigned")
            self._told(f"moved off {node_id}")
            if rng.randrange(4) == 0:
                return
            self._brokers.publish(*((1,), (2,), (1, 2), (1, 2))[rng.randrange(4)])
            await asyncio.sleep((0, 0.01, 0.3, 3.0)[rng.randrange(4)])
        others = [other for other in (1, 2) if other not in self._controller.row.assigned]
        if others and self._controller.move_on(others[0]):
            self._hit("reassigned back")
            self._told(f"moved on {others[0]}")

    # --- processes that are down ---
    def _go(self, node_id: int, work: Coroutine[Any, Any, bool]) -> None:
        task = self._loop.create_task(work)
        self._brokers.going[node_id] = task
        task.add_done_callback(lambda _: self._brokers.going.pop(node_id))

        def over(done: asyncio.Task[bool]) -> None:
            if not done.cancelled() and (failure := done.exception()) is not None:
                self._found(failure)

        task.add_done_callback(over)

    def _start_those_down(self, *, at_once: bool = False) -> None:
        for node_id in (1, 2):
            if node_id in self._brokers.lives or node_id in self._brokers.going:
                continue
            if at_once or self._rng.randrange(3) == 0:
                self._go(node_id, self._started(node_id))

    async def _started(self, node_id: int) -> bool:
        if not await self._brokers.begin(node_id):
            return False
        self._told(f"started {node_id}")
        has_lost, self._has_lost[node_id] = self._has_lost[node_id], False
        self._controller.began(node_id, has_lost=has_lost)
        self._brokers.publish()
        return True

    # --- after all of it ---
    async def _calm(self) -> None:
        """No more faults. Whose disk broke is started again: nothing else brings its logs back (C10)."""
        brokers = self._brokers
        self._told("calm")
        brokers.late.calm()
        for place in brokers.places.values():
            place.disk.heal()
            place.store.plan = FaultPlan()
        for node_id in filter(brokers.waits_in_vain, (1, 2)):
            brokers.kill(node_id)
        await self._until(lambda: not brokers.going, "somebody starts or stops")
        for node_id in (1, 2):
            broke = any(fault for name, fault in brokers.places[node_id].disk.hits.items() if name.startswith("fault:"))
            if broke and node_id in brokers.lives:
                brokers.kill(node_id)
                self._controller.ended(node_id)
        await self._until(self._all_are_up, "not all are up")
        brokers.publish()

    def _all_are_up(self) -> bool:
        self._start_those_down(at_once=True)
        return all(self._brokers.is_up(node_id) for node_id in (1, 2))

    async def _led(self) -> int:
        """An election more, once the set is full; who leads then."""
        controller, brokers = self._controller, self._brokers
        await self._until(self._is_full, lambda: f"the set is not full: {controller.row}; {self._says()}")
        replicas = controller.row.replicas
        leader = replicas[self._rng.randrange(len(replicas))]
        assert controller.elect(leader), controller.row
        brokers.publish()
        await self._until(
            lambda: self._leads(leader), lambda: f"{leader} never leads: {controller.row}; {self._says()}"
        )
        return leader

    def _is_full(self) -> bool:
        controller = self._controller
        row = controller.row
        if row.in_sync and row.clean and row.leader == NO_LEADER:
            controller.elect(row.in_sync[0])
        controller.tend()
        self._brokers.publish()
        row = controller.row
        return row.clean and not row.target and set(row.in_sync) == set(row.replicas)

    def _is_led(self) -> bool:
        leader = self._controller.row.leader
        return self._brokers.is_up(leader) and self._leads(leader)

    def _leads(self, node_id: int) -> bool:
        if self._brokers.lives[node_id].broker.components.server is None:
            return False
        found = self._brokers.lives[node_id].context.registry.partitions.get((NAME, 0))
        row = self._controller.row
        return found is not None and found.leading and found.leader_epoch == row.leader_epoch

    def _says(self) -> str:
        said = []
        for node_id, life in self._brokers.lives.items():
            replicas, registry = life.broker.components.replicas, life.context.registry
            copy = registry.followed.get((NAME, 0))
            of_copy = copy and (copy.leader_epoch, copy.follower.phase.value, copy.follower.end, repr(copy.failure))
            damaged = None if replicas is None else replicas.damaged
            of_led = [
                (name, found.leader_epoch, found.leading, found.log.log_start_offset, found.log.log_end_offset)
                for name, table in (("led", registry.partitions), ("starts", registry.starting))
                if (found := table.get((NAME, 0))) is not None
            ]
            said.append(
                f"{node_id}: {of_led}, damaged {damaged}, copy {of_copy}, unfit {dict(registry.log_failures.unfit)}"
            )
        return "; ".join(said)

    async def _written_and_read(self, leader: int) -> None:
        life, promises = self._brokers.lives[leader], self._controller.promises
        code = -1
        for _ in range(30):
            work = self._brokers.within(leader, life.produce(NAME, b"last"))
            await self._until(work.done, "the last record is not answered")
            answer = work.result()
            code = answer.error_code
            if code == 0:
                promises.acknowledged(answer.base_offset, b"last")
                break
            await asyncio.sleep(2.0)
        assert code == 0, f"the last record is refused: {code} {answer.error_message}; {self._says()}"
        start = life.partition(NAME).log_start_offset
        work = self._brokers.within(leader, life.read_all(NAME, start=start))
        await self._until(work.done, "the log is not read to its end")
        self._judge("read", dict(work.result()), start, 1 << 62)
        await asyncio.sleep(12.0)

    def _judge(self, what: str, found: dict[int, bytes | None], start: int, end: int) -> None:
        promises = self._controller.promises
        for offset, value in promises.acked.items():
            if start <= offset < end:
                assert found.get(offset) == value, (
                    f"{what}: acknowledged {offset} {value[:6]!r}, is {found.get(offset)!r}"
                )
        for offset, value in promises.may_be_gone.items():
            there = found.get(offset)
            is_other = there is not None and there != value and (there[:6].isdigit() or there == b"last")
            assert not is_other, f"{what}: {offset} was given to {value[:6]!r}, and then to {there!r}"

    def _recover(self) -> None:
        """What a next process finds of each member's copy."""
        row, promises = self._controller.row, self._controller.promises
        for node_id in row.replicas:
            self._brokers.kill(node_id)
            try:
                start, end, found = copy_of(self._brokers.places[node_id].disk, EPOCH_MS + 10**9)
            except (ThermoclineError, OSError) as refused:
                raise AssertionError(f"broker {node_id} refuses its copy: {refused!r}") from refused
            needed = max((offset + 1 for offset in promises.acked), default=0)
            assert node_id not in row.in_sync or end >= needed, f"the copy of {node_id} ends at {end}, not {needed}"
            self._judge(f"copy of {node_id}", found, start, end)

    async def _until(self, happened: Callable[[], bool], what: str | Callable[[], str]) -> None:
        deadline_s = self._loop.time() + SETTLES_S
        while not happened():
            if self._loop.time() > deadline_s:
                raise AssertionError(what if isinstance(what, str) else what())
            await asyncio.sleep(0.1)

    def _found(self, failure: BaseException) -> None:
        self._outcome.findings.append(f"{type(failure).__name__}: {failure}")
        self._outcome.traces.append("".join(traceback.format_exception(failure)))

    def bury(self) -> None:
        for task in self._producing:
            if task.done() and not task.cancelled() and isinstance(failure := task.exception(), AssertionError):
                self._found(failure)
        self._brokers.bury_all()


async def _quiet(work: Coroutine[Any, Any, Any]) -> None:
    try:
        await work
    except (ThermoclineError, OSError, TimeoutError):
        return


def simulate(seed: int) -> Outcome:
    """Run a seed to its end. Deterministic; nothing of it touches the real world."""
    outcome = Outcome(seed)
    loop = SimLoop()
    gc_was_on, hook = gc.isenabled(), sys.unraisablehook
    gc.disable()  # a collection would run finalisers of dead processes at a moment that the seed does not decide
    sys.unraisablehook = lambda _: None
    run: PairPlay | None = None

    async def whole() -> None:
        nonlocal run
        run = PairPlay(outcome)
        async with asyncio.timeout(RUN_S_MAX):
            await run.play()

    asyncio.set_event_loop(loop)
    with unexpected_failures() as unexpected, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # coroutines of the dead that never ran
        try:
            loop.run_until_complete(whole())
        except (AssertionError, Deadlock, Livelock, TimeoutError, ThermoclineError, OSError) as failure:
            outcome.findings.append(f"{type(failure).__name__}: {failure}")
            outcome.traces.append("".join(traceback.format_exception(failure)))
        finally:
            outcome.findings += unexpected.found
            outcome.traces += unexpected.traces
            if run is not None:
                run.bury()
            asyncio.set_event_loop(None)
            loop.close()
            del run, loop
            sys.unraisablehook = hook
            if gc_was_on:
                gc.enable()
    return outcome
