"""Coroutines in virtual time: the simulation's loop, and a clock that follows it. Every `async def test_` runs here.

Only for what waits on timers and on each other: no threads, no sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from tests.sim.world.loop import SimLoop

T = TypeVar("T")

HOUR_S: Final = 3600.0


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


def run_fast(coroutine: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
    """Run to the end in virtual time; `timeout_s` of it bound what never comes (an hour, for coroutine tests)."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout_s):
            return await coroutine

    loop = SimLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(bounded())
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
