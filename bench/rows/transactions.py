"""Rows of transactions: produce with frequent commits, what a reader of committed records waits, a cold replay.

Clients are Java's (transaction version 2), but for the cold log, which librdkafka writes. librdkafka is no yardstick of
latency: between two transactions it waits for time-outs of its own, 60 ms end to end with either broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import Producer

from bench import loads
from bench.range_reader import read_range
from bench.rows.cluster import clusters, on_topic
from bench.rows.s3 import broker
from bench.sides import Side, Thermocline, create, wait_cold
from bench.stage import PAGED, Stage
from bench.table import Floor, Measured, Row
from tests.support.store.s3_servers import moto_server

PERF: Final = {100: (300_000, 60_000), 10: (150_000, 40_000)}
"""Records, those of the warm-up among them not; by ms between commits."""
MODES: Final = {"os": "flush=os", "sync": "fdatasync before an ack"}
LATENCY: Final = {"rate": 1_000, "seconds": 12, "warm": 4, "commit_ms": 10}
QUANTILES: Final = ("p50", "p99")
WAIT_S: Final = 30.0
COLD_BYTES: Final = 512 << 20
COUNTED_BYTES: Final = 64 << 20
RECORD: Final = 1_000
OF_ONE_TRANSACTION: Final = 1_000  # records
ABORTED_EACH: Final = 10  # one of so many


# ---- produce ---------------------------------------------------------------------------------------------------------


def produce_rows(commit_ms: int, replicas: int) -> dict[str, Row]:
    """By mode of ours. Kafka has its defaults, no fsync, in both."""
    name = f"txn-produce-{commit_ms}ms-rf{replicas}"
    work = f"ProducerPerformance 1 KB, a commit every {commit_ms} ms, RF {replicas}; Kafka's defaults"
    return {mode: Row(f"{name}/{mode}", f"{work}; {how}", "MB/s", Floor(1.0)) for mode, how in MODES.items()}


def performance(side: Side, commit_ms: int, topic: str) -> Measured:
    records, warmup = PERF[commit_ms]
    return Measured.speed(loads.producer_performance(side, topic, records, warmup, commit_ms=commit_ms))


def produce_alone(commit_ms: int, stage: Stage) -> list[Row]:
    """One broker, one partition."""
    rows = produce_rows(commit_ms, 1)

    def run(side: Side) -> Measured:
        return stage.writing(side, f"txn-produce-{commit_ms}ms", 1, partial(performance, side, commit_ms))

    return compared(stage, rows, run)


def produce_replicated(commit_ms: int, stage: Stage) -> list[Row]:
    """Three brokers, a partition led by each."""
    rows = produce_rows(commit_ms, 3)

    def run(side: Side) -> Measured:
        return on_topic(stage, side, partial(performance, side, commit_ms), partitions=3)

    with clusters(stage, PAGED, {}) as (kafka, paged, synced):

        def by_kafka() -> None:
            found = run(kafka)
            for row in rows.values():
                row.peer.append(found)

        stage.rounds_of(
            list(rows.values()),
            by_kafka,
            lambda: rows["os"].ours.append(run(paged)),
            lambda: rows["sync"].ours.append(run(synced)),
        )
    return list(rows.values())


def compared(stage: Stage, rows: dict[str, Row], run: Callable[[Side], Measured]) -> list[Row]:
    """Both modes of ours beside one turn of Kafka a round; beside another version of ours each mode has its own."""
    sides = {"os": stage.paged, "sync": stage.synced}
    turns: list[Callable[[], None]] = []
    if stage.beside is None:

        def by_kafka() -> None:
            found = run(stage.kafka)
            for row in rows.values():
                row.peer.append(found)

        turns.append(by_kafka)
    for mode, row in rows.items():
        if stage.beside is not None:
            turns.append(partial(_keep, row.peer, run, stage.peer_of(sides[mode])))
        turns.append(partial(_keep, row.ours, run, sides[mode]))
    stage.rounds_of(list(rows.values()), *turns)
    return list(rows.values())


def _keep(found: list[Measured], run: Callable[[Side], Measured], side: Side) -> None:
    found.append(run(side))


# ---- end to end ------------------------------------------------------------------------------------------------------


def end_to_end(stage: Stage) -> list[Row]:
    """One broker, one partition: one run gives the median and p99."""
    work = f"end to end at read_committed, {LATENCY['rate']:,} records/s of 1 KB, a commit every 10 ms"
    kept: dict[str, dict[str, Row]] = {
        mode: {
            name: Row(
                f"txn-end-to-end-10ms/{mode}-{name}",
                f"{name}, {work}; {how}",
                "ms",
                Floor(1.0, lower_is_better=True),
            )
            for name in QUANTILES
        }
        for mode, how in MODES.items()
    }
    sides = {"os": stage.paged, "sync": stage.synced}

    def run(side: Side, chosen: Callable[[Row], list[Measured]], *modes: str) -> None:
        found: dict[str, float] = {}

        def load(topic: str) -> Measured:
            found.update(zip(QUANTILES, loads.transaction_latency(side, topic, **LATENCY), strict=True))
            return Measured(found["p50"])

        stage.writing(side, "txn-end-to-end", 1, load)
        for mode in modes:
            for name, row in kept[mode].items():
                chosen(row).append(Measured(found[name]))

    turns: list[Callable[[], None]] = []
    if stage.beside is None:
        turns.append(lambda: run(stage.kafka, lambda row: row.peer, *MODES))
    for mode in MODES:
        if stage.beside is not None:
            turns.append(partial(run, stage.peer_of(sides[mode]), lambda row: row.peer, mode))
        turns.append(partial(run, sides[mode], lambda row: row.ours, mode))
    rows = [row for of_mode in kept.values() for row in of_mode.values()]
    stage.rounds_of(rows, *turns)
    return rows


# ---- cold ------------------------------------------------------------------------------------------------------------


def fill_transactions(side: Side, topic: str, nbytes: int) -> int:
    """Transactions one after the other, a tenth of them aborted with all their records in the log; records written."""
    settings: dict[str, Any] = {
        "bootstrap.servers": side.address,
        "transactional.id": topic,
        "linger.ms": 5,
        "batch.size": 16 << 10,
        "log_level": 0,
    }
    producer = Producer(settings)
    producer.init_transactions(WAIT_S)
    value, sent = bytes(range(250)) * (RECORD // 250), 0
    for number in range(nbytes // (RECORD * OF_ONE_TRANSACTION)):
        producer.begin_transaction()
        for _ in range(OF_ONE_TRANSACTION):
            producer.produce(topic, value, partition=0)
        sent += OF_ONE_TRANSACTION
        if producer.flush(WAIT_S):  # an abort would drop what is queued
            raise RuntimeError(f"{side.name}: {topic} is not filled")
        if number % ABORTED_EACH:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)
    return sent


def cold_log(side: Side, nbytes: int, segment_bytes: int, topic: str = "txn-cold") -> tuple[str, int]:
    """A topic, and an offset below which all of it is cold."""
    tiering = {"remote_storage_enable": "true", "segment_bytes": segment_bytes, "local_retention_ms": 1}
    create(side, topic, 1, **tiering)
    end = int(fill_transactions(side, topic, nbytes) * 0.8)
    wait_cold(side, topic, end)
    return topic, end


def replay(side: Side, topic: str, end: int, *, committed: bool) -> Measured:
    cpu_s, began = side.cpu_seconds(), time.monotonic()
    nbytes, aborted = read_range(side.port, topic, 0, end, read_committed=committed)
    took_s, cpu_s = time.monotonic() - began, side.cpu_seconds() - cpu_s
    if committed != (aborted > 0):
        raise RuntimeError(f"{aborted} aborted transactions were named")
    return Measured(nbytes / 1e6 / took_s, cpu_s / (nbytes / 1e9))


def cold_read_committed(stage: Stage) -> list[Row]:
    """Ours against ours: the same cold log at both isolation levels, the chunk cache an eighth of it. A directory is
    read without requests, so these are counted with a bucket on moto, which is exact for objects below 5 MiB."""
    work = "cold log in order, fetch 1 MB, a tenth aborted: read_committed; beside: read_uncommitted (ours ÷ ours)"
    speed = Row("txn-cold-read-committed/speed", work, "MB/s", Floor(0.95))
    asked = Row("txn-cold-read-committed/requests", work, "requests", Floor(1.0, None, True))
    levels = ((False, lambda row: row.peer), (True, lambda row: row.ours))
    with Thermocline(stage.root, "txn-cold", settings=cache_of(COLD_BYTES), python=stage.python).running() as side:
        topic, end = cold_log(side, COLD_BYTES, 16 << 20)

        def turn(committed: bool, found: list[Measured]) -> None:
            found.append(stage.reading(side, partial(replay, side, topic, end, committed=committed)))

        stage.rounds_of([speed], *(partial(turn, committed, of(speed)) for committed, of in levels))
    with moto_server() as server, broker(stage, "txn-cold", server, **cache_of(COUNTED_BYTES)) as (side, _):
        for committed, of in levels:  # a log each: of a small one the broker keeps what was read once
            topic, end = cold_log(side, COUNTED_BYTES, 4 << 20, f"counted-{committed}")
            before = side.store_requests()
            replay(side, topic, end, committed=committed)
            after = side.store_requests()
            spent = {name: after[name] - before.get(name, 0) for name in ("get", "head") if name in after}
            of(asked).append(Measured(sum(spent.values())))
    return [speed, asked]


def cache_of(nbytes: int) -> dict[str, object]:
    return {**PAGED, "thermocline.cache.bytes": nbytes // 8}


BENCHMARKS: Final = {
    **{f"txn-produce-{ms}ms-rf1": partial(produce_alone, ms) for ms in PERF},
    **{f"txn-produce-{ms}ms-rf3": partial(produce_replicated, ms) for ms in PERF},
    "txn-end-to-end-10ms": end_to_end,
    "txn-cold-read-committed": cold_read_committed,
}
