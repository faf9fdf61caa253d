"""Deferred starts of attached tiers: claims and copies would slow down the opening of logs.

A tier starts once, when no log is being opened. Unless the broker itself is starting, a tier starts at the latest
`DEFER_S_MAX` after it was attached. Partitions that fail to open thus do not delay others for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

DEFER_S_MAX: Final = 10.0
"""Longest deferral, much shorter than the minute in which a new leader must claim (R23)."""


class DeferredStart:
    """The deferred starts of one broker; used on the loop. A tier's `start` does nothing if it is closed."""

    def __init__(self) -> None:
        self._opening = 0
        self._starting = 0
        self._waiting: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def while_opening(self, *, is_start: bool) -> Iterator[None]:
        """Defer starts until the last of these contexts ends; with `is_start` there is no time limit."""
        self._opening += 1
        self._starting += is_start
        try:
            yield
        finally:
            self._opening -= 1
            self._starting -= is_start
            if not self._opening:
                self._begin()

    def attached(self, start: Callable[[], None]) -> None:
        """Call `start` now, or when it is no longer deferred."""
        if not self._opening:
            start()
            return
        self._waiting.append(start)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DEFER_S_MAX, self._too_long)

    def close(self) -> None:
        """Make no further starts."""
        self._waiting.clear()
        self._end_timer()

    def _too_long(self) -> None:
        self._timer = None
        if not self._starting:
            self._begin()

    def _begin(self) -> None:
        self._end_timer()
        waiting, self._waiting = self._waiting, []
        for start in waiting:
            start()

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
