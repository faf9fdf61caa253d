"""How long requests take, by API: from the moment a frame is dispatched until its answer may leave.

Owns the buckets. Always true: to note a request costs a bisection and two additions (0.3 µs with the two clock
readings), no lock, no allocation. Must not know HTTP, nor what an API does.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0)
"""Upper bounds of the buckets; one more holds what took longer."""


class Latencies:
    """One histogram an API key, all of them from the start."""

    __slots__ = ("buckets", "seconds")

    def __init__(self, api_keys: int) -> None:
        self.buckets = [[0] * (len(BOUNDS_S) + 1) for _ in range(api_keys)]
        self.seconds = [0.0] * api_keys

    def note(self, api_key: int, seconds: float, count: int = 1) -> None:
        """`count` requests of one API were answered `seconds` after they came."""
        self.buckets[api_key][bisect_left(BOUNDS_S, seconds)] += count
        self.seconds[api_key] += seconds * count
