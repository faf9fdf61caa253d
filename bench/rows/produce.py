"""Rows of produce: Kafka's own producer with its default batches, the load generator, and p99 at a fixed rate."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from bench import loads
from bench.sides import Side
from bench.stage import TOUCHED, Stage
from bench.table import Floor, Measured, Row

PERF: Final = {"records": 400_000, "warmup": 100_000}


class Shape(NamedTuple):
    """What the load generator sends, and the floors."""

    batch: int  # bytes
    connections: int
    record: int  # bytes
    ratio: float
    cpu_ratio: float
    seconds: float = 6.0
    warm: float = 2.0
    nbytes: int = TOUCHED  # more than is written in a turn


SHAPES: Final = {
    "100b": Shape(100, 16, 100, 2.3, 0.3),
    "1kb": Shape(1024, 16, 900, 1.8, 0.4),
    "16kb": Shape(16 << 10, 4, 1024, 2.5, 0.3, nbytes=6 << 30),
    # 0.7 to 1.4 GB/s: longer, and what is measured are the kernel's limits of dirty pages.
    "128kb": Shape(128 << 10, 4, 1024, 1.5, 0.5, 4.0, 1.0, 8 << 30),
    "1mb": Shape(1 << 20, 4, 1024, 1.7, 0.5, 4.0, 1.0, 10 << 30),
}


def perf_page_cache(partitions: int, stage: Stage) -> list[Row]:
    """acks=1: neither side waits for a disk."""
    ours = stage.synced
    kafka = stage.peer_of(ours)
    work = f"ProducerPerformance 1 KB, acks=1, default batches, partitions: {partitions}"
    row = Row(f"perf-acks1-{partitions}p", work, "MB/s", Floor(1.5 if partitions == 1 else 1.3))

    def run(side: Side) -> Measured:
        performance = partial(loads.producer_performance, side, acks="1", **PERF)
        return stage.writing(side, row.name, partitions, lambda topic: Measured.speed(performance(topic)))

    return stage.compare(row, lambda: run(kafka), lambda: run(ours))


def perf_synced(partitions: int, stage: Stage) -> list[Row]:
    """The producer's own defaults (acks=all, idempotence), ours with fdatasync before the ack.

    Against Kafka that does so too, and against Kafka that does not.
    """
    ours = stage.synced
    kafka = stage.peer_of(ours)
    name, work = (
        f"perf-sync-{partitions}p",
        f"ProducerPerformance 1 KB, its defaults (acks=all, idempotence), partitions: {partitions}",
    )
    flushed = Row(f"{name}/flushed", f"{work}; Kafka with flush.messages=1", "MB/s", Floor(4.0))
    default = Row(f"{name}/default", f"{work}; Kafka's default, no fsync", "MB/s", Floor(1.0))

    def run(side: Side, records: int, warmup: int, **configs: object) -> Measured:
        performance = partial(loads.producer_performance, side, records=records, warmup=warmup)
        return stage.writing(side, name, partitions, lambda topic: Measured.speed(performance(topic)), **configs)

    def both() -> None:
        found = run(ours, **PERF)
        flushed.ours.append(found)
        default.ours.append(found)

    if stage.beside is not None:  # the other version syncs as ours does
        return stage.compare(default, lambda: run(kafka, **PERF), lambda: run(ours, **PERF))
    stage.rounds_of(
        [flushed, default],
        lambda: flushed.peer.append(run(kafka, 100_000, 20_000, flush_messages=1)),
        lambda: default.peer.append(run(kafka, **PERF)),
        both,
    )
    return [flushed, default]


def closed_loop(shape: str, stage: Stage) -> list[Row]:
    """The load generator as fast as it goes, page cache on both sides."""
    ours = stage.paged
    kafka = stage.peer_of(ours)
    batch, connections, record, ratio, cpu_ratio, seconds, warm, nbytes = SHAPES[shape]
    work = f"produce {batch:,} B × {connections} connections × 5 in flight (flush=os)"
    row = Row(f"produce-{shape}", work, "requests/s", Floor(ratio), cpu_ratio)

    def run(side: Side) -> Measured:
        def load(topic: str) -> Measured:
            return Measured.requests(loads.produce(side, topic, connections, batch, record, seconds=seconds, warm=warm))

        return stage.writing(side, row.name, connections, load, nbytes)

    return stage.compare(row, lambda: run(kafka), lambda: run(ours))


def paced(acks: str, floor: Floor, stage: Stage) -> list[Row]:
    """p99 at 4 000 requests/s; Kafka with acks=1 and no fsync in either row."""
    ours = stage.synced
    kafka = stage.peer_of(ours)
    row = Row(f"p99-acks{acks}", f"produce 1 KB at 4 000 requests/s, acks={acks}; Kafka acks=1: p99", "ms", floor)
    kafka_acks = "1" if stage.beside is None else acks

    def run(side: Side, acks: str) -> Measured:
        def load(topic: str) -> Measured:
            return Measured.p99(loads.produce(side, topic, 4, 1024, 900, acks=acks, rate=4000, warm=2.0, seconds=8.0))

        return stage.writing(side, row.name, 4, load)

    return stage.compare(row, lambda: run(kafka, kafka_acks), lambda: run(ours, acks))


BENCHMARKS: Final = {
    "perf-acks1-1p": partial(perf_page_cache, 1),
    "perf-acks1-8p": partial(perf_page_cache, 8),
    "perf-sync-1p": partial(perf_synced, 1),
    "perf-sync-8p": partial(perf_synced, 8),
    **{f"produce-{shape}": partial(closed_loop, shape) for shape in SHAPES},
    "p99-acks1": partial(paced, "1", Floor(0.5, 1.0, lower_is_better=True)),
    "p99-acksall": partial(paced, "all", Floor(1.0, 5.0, lower_is_better=True)),
}
