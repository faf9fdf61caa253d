"""A loop for unit tests in which waiting takes no time: timers fire in order, the clock jumps to the next one.

Owns nothing but its own time. Only for coroutines that wait on timers and each other: no threads, no sockets.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """Instead of blocking until the next timer, moves the time to it."""

    now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("deadlock: every task waits and no timer is set")
            self.now_s += timeout
        return ready


class FastLoop(asyncio.SelectorEventLoop):
    """`loop.time()` is the virtual time in seconds."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


class FastClock:
    """`Clock` of the running fast loop."""

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
    loop = FastLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
