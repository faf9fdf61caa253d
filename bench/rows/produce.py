"""Rows of produce: Kafka's own producer with its default batches, the load generator, and p99 at a fixed rate."""

from __future__ import annotations

from functools import partial
from typing import Final

from bench import loads
from bench.stage import Stage
from bench.table import Floor, Measured, Row

PERF_RECORDS: Final = 400_000
SHAPES: Final = {  # name: bytes of a batch, connections, bytes of a record, floor
    "100b": (100, 16, 100, 2.0),
    "1kb": (1024, 16, 900, 2.0),
    "16kb": (16 << 10, 4, 1024, 3.0),
    "128kb": (128 << 10, 4, 1024, 3.0),
    "1mb": (1 << 20, 4, 1024, 3.0),
}


def perf_page_cache(partitions: int, stage: Stage) -> list[Row]:
    """acks=1: neither side waits for a disk."""
    ours = stage.synced
    kafka = stage.peer_of(ours)
    work = f"ProducerPerformance 1 KB, acks=1, default batches, partitions: {partitions}"
    row = Row(f"perf-acks1-{partitions}p", work, "MB/s", Floor(1.3), 0.33)
    with stage.topics([kafka, ours], row.name, partitions) as topic:
        run = partial(loads.producer_performance, topic=topic, acks="1", records=PERF_RECORDS, warmup=100_000)
        return stage.compare(row, lambda: Measured.speed(run(kafka)), lambda: Measured.speed(run(ours)))


def perf_synced(partitions: int, stage: Stage) -> list[Row]:
    """acks=all, ours with fdatasync before the ack: against Kafka that does so too, and against Kafka that does not."""
    ours = stage.synced
    kafka = stage.peer_of(ours)
    name, work = f"perf-sync-{partitions}p", f"ProducerPerformance 1 KB, acks=all, partitions: {partitions}"
    flushed = Row(f"{name}/flushed", f"{work}; Kafka with flush.messages=1", "MB/s", Floor(4.0))
    default = Row(f"{name}/default", f"{work}; Kafka's default, no fsync", "MB/s", Floor(1.0))
    run = partial(loads.producer_performance, acks="all")

    def both() -> None:
        found = Measured.speed(run(ours, topic=topic, records=PERF_RECORDS, warmup=100_000))
        flushed.ours.append(found)
        default.ours.append(found)

    with (
        stage.topics([kafka, ours], name, partitions) as topic,
        stage.topics([kafka], f"{name}-flushed", partitions, flush_messages=1) as slow,
    ):
        stage.rounds_of(
            [flushed, default],
            lambda: flushed.peer.append(Measured.speed(run(kafka, topic=slow, records=100_000, warmup=20_000))),
            lambda: default.peer.append(Measured.speed(run(kafka, topic=topic, records=PERF_RECORDS, warmup=100_000))),
            both,
        )
    return [flushed, default]


def closed_loop(shape: str, stage: Stage) -> list[Row]:
    """The load generator as fast as it goes, page cache on both sides."""
    ours = stage.paged
    kafka = stage.peer_of(ours)
    batch, connections, record, floor = SHAPES[shape]
    work = f"produce {batch:,} B × {connections} connections × 5 in flight (flush=os)"
    row = Row(f"produce-{shape}", work, "requests/s", Floor(floor))
    with stage.topics([kafka, ours], row.name, connections) as topic:
        run = partial(loads.produce, topic=topic, connections=connections, batch=batch, record=record)
        return stage.compare(row, lambda: Measured.requests(run(kafka)), lambda: Measured.requests(run(ours)))


def paced(acks: str, floor: Floor, stage: Stage) -> list[Row]:
    """p99 at 4 000 requests/s; Kafka with acks=1 and no fsync in either row."""
    ours = stage.synced
    kafka = stage.peer_of(ours)
    row = Row(f"p99-acks{acks}", f"produce 1 KB at 4 000 requests/s, acks={acks}; Kafka acks=1: p99", "ms", floor)
    kafka_acks = "1" if stage.beside is None else acks
    with stage.topics([kafka, ours], row.name, 4) as topic:
        run = partial(
            loads.produce, topic=topic, connections=4, batch=1024, record=900, rate=4000, warm=2.0, seconds=8.0
        )
        return stage.compare(
            row, lambda: Measured.p99(run(kafka, acks=kafka_acks)), lambda: Measured.p99(run(ours, acks=acks))
        )


BENCHMARKS: Final = {
    "perf-acks1-1p": partial(perf_page_cache, 1),
    "perf-acks1-8p": partial(perf_page_cache, 8),
    "perf-sync-1p": partial(perf_synced, 1),
    "perf-sync-8p": partial(perf_synced, 8),
    **{f"produce-{shape}": partial(closed_loop, shape) for shape in SHAPES},
    "p99-acks1": partial(paced, "1", Floor(0.3, 2.0, lower_is_better=True)),
    "p99-acksall": partial(paced, "all", Floor(1.0, 5.0, lower_is_better=True)),
}
