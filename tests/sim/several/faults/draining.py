"""A broker is drained: it gives all its replicas to the others, stops, leaves the cluster, and comes back empty.

Owns that operator, who does what `cluster drain` and `cluster forget` do, step by step, on the newest image, and begins
each look anew. Always true: one broker is drained at a time; nothing that was acknowledged may be lost by it; a broker
that a partition is assigned to is not let go, however often an impatient operator asks. Must not know other faults,
though they go on meanwhile: a drain that does not come to its end in time is given up, and the broker goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from broker.error_codes import ErrorCode
from broker.metadata.image import ClusterImage
from broker.metadata.records import NO_LEADER
from broker.wire.apis import ApiKey
from broker.wire.messages import UnregisterBrokerRequest
from seams.rng import SeededRng
from tests.sim.actors import NO_ANSWER
from tests.sim.client import ServerError
from tests.sim.several.crowd import Crowd
from tests.sim.several.faults.kinds import Kind
from tests.sim.several.fleet import Fleet, Seat, rack_of
from tests.sim.world.cluster import Node
from thermocline.cli.cluster.moves.plan import Assignment, Place, Plan, drain

MOVED_S = 25.0
LEAVES_S = 10.0
_LOOKS_S = 0.5
_NOT_YET = (ErrorCode.INVALID_REQUEST, ErrorCode.BROKER_ID_NOT_REGISTERED)
"""It has a session, or partitions; or it left, and its answer was lost."""


class Draining:
    """Of one fleet. `stop` ends a broker cleanly, and says whether it did; `hits` counts what took effect."""

    def __init__(
        self, stage: Crowd, rng: SeededRng, hits: Counter[str], stop: Callable[[Seat], Awaitable[bool]]
    ) -> None:
        assert isinstance(stage.cluster, Fleet)
        self._stage = stage
        self._fleet: Fleet = stage.cluster
        self._rng = rng
        self._hits = hits
        self._stop = stop
        self._client = stage.client()
        self._is_draining = False

    async def drain(self, seat: Seat) -> None:
        """Until it came back empty, or somebody is in the way for too long."""
        if self._is_draining:
            return
        self._is_draining = True
        try:
            if self._rng.randrange(4) == 0:
                await self._ask_too_early(seat)
            elif await self._until(lambda: self._move(seat), MOVED_S) and await self._stopped(seat):
                await self._leave(seat, seat.node)
        finally:
            self._is_draining = False
            seat.back_at_s = min(seat.back_at_s, self._stage.now())

    async def _until(self, step: Callable[[], Awaitable[bool]], patience_s: float) -> bool:
        """Take steps until one says that it was the last; nobody goes on once faults are over."""
        deadline_s = self._stage.now() + patience_s
        while self._stage.now() < deadline_s and not self._stage.stopping.is_set():
            try:
                if await step():
                    return True
            except ServerError as refused:
                self._stage.answered(refused.code, "drain")
            except NO_ANSWER:
                pass
            await asyncio.sleep(_LOOKS_S)
        return False

    # --- its steps ---
    async def _move(self, seat: Seat) -> bool:
        """Ask for what is to move by now; whether nothing is, nor is on its way."""
        newest = self._fleet.newest()
        if newest is None:
            return False
        plan = plan_of(newest.image, seat.node_id)
        for move in plan.moves:
            await self._client.reassign(move.topic, move.partition, list(move.after))
            self._hits["replicas drained"] += 1
        return plan == Plan()

    async def _ask_too_early(self, seat: Seat) -> None:
        """Whoever stops it and does not wait for what it holds; the god sees what comes of it."""
        if await self._stopped(seat):
            try:
                await self._unregister(seat)
                self._hits["drain asked too early"] += 1
            except NO_ANSWER:
                pass

    async def _stopped(self, seat: Seat) -> bool:
        seat.back_at_s = float("inf")
        return await self._stop(seat)

    async def _leave(self, seat: Seat, node: Node | None) -> None:
        """It is empty when it comes back, once it left."""
        if await self._until(lambda: self._unregister(seat), LEAVES_S) and seat.node is node:
            self._fleet.replace(seat)
            self._hits[Kind.DRAIN.value] += 1

    async def _unregister(self, seat: Seat) -> bool:
        request = UnregisterBrokerRequest(broker_id=seat.node_id, is_given_up=False)
        answer = await self._client.call(ApiKey.UNREGISTER_BROKER, request, 12.0)
        if not answer.error_code:
            return True
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.CORRUPT_MESSAGE:  # it was taken, and only the check of the image stood in the way
            self._stage.unexpected.append(f"UnregisterBroker of {seat.node_id}: {answer.error_message}")
        elif code not in _NOT_YET:
            self._stage.answered(code, "UnregisterBroker", answer.error_message)
        newest = self._fleet.newest()
        return newest is not None and seat.node_id not in newest.image.nodes


def plan_of(image: ClusterImage, node_id: int) -> Plan:
    """As `cluster drain` makes it, of partitions whose bytes nobody looked at."""
    places = [Place(node.node_id, rack_of(node.node_id), node.active) for _, node in sorted(image.nodes.items())]
    held = [
        Assignment(topic.name, index, row.replicas, row.target, row.leader != NO_LEADER)
        for topic in sorted(image.topics.values(), key=lambda topic: topic.name)
        for index, row in enumerate(topic.rows)
    ]
    return drain(places, held, node_id)
