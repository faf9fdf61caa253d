"""Rows of reading what the page cache holds, and of what only the cold tier's directory holds."""

from __future__ import annotations

from functools import partial
from typing import Final

from bench import loads
from bench.sides import Side
from bench.stage import Stage
from bench.table import Floor, Measured, Row


def perf(partitions: int, cold: bool, floor: float, stage: Stage) -> list[Row]:
    """Kafka's own consumer with its defaults."""
    ours = stage.synced
    kafka = stage.peer_of(ours)
    tier = "cold" if cold else "hot"
    row = Row(
        f"{tier}-perf-{partitions}p", f"ConsumerPerformance {tier}, partitions: {partitions}", "MB/s", Floor(floor)
    )

    def run(side: Side) -> Measured:
        log = stage.log(side, partitions, cold=cold)
        records = int(log.end * partitions * 0.95)
        return stage.reading(side, lambda: Measured.speed(loads.consumer_performance(side, log.topic, records)))

    return stage.compare(row, lambda: run(kafka), lambda: run(ours))


def fetch(partitions: int, cold: bool, floor: float, stage: Stage) -> list[Row]:
    """The load generator, in order, one fetch of 1 MB in flight a partition."""
    ours = stage.synced
    kafka = stage.peer_of(ours)
    tier = "cold" if cold else "hot"
    row = Row(
        f"{tier}-fetch-{partitions}p", f"fetch 1 MB {tier}, in order, connections: {partitions}", "MB/s", Floor(floor)
    )

    def run(side: Side) -> Measured:
        log = stage.log(side, partitions, cold=cold)
        return stage.reading(side, lambda: Measured.speed(loads.fetch(side, log.topic, partitions, log.end, w=1.0)))

    return stage.compare(row, lambda: run(kafka), lambda: run(ours))


BENCHMARKS: Final = {
    "hot-perf-1p": partial(perf, 1, False, 1.15),
    "hot-perf-8p": partial(perf, 8, False, 1.15),
    "hot-fetch-1p": partial(fetch, 1, False, 1.0),
    "cold-perf-1p": partial(perf, 1, True, 1.5),
    "cold-perf-8p": partial(perf, 8, True, 1.3),
    "cold-fetch-1p": partial(fetch, 1, True, 1.2),
    "cold-fetch-8p": partial(fetch, 8, True, 1.0),
}
