"""How late the event loop comes to what is due: everything else a client sees waits at least as long.

Owns the measure: a timer of a tenth of a second, and by how much it is late. Always true: one timer, whatever the load;
the longest lag is kept until it was read, so that no scrape misses it. Must not know who reads it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import Final

EVERY_S: Final = 0.1
LAG_BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class LoopLag:
    """A histogram, and the longest lag since it was taken."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(LAG_BOUNDS_S) + 1)
        self.seconds = 0.0
        self._longest_s = 0.0

    async def keep(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self.note(max(loop.time() - due_s, 0.0))

    def note(self, lag_s: float) -> None:
        self.buckets[bisect_left(LAG_BOUNDS_S, lag_s)] += 1
        self.seconds += lag_s
        self._longest_s = max(self._longest_s, lag_s)

    def take_longest(self) -> float:
        """Seconds, since the last call."""
        longest, self._longest_s = self._longest_s, 0.0
        return longest
