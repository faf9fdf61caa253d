"""Tiers that are attached and not at work yet: their claims and copies would slow down the opening of all others.

Owns who waits, and for how long. Always true: a tier begins once, when nothing is being opened any more; or `HOLD_S`
after it was attached at the latest, unless a start waits for all, so that partitions which do not open keep no others
from the bucket. Must not know what is being opened, nor what a tier does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

HOLD_S: Final = 10.0
"""Well below the minute within which a new leader is to claim (R23)."""


class DeferredStart:
    """Of one broker; used on the loop. What waits is a tier's `start`, which does nothing for one that is closed."""

    def __init__(self) -> None:
        self._opening = 0
        self._starting = 0
        self._waiting: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def while_opening(self, *, is_start: bool = False) -> Iterator[None]:
        """Hold back what is attached until the last of these ends; `is_start`: however long that takes."""
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
        """Call `start` now, or when nobody holds it back."""
        if not self._opening:
            start()
            return
        self._waiting.append(start)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HOLD_S, self._too_long)

    def close(self) -> None:
        """Begin nothing more."""
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
