"""Rows of several brokers: replicated produce beside three brokers of Kafka, what a follower costs, two brokers' gain.

A CPU figure is that of all brokers of a side together, over the bytes that clients sent once, unless the row says else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from bench import loads
from bench.clusters import ClusterSide, create_replicated, kafka_cluster, our_cluster
from bench.sides import Side, cpu_seconds, delete
from bench.stage import PAGED, Stage
from bench.table import Floor, Measured, Row

PERF: Final = {"records": 300_000, "warmup": 60_000}
PERF_FLUSHED: Final = {"records": 60_000, "warmup": 15_000}
PARTITIONS: Final = 6
SIXTEEN_KB: Final = 16 << 10
SECONDS: Final = 6.0


@contextmanager
def clusters(stage: Stage, *settings: Mapping[str, object]) -> Iterator[tuple[ClusterSide, ...]]:
    """Kafka of three, warm, and one cluster of ours for each of `settings`."""
    with ExitStack() as stack:
        kafka = stack.enter_context(kafka_cluster())
        warm = create_replicated(kafka, "warm", PARTITIONS, 3)
        generate(kafka, warm, seconds=4.0)
        delete(kafka, warm)
        ours = [
            stack.enter_context(our_cluster(stage.root, f"cluster-{number}", settings=one, python=stage.python))
            for number, one in enumerate(settings)
        ]
        yield (kafka, *ours)


def generate(side: Side, topic: str, batch: int = SIXTEEN_KB, connections: int = 6, **more: float) -> loads.Run:
    """The load generator, acks=all, five requests in flight a connection."""
    return loads.produce(side, topic, connections, batch, 1024, acks="all", **more)


def performance(side: Side, topic: str, *, flushed: bool = False) -> loads.Run:
    """kafka-producer-perf-test with its defaults: acks=all, idempotence."""
    return loads.producer_performance(side, topic, **(PERF_FLUSHED if flushed else PERF))


def on_topic(
    stage: Stage,
    side: Side,
    load: Callable[[str], Measured],
    replicas: int = 3,
    partitions: int = PARTITIONS,
    **configs: object,
) -> Measured:
    """`load` on a topic made for this turn alone."""
    topic = create_replicated(side, f"t{time.monotonic_ns()}", partitions, replicas, **configs)
    try:
        return stage.settled(lambda: load(topic))
    finally:
        delete(side, topic)


def replicated(load: str, stage: Stage) -> list[Row]:
    """acks=all, three replicas: `os` against Kafka's defaults, `sync` against both kinds of Kafka."""
    name, work = {
        "16kb": ("rf3-16kb", "3 brokers, RF 3, acks=all, 16 KB × 6 connections × 5 in flight"),
        "perf": ("rf3-perf", "3 brokers, RF 3, ProducerPerformance 1 KB, its defaults"),
    }[load]
    paged = Row(f"{name}/os", f"{work}: flush=os; Kafka's defaults", "MB/s", Floor(1.0))
    flushed = Row(f"{name}/sync-flushed", f"{work}: sync; Kafka with flush.messages=1", "MB/s", Floor(3.0))
    default = Row(f"{name}/sync-default", f"{work}: sync; Kafka's defaults (reported)", "MB/s", Floor(0.0))

    def run(side: Side, *, slow: bool = False, **configs: object) -> Measured:
        def once(topic: str) -> Measured:
            if load == "perf":
                return Measured.speed(performance(side, topic, flushed=slow))
            return Measured.speed(generate(side, topic, seconds=SECONDS, warm=2.0))

        return on_topic(stage, side, once, **configs)

    with clusters(stage, PAGED, {}) as (kafka, ours_paged, ours_synced):

        def by_kafka() -> None:
            found = run(kafka)
            paged.peer.append(found)
            default.peer.append(found)

        def by_synced() -> None:
            found = run(ours_synced)
            flushed.ours.append(found)
            default.ours.append(found)

        stage.rounds_of(
            [paged, flushed, default],
            by_kafka,
            lambda: flushed.peer.append(run(kafka, slow=True, flush_messages=1)),
            lambda: paged.ours.append(run(ours_paged)),
            by_synced,
        )
    return [paged, flushed, default]


def follower_cost(stage: Stage) -> list[Row]:
    """16 KB to partitions of one leader: CPU of a follower, and of the leader with two followers beyond none."""
    follower = Row(
        "rf3-cost/follower",
        "CPU of a follower, 16 KB batches, flush=os",
        "s/GB",
        Floor(value=1.5, lower_is_better=True),
    )
    leader = Row(
        "rf3-cost/leader",
        "CPU of a leader a follower (RF 3 less RF 1, ÷ 2), flush=os",
        "s/GB",
        Floor(value=0.6, lower_is_better=True),
    )
    with our_cluster(stage.root, "costs", settings=PAGED, python=stage.python) as side:
        first = ClusterSide(
            side.name, side.port, side.pid, root=side.root, all_ports=side.ports[:1], all_pids=side.pids[:1]
        )

        def run(replicas: int) -> list[float]:
            spent: list[float] = []

            def load(topic: str) -> Measured:
                before = [cpu_seconds(pid) for pid in side.pids]
                done = loads.produce(first, topic, 4, SIXTEEN_KB, 1024, acks="all", seconds=SECONDS, warm=0.0)
                spent.extend(
                    (cpu_seconds(pid) - was) / done.nbytes * 1e9 for pid, was in zip(side.pids, before, strict=True)
                )
                return Measured.speed(done)

            one_leader(stage, side, load, replicas)
            return spent

        def both() -> None:
            alone, three = run(1), run(3)
            follower.ours.append(Measured(max(three[1:])))
            leader.ours.append(Measured((three[0] - alone[0]) / 2))

        stage.rounds_of([follower, leader], both)
    return [follower, leader]


def one_leader(stage: Stage, side: ClusterSide, load: Callable[[str], Measured], replicas: int) -> Measured:
    """`load` on a topic of four partitions, all of them led by broker 1."""
    topic = create_replicated(side, f"t{time.monotonic_ns()}", 4, replicas, leader=1)
    try:
        return stage.settled(lambda: load(topic))
    finally:
        delete(side, topic)


def two_brokers(shape: str, stage: Stage) -> list[Row]:
    """Brokers that share the load of clients on the same two cores, against one broker of ours."""
    batch, record = {"100b": (100, 100), "16kb": (SIXTEEN_KB, 1024)}[shape]
    work = f"2 brokers of one machine against one, {batch:,} B × 16 connections, acks=1, flush=os (ours ÷ ours)"
    row = Row(f"brokers2-{shape}", work, "requests/s", Floor(1.3))

    def run(side: Side) -> Measured:
        def load(topic: str) -> Measured:
            return Measured.requests(loads.produce(side, topic, 16, batch, record, seconds=SECONDS, warm=2.0))

        return on_topic(stage, side, load, 1, 16)

    with (
        our_cluster(stage.root, "one", 1, settings=PAGED, python=stage.python) as one,
        our_cluster(stage.root, "two", 2, settings=PAGED, python=stage.python) as two,
    ):
        return stage.compare(row, lambda: run(one), lambda: run(two))


BENCHMARKS: Final = {
    "rf3-16kb": partial(replicated, "16kb"),
    "rf3-perf": partial(replicated, "perf"),
    "rf3-cost": follower_cost,
    "brokers2-100b": partial(two_brokers, "100b"),
    "brokers2-16kb": partial(two_brokers, "16kb"),
}
