"""Coroutines in virtual time, for unit tests that need no broker: the simulation's loop and a clock that follows it.

Only for what waits on timers and on each other: no threads, no sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.sim.world.loop import SimLoop

T = TypeVar("T")


class FastClock:
    """`Clock` of the running loop."""

    def wall_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def boottime_s(self) -> float:
        return asyncio.get_running_loop().time()

    def boot_id(self) -> str:
        return "fast"


def run_fast(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time."""
    loop = SimLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
