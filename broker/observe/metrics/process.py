"""Metrics of the process: version, CPU, memory, descriptors (`process_*`, as in every exporter), event loop lag."""

from __future__ import annotations

import asyncio
import platform
from bisect import bisect_left
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric

from broker.observe.metrics.families import gauge, gauges, histogram

EVERY_S: Final = 0.1
LAG_BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_PROCESS: Final = ProcessCollector(registry=None)


def _version() -> str:
    try:
        return version("thermocline")
    except PackageNotFoundError:
        return "unknown"  # the broker runs from a tree that was not installed


VERSION: Final = _version()


class LoopLag:
    """Delays with which the event loop runs a timer of 0.1 s: a histogram, and the longest delay since the last scrape.
    Each delay also delays every response."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(LAG_BOUNDS_S) + 1)
        self.seconds = 0.0
        self._longest_s = 0.0

    async def keep(self) -> None:
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
        """The longest lag in seconds since the last call."""
        longest, self._longest_s = self._longest_s, 0.0
        return longest


def process_metrics(lag: LoopLag) -> Iterator[Metric]:
    yield gauges(
        "build_info",
        "always 1; the labels name the version and the Python; count by (version) shows a roll-out",
        ["version", "python"],
        {(VERSION, platform.python_version()): 1.0},
    )
    yield from _PROCESS.collect()
    yield histogram(
        "loop_lag_seconds",
        "lateness of the event loop, measured ten times a second; every answer waits that long. Above 0.1: something "
        "blocks the loop, or the machine has no CPU left",
        LAG_BOUNDS_S,
        [((), lag.buckets, lag.seconds)],
    )
    yield gauge("loop_lag_max_seconds", "the longest lag since the last scrape", lag.take_longest())
