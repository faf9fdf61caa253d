"""Looks whether a store that is away is back: one at a time, however many queues of work wait for it.

Owns the line of the queues that are refused whatever they try, and the one timer. Always true: among all of them one
job is let out every `LOOK_S` seconds or so, each queue in its turn; when one finds the store back, the others look at
once, so that a longer line does not make anybody wait longer. Must not know which queues there are, nor when one is to
be in the line (work_queue)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from seams.rng import Rng

LOOK_S: Final = 4.0  # between two looks while the store is away; writes are to resume within 10 s of its return
_JITTER: Final = 0.2

Look = Callable[[], bool]
"""Let one job out; False: there is none, or no place for it."""


class StoreRecovery:
    """Of one store."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._line: list[Look] = []
        self._timer: asyncio.TimerHandle | None = None

    def join(self, look: Look) -> None:
        """From now on it has its turns; no change where it has them already."""
        if look not in self._line:
            self._line.append(look)
        self._later()

    def leave(self, look: Look) -> None:
        """It has none any more."""
        if look in self._line:
            self._line.remove(look)

    def back(self) -> None:
        """Somebody found the store back: all that wait look now."""
        for look in tuple(self._line):
            look()

    def _later(self) -> None:
        if self._timer is None and self._line:
            wait_s = LOOK_S * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._next)

    def _next(self) -> None:
        self._timer = None
        for look in tuple(self._line):
            self._line.remove(look)
            self._line.append(look)
            if look():
                break
        self._later()
