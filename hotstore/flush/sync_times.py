"""How long syncs took, from being asked for to being told: what every acknowledged batch waited for.

Owns the counts since the start. Always true: noting costs a bisection. Must not know what was synced.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

SYNC_BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Upper bounds of the buckets; one more holds what took longer."""


class SyncTimes:
    """A histogram, failures apart."""

    __slots__ = ("buckets", "failed_count", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(SYNC_BOUNDS_S) + 1)
        self.seconds = 0.0
        self.failed_count = 0

    def note(self, seconds: float) -> None:
        self.buckets[bisect_left(SYNC_BOUNDS_S, seconds)] += 1
        self.seconds += seconds
