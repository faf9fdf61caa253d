"""Rows of transactions: produce with frequent commits, what a reader of committed records waits, a cold replay.

The Java client speaks transaction version 2 (a leader adds its partition by itself), librdkafka the version before
(AddPartitionsToTxn first). Produce is measured with the one, end to end with the other.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Message, Producer

from bench import loads
from bench.range_reader import read_range
from bench.rows.cluster import clusters, on_topic
from bench.sides import Side, create, thermocline, wait_cold
from bench.stage import PAGED, Stage
from bench.table import Floor, Measured, Row

PERF: Final = {100: (300_000, 60_000), 10: (150_000, 40_000)}
"""Records, those of the warm-up among them not; by ms between commits."""
MODES: Final = {"os": "flush=os", "sync": "fdatasync before an ack"}
LATENCY_RECORDS_PER_S: Final = 1_000
LATENCY_S: Final = 12.0
LATENCY_WARM_S: Final = 3.0
COMMIT_S: Final = 0.01
WAIT_S: Final = 30.0
COLD_BYTES: Final = 512 << 20
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


class Reader:
    """A consumer at read_committed, in a thread of its own; `latencies_s` from when a record was due."""

    def __init__(self, side: Side, topic: str, until: int) -> None:
        self.latencies_s: list[tuple[float, float]] = []
        self._until = until
        self._failure: KafkaException | TimeoutError | None = None
        self._consumer = Consumer(
            {
                "bootstrap.servers": side.address,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._is_assigned = threading.Event()
        self._consumer.subscribe([topic], on_assign=lambda *_: self._is_assigned.set())
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if not self._is_assigned.wait(WAIT_S):
            raise RuntimeError(f"{side.name}: no assignment")

    def _run(self) -> None:
        deadline = time.monotonic() + WAIT_S + LATENCY_WARM_S + LATENCY_S
        try:
            while len(self.latencies_s) < self._until:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(self.latencies_s)} of {self._until} records came")
                for message in self._consumer.consume(500, timeout=0.1):
                    self._took(message)
        except (KafkaException, TimeoutError) as failure:  # `finish` raises it
            self._failure = failure
        finally:
            self._consumer.close()

    def _took(self, message: Message) -> None:
        value = message.value()
        if value is None or message.error() is not None:
            raise KafkaException(message.error())
        due = float(value[:32])
        self.latencies_s.append((due, time.monotonic() - due))

    def finish(self) -> list[tuple[float, float]]:
        self._thread.join(2 * WAIT_S + LATENCY_WARM_S + LATENCY_S)
        if self._failure is not None or self._thread.is_alive():
            raise RuntimeError("the reader did not end") from self._failure
        return self.latencies_s


def latencies_ms(side: Side, topic: str) -> list[float]:
    """Of records of 1 KB at a fixed rate, in order. A record that is due while a commit runs belongs to the next
    transaction, and its wait counts."""
    count = int((LATENCY_WARM_S + LATENCY_S) * LATENCY_RECORDS_PER_S)
    settings = {"bootstrap.servers": side.address, "transactional.id": topic, "linger.ms": 0, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(WAIT_S)
    reader = Reader(side, topic, count)
    body = b" " * RECORD
    began, sent = time.monotonic(), 0
    while sent < count:
        producer.begin_transaction()
        until = time.monotonic() + COMMIT_S
        held = 0
        while sent < count and ((now := time.monotonic()) < until or not held):
            due = began + sent / LATENCY_RECORDS_PER_S
            if due > now:
                time.sleep(min(due, max(until, now + 1e-4)) - now)
                continue
            producer.produce(topic, (b"%.6f" % due).ljust(32) + body[32:], partition=0)
            sent, held = sent + 1, held + 1
        producer.commit_transaction(WAIT_S)
    found = reader.finish()
    return sorted(latency * 1e3 for due, latency in found if due >= began + LATENCY_WARM_S)


def end_to_end(stage: Stage) -> list[Row]:
    """One broker, one partition: one run gives the median and p99."""
    work = f"end to end at read_committed, {LATENCY_RECORDS_PER_S:,} records/s of 1 KB, a commit every 10 ms"
    names = {"p50": 0.5, "p99": 0.99}
    kept: dict[str, dict[str, Row]] = {
        mode: {
            name: Row(
                f"txn-end-to-end-10ms/{mode}-{name}",
                f"{name}, {work}; {how}",
                "ms",
                Floor(1.0, lower_is_better=True),
            )
            for name in names
        }
        for mode, how in MODES.items()
    }
    sides = {"os": stage.paged, "sync": stage.synced}

    def run(side: Side, chosen: Callable[[Row], list[Measured]], *modes: str) -> None:
        found: list[float] = []

        def load(topic: str) -> Measured:
            found.extend(latencies_ms(side, topic))
            return Measured(statistics.median(found))

        stage.writing(side, "txn-end-to-end", 1, load)
        for mode in modes:
            for name, share in names.items():
                chosen(kept[mode][name]).append(Measured(found[int(len(found) * share)]))

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
        if number % ABORTED_EACH:
            producer.commit_transaction(WAIT_S)
            continue
        if producer.flush(WAIT_S):
            raise RuntimeError(f"{side.name}: {topic} is not filled")
        producer.abort_transaction(WAIT_S)
    return sent


def cold_read_committed(stage: Stage) -> list[Row]:
    """Ours against ours: the same cold log at both isolation levels, the chunk cache an eighth of it."""
    work = "cold log in order, fetch 1 MB, a tenth aborted, read_committed; beside: read_uncommitted (ours ÷ ours)"
    speed = Row("txn-cold-read-committed", work, "MB/s", Floor(0.95))
    asked = Row(
        "txn-cold-read-committed/requests", f"store requests of one replay: {work}", "requests", Floor(1.0, None, True)
    )
    settings = {"thermocline.cache.bytes": COLD_BYTES // 8}
    with thermocline(stage.root, "txn-cold", settings=settings, python=stage.python) as side:
        tiering = {"remote_storage_enable": "true", "segment_bytes": 16 << 20, "local_retention_ms": 1}
        topic = create(side, "txn-cold", 1, **tiering)
        end = int(fill_transactions(side, topic, COLD_BYTES) * 0.8)
        wait_cold(side, topic, end)

        def run(committed: bool) -> tuple[Measured, Measured]:
            before, cpu_s = side.store_requests(), side.cpu_seconds()
            began = time.monotonic()
            nbytes, aborted = read_range(side.port, topic, 0, end, read_committed=committed)
            took_s, cpu_s = time.monotonic() - began, side.cpu_seconds() - cpu_s
            if committed != (aborted > 0):
                raise RuntimeError(f"{aborted} aborted transactions were named")
            after = side.store_requests()
            spent = sum(count - before.get(name, 0) for name, count in after.items() if name in ("get", "head"))
            return Measured(nbytes / 1e6 / took_s, cpu_s / (nbytes / 1e9)), Measured(spent)

        def turn(committed: bool) -> None:
            found: list[Measured] = []

            def reading() -> Measured:
                found.extend(run(committed))
                return found[0]

            stage.reading(side, reading)
            for row, one in zip((speed, asked), found, strict=True):
                (row.ours if committed else row.peer).append(one)

        stage.rounds_of([speed], partial(turn, False), partial(turn, True))
    return [speed, asked]


BENCHMARKS: Final = {
    **{f"txn-produce-{ms}ms-rf1": partial(produce_alone, ms) for ms in PERF},
    **{f"txn-produce-{ms}ms-rf3": partial(produce_replicated, ms) for ms in PERF},
    "txn-end-to-end-10ms": end_to_end,
    "txn-cold-read-committed": cold_read_committed,
}
