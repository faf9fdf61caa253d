"""What operators ask for while things break: other places for replicas, another minimum of them in sync.

Owns how it is asked, and counts what was taken. Always true: an answer that no fault explains is a finding; who gets no
answer asks no more. Must not know faults, nor when it is asked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from seams.rng import SeededRng
from tests.sim.actors import NO_ANSWER
from tests.sim.checks.history import Place
from tests.sim.client import ServerError
from tests.sim.several.crowd import Crowd
from tests.sim.several.faults.kinds import Kind
from tests.sim.several.fleet import Fleet


class Settings:
    """Of one fleet. `places`: partitions that clients know."""

    def __init__(self, stage: Crowd, rng: SeededRng, places: Sequence[Place], hits: Counter[str]) -> None:
        assert isinstance(stage.cluster, Fleet)
        self._stage = stage
        self._fleet: Fleet = stage.cluster
        self._rng = rng
        self._places = places
        self._hits = hits
        self._client = stage.client()

    def drawn_moves(self) -> tuple[Place, list[list[int] | None]]:
        """Of some partition, groups' too: whom to ask to hold it, once or several times, seldom nobody new (None)."""
        rng, places = self._rng, self._fleet.partitions() or list(self._places)
        moves: list[list[int] | None] = []
        for _ in range((1, 1, 2, 3)[rng.randrange(4)]):
            left = [seat.node_id for seat in self._fleet.seats]
            chosen = [left.pop(rng.randrange(len(left))) for _ in range(1 + rng.randrange(len(left)))]
            moves.append(None if moves and rng.randrange(3) == 0 else chosen)
        return places[rng.randrange(len(places))], moves

    async def move(self, place: Place, moves: list[list[int] | None]) -> None:
        for replicas in moves:
            try:
                await self._client.reassign(*place, replicas)
                self._hits[Kind.MOVE.value] += 1
            except ServerError as refused:
                self._stage.answered(refused.code, "reassignment")
            except NO_ANSWER:
                return
            await asyncio.sleep(self._rng.uniform(0.0, 1.5))

    async def set_minimum(self, topic: str, least: int) -> None:
        try:
            await self._client.set_config(topic, "min.insync.replicas", str(least))
            self._hits[Kind.MINIMUM.value] += 1
        except ServerError as refused:
            self._stage.answered(refused.code, "min.insync.replicas")
        except NO_ANSWER:
            pass
