"""Producers that do anything, coordinators that move, marker requests that are slow, lost and doubled, a log that
refuses and lies: every transaction has one outcome, in each of its partitions once, and it is what its client heard."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from unittest import mock

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.transactions import machine, transaction
from broker.transactions.transaction import TV_0, TV_2
from logformat.errors import Retryable
from seams.loop.turns import Turns
from tests.sim.world.loop import SimLoop
from tests.support.transactions.marked_world import PLANS, MarkedWorld, Producer

WHO = st.integers(0, 4)
WHERE = st.integers(0, 3)
PLANNED = st.lists(st.sampled_from(["", *PLANS]), max_size=4)


async def _wide_turn() -> None:
    """What yields between two entries yields for long: others act between any two of them."""
    await asyncio.sleep(0.2)


class CoordinatorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patches: list[Any] = [
            mock.patch("broker.transactions.coordinator.Turns", lambda *_: Turns(1)),
            mock.patch("broker.transactions.coordinator.next_turn", _wide_turn),
        ]
        for patch in self.patches:
            patch.start()
        self.loop = SimLoop()
        self.running: dict[int, asyncio.Task[None]] = {}

    def run(self, what: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_until_complete(what)

    @initialize(
        versions=st.lists(st.sampled_from([TV_0, TV_0, TV_2]), min_size=5, max_size=5),
        pauses=st.lists(st.sampled_from([0.003, 0.05, 0.3]), min_size=5, max_size=5),
        epochs=st.sampled_from([4, transaction.EPOCH_MAX]),
        writes_first=st.booleans(),
    )
    def begin(self, versions: list[int], pauses: list[float], epochs: int, writes_first: bool) -> None:
        for of in (machine, transaction):
            patch = mock.patch.object(of, "EPOCH_MAX", epochs)
            self.patches.append(patch)
            patch.start()
        self.run(self._begin(versions, pauses, writes_first))

    async def _begin(self, versions: list[int], pauses: list[float], writes_first: bool) -> None:
        self.world = world = MarkedWorld()
        world.memory.writes_first = writes_first
        self.at = [world.partition(index, topic=1 + index // 3, leader=1 + index % 2) for index in range(4)]
        ids = ("a", "a", "b", "b", "c")
        self.producers = [Producer(world, *one) for one in zip(ids, versions, pauses, strict=True)]
        world.move(same=True, late=False)
        await world.coordinator.log.wait_loaded()
        await Producer(world, "followed up first", TV_0, 0.1).begin_anew()

    # ---- clients ---------------------------------------------------------------------------------------------------

    def _step(self, who: int, what: Coroutine[Any, Any, None]) -> None:
        """Begin it, if the client is idle, and let it come as far as it can in a moment."""
        running = self.running.get(who)
        if running is not None and not running.done():
            what.close()
            return
        if running is not None:
            running.result()

        async def begin() -> None:
            self.running[who] = asyncio.get_running_loop().create_task(what)
            await asyncio.sleep(0.0005)

        self.run(begin())

    @rule(who=WHO, where=WHERE)
    def produce(self, who: int, where: int) -> None:
        self._step(who, self._produce(self.producers[who], where))

    async def _produce(self, producer: Producer, *where: int) -> None:
        for at in [self.at[index % 4] for index in where]:
            if at.topic_id not in self.world.deleted:
                await producer.produce(at)

    @rule(who=WHO, where=WHERE, is_commit=st.booleans())
    def produce_and_end(self, who: int, where: int, is_commit: bool) -> None:
        self._step(who, self._whole(self.producers[who], where, is_commit))

    async def _whole(self, producer: Producer, where: int, is_commit: bool) -> None:
        """Some in a row: the next one begins as soon as it may, and the last one stays open."""
        for outcome in (is_commit, not is_commit):
            await self._produce(producer, where, where + 1)
            await producer.end(is_commit=outcome)
        await self._produce(producer, where)

    @rule(who=WHO, where=WHERE, is_commit=st.booleans(), plan=st.sampled_from(PLANS), same=st.booleans())
    def end_while_the_coordinator_moves(self, who: int, where: int, is_commit: bool, plan: str, same: bool) -> None:
        """The decision comes while the new one follows up what it loaded, and its first request is not answered."""
        self.produce(who=who, where=where)
        self.wait(seconds=0.05)
        self.move_coordinator(same=same, late=False)
        self.world.plan = [plan]

        async def go_on(producer: Producer) -> None:
            await producer.end(is_commit=is_commit)
            await self._whole(producer, where, not is_commit)

        self._step(who, go_on(self.producers[who]))
        self.wait(seconds=2.0)

    @rule(who=WHO, is_commit=st.booleans())
    def end(self, who: int, is_commit: bool) -> None:
        self._step(who, self.producers[who].end(is_commit=is_commit))

    @rule(who=WHO)
    def begin_anew(self, who: int) -> None:
        self._step(who, self.producers[who].begin_anew())

    # ---- time and faults -------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.001, 0.005, 0.02, 0.05, 0.3, 2.0, 12.0]))
    def wait(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule(same=st.booleans(), late=st.booleans())
    def move_coordinator(self, same: bool, late: bool) -> None:
        async def move() -> None:
            self.world.move(same=same, late=late)

        self.run(move())

    @rule()
    def bury_the_one_before(self) -> None:
        async def bury() -> None:
            self.world.bury()

        self.run(bury())

    @rule(plans=PLANNED)
    def plan_requests(self, plans: list[str]) -> None:
        self.world.plan = plans

    @rule(is_written=st.booleans(), count=st.integers(1, 3))
    def refuse_appends(self, is_written: bool, count: int) -> None:
        faults = self.world.memory.fail_after if is_written else self.world.memory.fail
        faults += [Retryable("not enough replicas")] * count

    @rule(is_held=st.booleans())
    def hold_the_log(self, is_held: bool) -> None:
        if is_held:
            self.world.memory.hold()
        else:
            self.world.memory.release()

    @rule(where=WHERE, leader=st.sampled_from([-1, 1, 2]))
    def move_partition(self, where: int, leader: int) -> None:
        self.world.leaders[self.at[where]] = leader
        self.world.image_changed()

    @rule()
    def delete_the_second_topic(self) -> None:
        async def delete() -> None:
            self.world.deleted.add(self.at[3].topic_id)
            self.world.ledger.deleted(self.at[3])
            self.world.image_changed()

        if all(task.done() for task in self.running.values()):  # no append is under way there
            self.run(delete())

    # ---- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_wrong(self) -> None:
        if hasattr(self, "world"):
            assert not self.world.ledger.wrong, self.world.ledger.wrong
            assert not self.world.failures, self.world.failures

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.run(self._heal())
        finally:
            for patch in self.patches:
                patch.stop()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.close()

    async def _heal(self) -> None:
        """Everything answers again: after the longest time-outs nothing is open, and nothing waits."""
        world = self.world
        world.bury()
        world.plan = []
        world.memory.fail, world.memory.fail_after = [], []
        world.memory.release()
        for at in self.at:
            world.leaders[at] = 1
        world.image_changed()
        await asyncio.sleep(120)
        for task in self.running.values():
            task.result()
        self.nothing_is_wrong()
        assert not world.ledger.still_open(), world.ledger.still_open()
        assert not len(world.coordinator.sender.pending)
        error, found, _ = await world.coordinator.listed(lambda of: not of.state.is_idle)
        assert not error and not found, (error, found)
        await world.bury_all()


# Without shrinking, which takes minutes: a finding has few steps that matter, and the names of its transactions.
CoordinatorMachine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=40, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
test_every_transaction_has_one_outcome = CoordinatorMachine.TestCase
