"""All machines of a cluster are lost under load, others are started on its bucket, and an operator restores it.

Owns that one fault and its mending: the operator does what `cluster restore` says, step by step, on the newest image.
Always true: who is lost has no power again, unless he is started under his old node id on an empty directory; every
request of the operator may fail, and he begins each look anew. What every run asks, this asks too: no offset shows two
records, what the bucket held is read again, every partition serves, every set is full. In half of the runs producers
with open transactions go on over it (E10): nothing that began before is committed after. `replay` replays one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from broker.controller.decisions.placement import Replicas
from broker.metadata.image import ClusterImage
from broker.observe.cluster_status import broker_row, partition_row
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    UnregisterBrokerRequest,
)
from seams.rng import SeededRng
from tests.sim.actors import NO_ANSWER
from tests.sim.checks.history import Place
from tests.sim.checks.transactions import ALL_MACHINES
from tests.sim.client import ServerError
from tests.sim.playing import Outcome, played
from tests.sim.run import BROKER_SETTINGS
from tests.sim.several.crowd import RoutedClient
from tests.sim.several.fleet import Fleet, Seat, brokers_are_seen
from tests.sim.several.run import SeveralBrokers, Shape, shape_of
from tests.sim.transactions.cast import SETTINGS as TRANSACTION_SETTINGS
from tests.sim.transactions.cast import transactions_of
from tests.sim.world.loop import SimLoop
from thermocline.cli.cluster.restore.plan import Step, next_step

BROKERS = 3
DURATION_S = 25.0
RESTORED_S = 90.0
"""From the first of the new brokers on: a lease, sessions that end, a step back of 10 s, replicas on their way."""


class Others(StrEnum):
    """Who is there afterwards."""

    SAME = "same ids"
    FEWER_SAME = "fewer, same ids"
    FEWER = "fewer, other ids"
    MORE = "more, other ids"
    MIXED = "one old id, two others"


SEATS: Mapping[Others, tuple[int, ...]] = {
    Others.SAME: (0, 1, 2),
    Others.FEWER_SAME: (0, 2),
    Others.FEWER: (3, 4),
    Others.MORE: (3, 4, 5, 6),
    Others.MIXED: (1, 3, 4),
}


def replay(seed: int) -> Outcome:
    """Run a seed to its end. Deterministic."""
    drawn = shape_of(seed, BROKERS, DURATION_S)
    shape = replace(drawn, kinds=(), faults=(), deaf=False)
    others = tuple(Others)[SeededRng(f"restoring/{seed}").randrange(len(Others))]

    shape, more = with_transactions(shape, f"restoring/{seed}")

    def make(loop: SimLoop) -> Restored:
        settings = [*BROKER_SETTINGS, *more, *shape.settings]
        return Restored(shape, Fleet(loop, f"restoring/{seed}", BROKERS, settings, spares=4), others)

    with brokers_are_seen():
        return played(make)


def with_transactions(shape: Shape, name: str) -> tuple[Shape, Sequence[str]]:
    """In half of the runs of these names, drawn apart; and the settings for that."""
    if SeededRng(f"{name}/has transactions").randrange(2):
        return shape, ()
    return replace(shape, transactions=transactions_of(name, more_lines=2)), TRANSACTION_SETTINGS


class Restored(SeveralBrokers):
    """The acts of one run."""

    def __init__(self, shape: Shape, fleet: Fleet, others: Others) -> None:
        super().__init__(shape, fleet)
        self._others = others
        self._choices = SeededRng(f"restoring/{shape.seed}/choices")
        self._moving = SeededRng(f"restoring/{shape.seed}/moving")  # apart, so that the other half is as it was
        self._operator = self._crowd.client()
        assert isinstance(self._operator, RoutedClient)

    @property
    def fences_unasked(self) -> bool:
        """Whoever begins in a cluster made anew ends what is open there."""
        return True

    async def break_things(self) -> None:
        """Half of the load before, half after."""
        await asyncio.sleep(self._choices.uniform(0.3, 0.6) * DURATION_S)
        if self._moving.randrange(2):
            await self._begin_a_move()
        await self._lose_all()
        await asyncio.sleep(self._choices.uniform(0.0, 6.0))
        self._sit_others()
        await self._restore()
        await self._stage.stopping.wait()

    async def _begin_a_move(self) -> None:
        """Of one partition, to a machine that is lost just before the others: what was on its way to it stays so."""
        rng = self._moving
        place = (("log", 0), ("log", 1), ("kept", 0))[rng.randrange(3)]
        stays = rng.randrange(BROKERS)
        joins = (stays + 1 + rng.randrange(BROKERS - 1)) % BROKERS
        await self._do(Step([], {place: (stays,)}, [], []))
        await self._until(lambda: not self._is_moving())
        await self._lose([self._fleet.seats[joins]], "its machine")
        asked = asyncio.ensure_future(self._do(Step([], {place: (stays, joins)}, [], [])))
        await self._until(self._is_moving)
        asked.cancel()
        await asyncio.wait([asked])
        if self._is_moving():
            self._nemesis.hits["lost on the move"] += 1

    async def _until(self, condition: Callable[[], bool]) -> None:
        """For three seconds at most."""
        deadline_s = self._stage.now() + 3.0
        while not condition() and self._stage.now() < deadline_s:
            await asyncio.sleep(0.01)

    def _is_moving(self) -> bool:
        image = self._newest_there()
        return image is not None and any(row.target for topic in image.topics.values() for row in topic.rows)

    async def _lose_all(self) -> None:
        """At one moment. A request that is under way to the bucket may still land."""
        self._nemesis.note(f"all machines are lost; then: {self._others}")
        await self._lose(self._fleet.seats, ALL_MACHINES)
        self._nemesis.hits["all machines lost"] += 1

    async def _lose(self, seats: Sequence[Seat], kind: str) -> None:
        for seat in seats:
            seat.back_at_s = float("inf")
            if seat.node is not None and not seat.node.dead:
                self._fleet.lose_disk(seat)
        for seat in seats:
            await self._losses.lose(seat, kind)

    def _sit_others(self) -> None:
        fleet = self._fleet
        chosen = [seat for seat in fleet.everywhere if seat.node_id in SEATS[self._others]]
        for seat in chosen:
            seat.back_at_s, seat.blank = self._stage.now() + self._choices.uniform(0.0, 2.0), True
        fleet.seats[:] = chosen
        self._nemesis.hits[f"restored by {self._others}"] += 1

    # ── the operator ─────────────────────────────────────────────────────────────────────────────────────────────
    async def _restore(self) -> None:
        deadline_s = self._stage.now() + RESTORED_S
        while self._stage.now() < deadline_s:
            await asyncio.sleep(0.5)
            image = self._newest_there()
            silent = (
                () if image is None else [n for n in image.nodes.values() if n.active and self._is_silent(n.node_id)]
            )
            if image is None or silent:
                continue
            step = self._step_of(image)
            if step.is_done:
                return
            await self._do(step)
        left = None if image is None else (self._step_of(image), image.nodes, [t.rows for t in image.topics.values()])
        self.found("not-restored", f"{RESTORED_S:.0f} s after {self._others} came: {left}")

    def _newest_there(self) -> ClusterImage | None:
        """As those say who are there now; the dead knew nothing newer."""
        found = max(self._fleet.obeyed(), key=lambda obeyed: obeyed.position, default=None)
        return None if found is None else found.image

    def _is_silent(self, node_id: int) -> bool:
        seat: Seat | None = next((seat for seat in self._fleet.seats if seat.node_id == node_id), None)
        return seat is None or not seat.serving

    def _step_of(self, image: ClusterImage) -> Step:
        """As `cluster restore` takes it from `cluster.json`, when the operator gives up who does not return."""
        brokers = [broker_row(node) for _, node in sorted(image.nodes.items())]
        topics = sorted(image.topics.values(), key=lambda topic: topic.name)
        partitions = [partition_row(topic, index, image) for topic in topics for index in range(topic.partitions)]
        gone = {(one.node, one.broker_epoch) for one in brokers if one.node not in SEATS[self._others]}
        return next_step(brokers, partitions, {}, may_give_up=gone)

    async def _do(self, step: Step) -> None:
        try:
            for node_id in (*step.give_up, *step.leave):
                request = UnregisterBrokerRequest(broker_id=node_id, is_given_up=True)
                answer = await self._operator.call(ApiKey.UNREGISTER_BROKER, request, 12.0)
                self._nemesis.note(f"node {node_id} is given up: {answer.error_code} {answer.error_message}")
            if step.move:
                self._nemesis.hits["replicas placed anew"] += len(step.move)
                await self._move(step.move)
        except ServerError as refused:
            self._stage.answered(refused.code, "restore")
        except NO_ANSWER:
            pass

    async def _move(self, moves: Mapping[Place, Replicas]) -> None:
        topics: dict[str, list[AlterPartitionReassignmentsRequestPartition]] = {}
        for (topic, index), to in moves.items():
            topics.setdefault(topic, []).append(AlterPartitionReassignmentsRequestPartition(index, list(to)))
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=10_000,
            topics=[AlterPartitionReassignmentsRequestTopic(name, parts) for name, parts in topics.items()],
        )
        answer = await self._operator.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, 12.0)
        for topic in answer.responses:
            for part in topic.partitions:
                if part.error_code:
                    self._nemesis.note(f"{topic.name}-{part.partition_index} is not moved: {part.error_message}")
