"""`Workers` without threads: for tests on one loop, in virtual time or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from seams.loop.workers import Lane

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class InlineWorkers:
    """Runs a call where it stands: what it raises, a power cut too, ends its caller at once."""

    async def run(self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane = Lane.FILES) -> T:
        return function(*args)


class LoopWorkers:
    """Runs a call one turn of the loop later; remembers the lanes."""

    def __init__(self) -> None:
        self.lanes: list[Lane] = []

    async def run(self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane = Lane.FILES) -> T:
        self.lanes.append(lane)
        await asyncio.sleep(0)
        return function(*args)
