"""What operators ask for while things break: other places for replicas, another minimum of them in sync, other tiers.

Owns how it is asked, and counts what was taken. Always true: an answer that no fault explains is a finding; who gets no
answer asks no more. Must not know faults, nor when it is asked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from broker.error_codes import ErrorCode
from seams.rng import SeededRng
from tests.sim.actors import NO_ANSWER
from tests.sim.checks.history import Place
from tests.sim.client import ServerError
from tests.sim.several.crowd import Crowd
from tests.sim.several.faults.kinds import Kind
from tests.sim.several.fleet import Fleet

_ON_DISK: Final = tuple({"local.retention.bytes": size} for size in ("1", "4000", "12000", "-2"))
_COPIES: Final = tuple(
    {"remote.log.copy.disable": wanted, "local.retention.bytes": "-2"} for wanted in ("true", "false")
)
_TIERS: Final = (
    {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"},
    {"remote.storage.enable": "true"},
    {"remote.storage.enable": "true", "remote.log.copy.disable": "false"},
)
_KEPT: Final = tuple({"retention.bytes": size} for size in ("-1", "15000", "30000", "60000"))
_SIZES: Final = tuple({"internal.segment.bytes": size} for size in ("2500", "6000"))
CHANGES: Final[Mapping[str, Sequence[Mapping[str, str]]]] = {
    "log": (*_ON_DISK, *_COPIES, *_SIZES),
    "kept": (*_ON_DISK, *_COPIES, *_SIZES, *_TIERS, *_TIERS, *_KEPT),
}
"""Configs by topic that lose no record above the log start; retention moves the start of `kept`."""


class Settings:
    """Of one fleet. `places`: partitions that clients know."""

    def __init__(self, stage: Crowd, rng: SeededRng, places: Sequence[Place], hits: Counter[str]) -> None:
        assert isinstance(stage.cluster, Fleet)
        self._stage = stage
        self._fleet: Fleet = stage.cluster
        self._rng = rng
        self._places = places
        self._hits = hits
        self._changes = stage.rng("configs")
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
        await self._set(topic, {"min.insync.replicas": str(least)}, Kind.MINIMUM)

    async def change(self) -> None:
        """Some of `CHANGES`, one after the other."""
        rng = self._changes
        for _ in range(1 + rng.randrange(3)):
            topic = ("log", "kept", "kept")[rng.randrange(3)]
            await self._set(topic, CHANGES[topic][rng.randrange(len(CHANGES[topic]))], Kind.CONFIGS)
            await asyncio.sleep(rng.uniform(0.0, 1.0))

    async def copy_again(self) -> bool:
        """Whether both topics are tiered and copied again."""
        return all([await self._set(topic, _TIERS[-1], Kind.CONFIGS) for topic in CHANGES])

    async def _set(self, topic: str, configs: Mapping[str, str], kind: Kind) -> bool:
        try:
            await self._client.set_configs(topic, configs)
            self._hits[kind.value] += 1
            return True
        except ServerError as refused:
            if refused.code != ErrorCode.INVALID_CONFIG:  # as the topic is by now, these contradict others of it
                self._stage.answered(refused.code, ", ".join(configs))
        except NO_ANSWER:
            pass
        return False
