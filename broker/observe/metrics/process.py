"""The process in `/metrics`: which version, since when, how much CPU, memory and descriptors, how late its loop.

Owns these names; `process_*` are those every Prometheus exporter uses. Always true: there from the first second. Must
not know what the process does.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric

from broker.observe.loop_lag import LAG_BOUNDS_S, LoopLag
from broker.observe.metrics.families import gauge, gauges, histogram

_PROCESS: Final = ProcessCollector(registry=None)


def _version() -> str:
    try:
        return version("thermocline")
    except PackageNotFoundError:
        return "unknown"  # run from a tree that was never installed


VERSION: Final = _version()


def process_metrics(lag: LoopLag) -> Iterator[Metric]:
    """Build, process, loop."""
    yield gauges(
        "build_info",
        "always 1; the labels say what runs here: count by version (…) shows a roll-out",
        ["version", "python"],
        {(VERSION, platform.python_version()): 1.0},
    )
    yield from _PROCESS.collect()
    yield histogram(
        "loop_lag_seconds",
        "by how much the event loop is late, looked at ten times a second; every answer waits so long. Above 0.1: "
        "something holds the loop, or the machine has no CPU to give",
        LAG_BOUNDS_S,
        [((), lag.buckets, lag.seconds)],
    )
    yield gauge("loop_lag_max_seconds", "the longest lag since the last scrape", lag.take_longest())
