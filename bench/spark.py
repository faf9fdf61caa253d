"""Thermocline's history beside Spark's Kafka connector, Parquet and confluent-kafka: `make bench`, second table.

The same batches, byte for byte, lie in a directory bucket and in Apache Kafka's log. Sides take turns in three rounds
on one Spark session of `local[2]`; medians are compared, and every answer is checked against the others. Needs Java and
Maven (the peer) and Maven Central (the connector's jars). `--size` scales the data, `--only` measures some rows; rows
that are not measured keep their lines in bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc
from confluent_kafka import Consumer, TopicPartition

sys.path.insert(0, str(Path(__file__).parent.parent))
import thermocline
from bench.sides import CalmMachine, Side, create, kafka_peer
from bench.spark_data import MONTH_MS, PARTITIONS, Log, make_log
from tests.support.kafka.kafka_connector import connector_jars
from tests.support.pipeline.history_bucket import HistoryBucket
from thermocline.pipeline.arrow_store import open_arrow_store
from thermocline.pipeline.jobs.archive import archive
from thermocline.pipeline.jobs.iceberg_catalog import catalog_config
from thermocline.pipeline.jobs.scrub.scrub import scrub
from thermocline.pipeline.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULTS = Path(__file__).parent / "RESULTS.md"
TITLE: Final = "## History: Spark and Arrow"
ROUNDS = 3
CORES = 2
PARQUET: Final = "Parquet, uncompressed"
SETTINGS: Final = {"spark.driver.memory": "2g"}
# What the peers want for speed, as measured in an earlier study of ours.
CONNECTOR_TUNED: Final = {
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.max.poll.records": "10000",
    "kafka.receive.buffer.bytes": str(4 << 20),
}
CONSUMER_TUNED: Final = {
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 131_072,
}
CONSUME_MESSAGES = 10_000
SHA_READ_BYTES = 8 << 20
LATE_MS = 300_000

Answer = tuple[object, ...]
Run = Callable[[], Answer]


@dataclass
class Row:
    """One line: a peer, its seconds a round and ours; the ratio is how many times as fast ours is."""

    work: str
    peer: str
    floor: str
    size: str
    theirs: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    notes: str = ""

    def line(self) -> str:
        theirs, ours = statistics.median(self.theirs), statistics.median(self.ours)
        return (
            f"| {self.work} | {self.size} | {self.peer} | {theirs:.2f} s | {ours:.2f} s | {theirs / ours:.2f}× "
            f"| {self.floor} | {self.notes} |"
        )


@dataclass
class Figure:
    """One line that has no peer."""

    work: str
    size: str
    value: str
    floor: str
    notes: str = ""

    def line(self) -> str:
        return f"| {self.work} | {self.size} | – | – | {self.value} | – | {self.floor} | {self.notes} |"


@dataclass
class Bench:
    """What all rows share. `turn` is held during one measured run (nothing by default)."""

    root: Path
    bucket: HistoryBucket
    kafka: Side
    spark: SparkSession
    large: Log
    small: Log
    machine: CalmMachine = field(default_factory=CalmMachine)
    turn: Callable[[], AbstractContextManager[object]] = nullcontext

    def warm(self, side: str) -> None:
        """Read what `side` will read: a host that takes back idle page cache does so during the others' turns."""
        place = self.kafka.root if side.startswith("con") else self.root / "parquet" if side == PARQUET else self.root
        for path in place.rglob("*.parquet" if side == PARQUET else "*.log"):
            with path.open("rb", buffering=0) as file:
                while file.read(8 << 20):
                    pass

    def measure(self, ours: Run, peers: dict[str, Run]) -> dict[str, list[float]]:
        """Seconds a round of each side, "ours" among them; all must answer the same. A round before warms the JVM."""
        sides = {**peers, "ours": ours}
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        answers = set()
        for number in range(-1, ROUNDS):
            for name, run in sides.items():
                if number < 0 and name.startswith("consume()"):
                    continue  # C code, and the slowest of all
                with self.turn():
                    self.machine.settle()
                    self.warm(name)
                    began = time.perf_counter()
                    answers.add(run())
                    if number >= 0:
                        seconds[name].append(time.perf_counter() - began)
        if len(answers) != 1:
            raise RuntimeError(f"the sides do not agree: {answers}")
        print({name: [round(one, 2) for one in taken] for name, taken in seconds.items()}, flush=True)
        return seconds


def rows_of(
    work: str, log: Log, seconds: dict[str, list[float]], floors: dict[str, str], notes: str = ""
) -> list[Row | Figure]:
    """One row for each peer."""
    return [
        Row(work, peer, floor, size_of(log), seconds[peer], seconds["ours"], notes) for peer, floor in floors.items()
    ]


def size_of(log: Log) -> str:
    return f"{log.log_bytes / 1e9:.2f} GB, {log.records:,} records"


# ── the sides ────────────────────────────────────────────────────────────────────────────────────────────────────────
def connector(bench: Bench, log: Log, options: dict[str, str]) -> DataFrame:
    reader = bench.spark.read.format("kafka").option("kafka.bootstrap.servers", f"127.0.0.1:{bench.kafka.port}")
    return reader.option("subscribe", log.topic).options(**options).load()


def history(bench: Bench, log: Log, schema: str | None = None) -> DataFrame:
    reader = bench.spark.read.format("thermocline").option("bucket", bench.bucket.url).option("subscribe", log.topic)
    return (reader if schema is None else reader.schema(schema)).load()


def count_and_sum(frame: DataFrame) -> Answer:
    from pyspark.sql import functions as f

    return tuple(frame.agg(f.count("*"), f.sum(f.length("value"))).collect()[0])


def by_key(frame: DataFrame) -> Answer:
    from pyspark.sql import functions as f

    found = frame.groupBy("key").agg(f.count("*"), f.min("timestamp"), f.max("timestamp")).collect()
    return tuple(sorted(tuple(map(str, row)) for row in found))


def read_values(bench: Bench, log: Log, threads: int | None = None) -> Answer:
    """`thermocline.read`, all columns: records and bytes of values."""
    records = value_bytes = 0
    with thermocline.read(bench.bucket.url, log.topic, threads=threads) as reader:
        for batch in reader:
            records += batch.num_rows
            value_bytes += pc.sum(pc.binary_length(batch.column("value"))).as_py()
    return records, value_bytes


def consume_values(bench: Bench, log: Log, settings: dict[str, int]) -> Answer:
    """A `consume()` loop over all partitions."""
    base: dict[str, object] = {"bootstrap.servers": f"127.0.0.1:{bench.kafka.port}", "group.id": "bench"}
    consumer = Consumer({**base, "enable.auto.commit": False, **settings})
    consumer.assign([TopicPartition(log.topic, partition, 0) for partition in range(PARTITIONS)])
    records = value_bytes = 0
    while records < log.records:
        messages = consumer.consume(CONSUME_MESSAGES, timeout=1.0)
        records += len(messages)
        for message in messages:
            value_bytes += len(message.value() or b"")
    consumer.close()
    return records, value_bytes


def sha256_objects(bench: Bench, log: Log) -> Answer:
    """SHA-256 of every segment object of the topic through the store's client, an object a thread."""
    store = open_arrow_store(bench.bucket.url)
    keys = segment_keys(bench, log)

    def digest(key: str) -> int:
        size, at = store.size(key), 0
        sha = hashlib.sha256()
        while at < size:
            block = store.read(key, at, min(SHA_READ_BYTES, size - at))
            sha.update(block)
            at += len(block)
        sha.hexdigest()
        return size

    with ThreadPoolExecutor(CORES) as pool:
        return (sum(pool.map(digest, keys)),)


def segment_keys(bench: Bench, log: Log) -> list[str]:
    topic_id = bench.bucket._ids[log.topic]
    return [
        str(segment.key(topic_id, partition))
        for partition in range(PARTITIONS)
        for segment in bench.bucket.segments(log.topic, partition)
    ]


# ── the rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def scan_1k(bench: Bench) -> list[Row | Figure]:
    """count + sum(length(value)) of 1 KB records."""
    log = bench.large
    parquet = str(bench.root / "parquet")
    if not Path(parquet).exists():
        history(bench, log).write.option("compression", "none").parquet(parquet)
    seconds = bench.measure(
        lambda: count_and_sum(history(bench, log, "value binary")),
        {
            "connector": lambda: count_and_sum(connector(bench, log, {})),
            "connector, tuned": lambda: count_and_sum(connector(bench, log, CONNECTOR_TUNED)),
            PARQUET: lambda: count_and_sum(bench.spark.read.parquet(parquet)),
        },
    )
    floors = {"connector": "2.5×", "connector, tuned": "1.4×", PARQUET: "0.75×"}
    return rows_of("Spark: count + sum(length(value)), 1 KB", log, seconds, floors)


def scan_100(bench: Bench) -> list[Row | Figure]:
    """count + min/max(timestamp) by key of 100 B records."""
    log = bench.small
    seconds = bench.measure(
        lambda: by_key(history(bench, log, "key binary, timestamp timestamp")),
        {
            "connector": lambda: by_key(connector(bench, log, {})),
            "connector, tuned": lambda: by_key(connector(bench, log, CONNECTOR_TUNED)),
        },
    )
    floors = {"connector": "4×", "connector, tuned": "2×"}
    return rows_of("Spark: count + min/max(timestamp) by key, 100 B", log, seconds, floors)


def read_rows(bench: Bench) -> list[Row | Figure]:
    """`thermocline.read` beside a consume() loop."""
    rows: list[Row | Figure] = []
    for log, defaults, tuned in ((bench.large, "4×", "1.5×"), (bench.small, "10×", "4×")):
        seconds = bench.measure(
            lambda log=log: read_values(bench, log),  # type: ignore[misc]
            {
                "consume()": lambda log=log: consume_values(bench, log, {}),  # type: ignore[misc]
                "consume(), tuned": lambda log=log: consume_values(bench, log, CONSUMER_TUNED),  # type: ignore[misc]
            },
        )
        work = f"thermocline.read, {log.value_bytes} B"
        rows += rows_of(work, log, seconds, {"consume()": defaults, "consume(), tuned": tuned}, "all columns")
    return rows


def archive_row(bench: Bench) -> list[Row | Figure]:
    """archive into an Iceberg table beside df.write.parquet of the same source."""
    log, target = bench.large, bench.root / "written"

    def ours() -> Answer:
        shutil.rmtree(target, ignore_errors=True)
        config = catalog_config(warehouse=f"file://{target}")
        return (archive(bench.spark, bench.bucket.url, log.topic, "lake.events", catalog=config).rows,)

    def theirs() -> Answer:
        shutil.rmtree(target, ignore_errors=True)
        history(bench, log).write.parquet(str(target))
        return (log.records,)

    seconds = bench.measure(ours, {"df.write.parquet": theirs})
    return rows_of("archive to Parquet and Iceberg, 1 KB", log, seconds, {"df.write.parquet": "2×"})


def scrub_row(bench: Bench) -> list[Row | Figure]:
    """Scrub beside sha256 of the same objects."""
    log = bench.large

    def ours() -> Answer:
        report = scrub(bench.spark, bench.bucket.url, topic=log.topic)
        if report.findings:
            raise RuntimeError(str(report))
        return (report.object_bytes,)

    seconds = bench.measure(ours, {"sha256, 2 threads": lambda: sha256_objects(bench, log)})
    return rows_of("scrub", log, seconds, {"sha256, 2 threads": "0.8×"})


def hour_row(bench: Bench) -> list[Row | Figure]:
    """Bytes fetched for one hour of the month, by a reader who knows how late records are at most."""
    rows: list[Row | Figure] = []
    for log in (bench.large, bench.small):
        start = log.start_ms + MONTH_MS * 37 // 100
        found = 0
        with thermocline.read(
            bench.bucket.url, log.topic, start_timestamp=start, end_timestamp=start + 3_600_000, late_ms=LATE_MS
        ) as reader:
            for batch in reader:
                found += batch.num_rows
            fetched = reader.bytes_fetched
        wanted = found * log.log_bytes / log.records
        notes = f"{fetched / 1e6:.1f} MB fetched for {wanted / 1e6:.1f} MB, footers included; late_ms={LATE_MS}"
        work = f"one hour of a month: bytes fetched ÷ bytes of the hour, {log.value_bytes} B"
        rows.append(Figure(work, size_of(log), f"{fetched / wanted:.3f}", "≤ 1.2", notes))
    return rows


_RSS: Final = """
import sys, thermocline
with thermocline.read(sys.argv[1], sys.argv[2], threads=int(sys.argv[3])) as reader:
    for batch in reader: pass
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""


def memory_row(bench: Bench) -> list[Row | Figure]:
    """Peak resident memory of a process that reads."""
    rows: list[Row | Figure] = []
    for log in (bench.large, bench.small):
        peak = {}
        for threads in (1, CORES):
            command = [sys.executable, "-c", _RSS, bench.bucket.url, log.topic, str(threads)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent)
            peak[threads] = int(done.stdout) / 1024  # not ru_maxrss, which begins with the parent's
        shown = ", ".join(f"{mib:.0f} MiB with {threads} threads" for threads, mib in peak.items())
        most = max(mib / threads for threads, mib in peak.items())
        work = f"peak memory of thermocline.read per core, {log.value_bytes} B"
        rows.append(Figure(work, size_of(log), f"{most:.0f} MiB", "≤ 256 MiB", shown))
    return rows


ROWS: Final[dict[str, Callable[[Bench], list[Row | Figure]]]] = {
    "scan-1k": scan_1k,
    "scan-100": scan_100,
    "read": read_rows,
    "archive": archive_row,
    "scrub": scrub_row,
    "hour": hour_row,
    "memory": memory_row,
}


# ── around them ──────────────────────────────────────────────────────────────────────────────────────────────────────
@contextmanager
def prepared(size: int) -> Iterator[Bench]:
    """Data on both sides and a session; all of it ends with the block."""
    root = Path(tempfile.mkdtemp(prefix="thermocline-bench-spark-"))
    try:
        with kafka_peer() as kafka:
            bucket = HistoryBucket(root)
            logs = []
            for topic, value_bytes, log_bytes in (("events-1k", 1000, size), ("events-100", 100, size // 4)):
                create(kafka, topic, PARTITIONS, retention_ms=-1, remote_storage_enable="false")
                began = time.perf_counter()
                logs.append(make_log(bucket, kafka.port, topic, value_bytes, log_bytes))
                print(f"{topic}: {size_of(logs[-1])} in {time.perf_counter() - began:.0f} s", flush=True)
            settings = {**SETTINGS, "spark.jars": connector_jars(), "spark.local.dir": str(root / "spark")}
            spark = session("bench", f"local[{CORES}]", settings)
            spark.sparkContext.setLogLevel("ERROR")
            try:
                yield Bench(root, bucket, kafka, spark, large=logs[0], small=logs[1])
            finally:
                spark.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def write_results(rows: list[Row | Figure]) -> None:
    """The second table of bench/RESULTS.md; lines of rows that were not measured stay, and so do notes below it."""
    before, _, rest = (RESULTS.read_text() if RESULTS.exists() else "# Benchmarks\n").partition(f"\n{TITLE}\n")
    table, next_section, behind = rest.partition("\n## ")
    notes = table.rpartition("\n|")[2].partition("\n")[2].strip("\n")
    lines = {_name(line): line for line in table.splitlines() if line.startswith("| ")}
    lines = {name: line for name, line in lines.items() if name[0] != "work"}
    lines |= {_name(row.line()): row.line() for row in rows}
    section = [
        TITLE,
        "",
        f"`make bench`, {time.strftime('%Y-%m-%d')}: Spark local[{CORES}] on {os.cpu_count()} cores, "
        f"Python {platform.python_version()}; medians of {ROUNDS} interleaved rounds on the same batches (16 KiB, "
        f"{PARTITIONS} partitions, page cache warm). Ours from a directory bucket, with `.schema(…)` for the columns "
        "that the query names. The ratio is how many times as fast ours is.",
        "",
        "| work | data | peer | peer's | Thermocline's | ratio | floor | notes |",
        "|---|---|---|---|---|---|---|---|",
        *lines.values(),
        *(["", notes] if notes else []),
        "",
    ]
    RESULTS.write_text(before.rstrip("\n") + "\n\n" + "\n".join(section) + next_section + behind)
    print("\n".join(section))


def _name(line: str) -> tuple[str, str]:
    cells = [cell.strip() for cell in line.split("|")]
    return cells[1], cells[3]


def main() -> None:
    """Measure what was asked for, all of it by default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=float, default=4.0, help="GiB of 1 KB records; of 100 B ones a quarter of it")
    parser.add_argument("--only", choices=tuple(ROWS), action="append")
    arguments = parser.parse_args()
    rows: list[Row | Figure] = []
    with prepared(int(arguments.size * (1 << 30))) as bench:
        for name in arguments.only or ROWS:
            rows += ROWS[name](bench)
    write_results(rows)


if __name__ == "__main__":
    main()
