"""Thermocline beside Apache Kafka on this machine: `make bench` writes bench/RESULTS.md.

Both brokers run at once, idle while the other works; every row is measured in three interleaved rounds and the
medians are compared. Needs Java and Maven (the peer), gcc (the load generator); the S3 row needs versitygw and says
so when it is not there. Nothing here is asserted: a benchmark is looked at, a test is not a stopwatch.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

BENCH = Path(__file__).parent
PEERS = BENCH / "peers"
BUILD = BENCH / ".build"
ROUNDS = 3
SECONDS = 4.0
KAFKA_PORT = 19092
COLD_BYTES = 1 << 30
FETCH_BYTES = 1 << 20

sys.path.insert(0, str(BENCH.parent))
from tests.support.broker_process import BrokerProcess, start_broker  # noqa: E402


@dataclass
class Side:
    """One broker under test."""

    name: str
    port: int
    pid: int
    started_s: float


@dataclass
class Row:
    """One line of the table: the measured value of each side a round, and which way is better."""

    work: str
    unit: str
    floor: str
    higher_is_better: bool = True
    kafka: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    notes: str = ""

    def line(self) -> str:
        kafka = statistics.median(self.kafka) if self.kafka else float("nan")
        ours = statistics.median(self.ours)
        ratio = f"{ours / kafka:.2f}×" if self.kafka else "–"
        shown = f"{kafka:,.2f}" if self.kafka else "–"
        return f"| {self.work} | {shown} | {ours:,.2f} | {self.unit} | {ratio} | {self.floor} | {self.notes} |"


def build_loadgen() -> Path:
    """Compile the load generator."""
    BUILD.mkdir(exist_ok=True)
    target = BUILD / "loadgen"
    source = PEERS / "loadgen.c"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["gcc", "-O2", "-msse4.2", "-o", str(target), str(source), "-lm"], check=True)
    return target


def loadgen(binary: Path, side: Side, *arguments: str) -> dict[str, float]:
    """One run; its JSON line."""
    command = [str(binary), "-p", str(side.port), "-P", str(side.pid), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


@contextmanager
def kafka_peer() -> Iterator[Side]:
    """A fresh Apache Kafka with tiered storage on a local directory."""
    script = str(PEERS / "kafka")
    subprocess.run([script, "get"], check=True, stdout=subprocess.DEVNULL)
    began = time.monotonic()
    pid = int(subprocess.run([script, "start", str(KAFKA_PORT)], check=True, capture_output=True, text=True).stdout)
    try:
        side = Side("Apache Kafka", KAFKA_PORT, pid, 0.0)
        wait_answering(side)
        side.started_s = time.monotonic() - began
        yield side
    finally:
        subprocess.run([script, "stop"], check=False)


@contextmanager
def thermocline(
    root: Path, name: str, bucket: str | None = None, environment: dict[str, str] | None = None, **settings: object
) -> Iterator[Side]:
    """A fresh broker of ours."""
    defaults: dict[str, object] = {
        "log.retention.ms": -1,
        "log.retention.check.interval.ms": 1000,
        "group.initial.rebalance.delay.ms": 0,
    }
    began = time.monotonic()
    broker: BrokerProcess = start_broker(
        root / name, bucket, settings={**defaults, **settings}, environment=environment
    )
    side = Side("Thermocline", int(broker.kafka.rsplit(":", 1)[1]), broker.pid, 0.0)
    wait_answering(side)
    side.started_s = time.monotonic() - began
    side.http = broker.http  # type: ignore[attr-defined]
    try:
        yield side
    finally:
        broker.kill()


def admin(side: Side) -> AdminClient:
    return AdminClient({"bootstrap.servers": f"127.0.0.1:{side.port}"})


def wait_answering(side: Side, timeout_s: float = 60.0) -> None:
    """Until the broker answers a metadata request."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            admin(side).list_topics(timeout=5)
            return
        except Exception:
            if time.monotonic() > deadline:
                raise


def create(side: Side, topic: str, partitions: int, **configs: object) -> None:
    """Create a topic and wait until it can be written."""
    wanted = NewTopic(topic, partitions, 1, config={name.replace("_", "."): str(v) for name, v in configs.items()})
    client = admin(side)  # its futures die with it
    client.create_topics([wanted])[topic].result(30)
    time.sleep(2)


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")


class BackedMemory:
    """Before a measured run: what others left dirty goes to disk, and free memory is memory the machine really has.

    A virtual machine whose host takes back free memory charges the first touch of each page to whoever writes next
    (measured here: 2.3 ms of CPU per MB of page cache instead of 0.25): that alone would be measured, on both sides.
    """

    BYTES: Final = 4 << 30  # what a run writes at most
    MADV_HUGEPAGE: Final = 14
    MADV_POPULATE_WRITE: Final = 23

    def settle(self) -> None:
        os.sync()
        with mmap.mmap(-1, self.BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory.madvise(self.MADV_HUGEPAGE)
            memory.madvise(self.MADV_POPULATE_WRITE)


def interleaved(row: Row, kafka: Side, ours: Side, measure: Callable[[Side], float], memory: BackedMemory) -> Row:
    """Three rounds, the sides in turn."""
    for _ in range(ROUNDS):
        memory.settle()
        row.kafka.append(measure(kafka))
        memory.settle()
        row.ours.append(measure(ours))
    print(row.line(), flush=True)
    return row


def produce_rows(binary: Path, kafka: Side, ours: Side, memory: BackedMemory) -> list[Row]:
    """Raw produce, page cache on both sides."""
    rows = []
    for size, connections, record, floor in (
        (100, 16, 100, "1.5×"),
        (16_384, 4, 1024, "2.5×"),
        (1 << 20, 4, 1024, "2.5×"),
    ):
        topic = f"produce-{size}"
        for side in (kafka, ours):
            create(side, topic, connections, retention_ms=-1, remote_storage_enable="false")
        row = Row(f"produce {size} B × {connections} connections × 5 in flight", "requests/s", floor)
        arguments = ("-m", "produce", "-T", topic, "-c", str(connections), "-k", "5", "-b", str(size))
        last: dict[str, dict[str, float]] = {}

        def measure(
            side: Side,
            arguments: tuple[str, ...] = arguments,
            record: int = record,
            last: dict[str, dict[str, float]] = last,
        ) -> float:
            last[side.name] = loadgen(binary, side, *arguments, "-s", str(record), "-t", str(SECONDS))
            return last[side.name]["rps"]

        interleaved(row, kafka, ours, measure, memory)
        row.notes = "broker CPU µs/request " + ", ".join(f"{n} {v['cpu_s_1k'] * 1e3:.1f}" for n, v in last.items())
        rows.append(row)
    return rows


def latency_row(binary: Path, kafka: Side, ours: Side, memory: BackedMemory) -> Row:
    """p99 at a fixed rate, acks=1; ours with fsync in the background."""
    for side in (kafka, ours):
        create(side, "latency", 4, retention_ms=-1, remote_storage_enable="false")
    row = Row("produce 1 KB at 4 000 requests/s, acks=1: p99", "ms", "≤ 0.3×, or ≤ 2 ms", higher_is_better=False)
    arguments = ("-m", "produce", "-T", "latency", "-c", "4", "-k", "5", "-b", "1024", "-s", "900", "-R", "4000")

    def measure(side: Side) -> float:
        return loadgen(binary, side, *arguments, "-t", str(SECONDS), "-w", "2")["p99"]

    return interleaved(row, kafka, ours, measure, memory)


def fill(side: Side, topic: str, size: int) -> int:
    """Write `size` bytes of 1 KB records in large batches; returns the number of records."""
    producer = Producer(
        {"bootstrap.servers": f"127.0.0.1:{side.port}", "linger.ms": 50, "batch.size": 900_000, "acks": "all"}
    )
    value = os.urandom(1000)
    count = size // 1000
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise RuntimeError("fill did not finish")
    return count


def fetch_rows(binary: Path, kafka: Side, ours: Side, memory: BackedMemory) -> list[Row]:
    """1 MB fetches of what the page cache holds, and of what only the cold tier holds."""
    rows = []
    for side in (kafka, ours):
        create(side, "hot", 1, retention_ms=-1, remote_storage_enable="false")
        create(
            side, "cold", 1, retention_ms=-1, remote_storage_enable="true", segment_bytes=16 << 20, local_retention_ms=1
        )
        fill(side, "hot", 256 << 20)
        fill(side, "cold", COLD_BYTES)
    for side in (kafka, ours):
        wait_cold(side, "cold", COLD_BYTES // 1000 - (64 << 20) // 1000)
    for topic, floor in (("hot", "0.9×"), ("cold", "1.2×")):
        records = (256 << 20) // 1000 if topic == "hot" else COLD_BYTES // 1000 - (80 << 20) // 1000
        row = Row(f"fetch 1 MB {topic}, 1 connection", "MB/s", floor)
        arguments = ("-m", "fetch", "-T", topic, "-c", "1", "-k", "1", "-F", str(FETCH_BYTES), "-S", str(records))

        def measure(side: Side, arguments: tuple[str, ...] = arguments) -> float:
            return loadgen(binary, side, *arguments, "-t", str(SECONDS))["MBps"]

        rows.append(interleaved(row, kafka, ours, measure, memory))
    return rows


def wait_cold(side: Side, topic: str, offset: int, timeout_s: float = 180.0) -> None:
    """Until the local log of the topic starts above `offset` (ListOffsets −4)."""
    deadline = time.monotonic() + timeout_s
    while local_start(side, topic) < offset:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{side.name}: {topic} did not sink; local start {local_start(side, topic)}")
        time.sleep(0.5)


def local_start(side: Side, topic: str) -> int:
    """First offset on local disk."""
    command = [sys.executable, "-m", "thermocline", "tier", "status", "-b", f"127.0.0.1:{side.port}"]
    done = subprocess.run([*command, "--topic", topic, "--json"], capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout.splitlines()[0])["local_log_start_offset"])


def requests_row(root: Path) -> list[Row]:
    """Billed requests per GiB, tiered in 128 MiB segments and replayed from S3 (versitygw)."""
    from tests.support.s3_servers import versitygw_server

    with (
        versitygw_server() as server,
        thermocline(
            root, "s3", server.bucket_url("bench"), server.environment(), **{"log.local.retention.ms": 1000}
        ) as side,
    ):
        create(side, "bill", 1)
        create(side, "warm", 1)
        fill(side, "warm", 100_000)
        replay(side, "warm")  # the first group creates __consumer_offsets: its roots are not part of the bill
        before = store_requests(side)
        fill(side, "bill", (1 << 30) + (20 << 20))
        wait_cold(side, "bill", (1 << 30) // 1000 - (130 << 20) // 1000)
        tiered = {name: count - before.get(name, 0) for name, count in store_requests(side).items()}
        start = store_requests(side)
        read = replay(side, "bill")
        replayed = {name: count - start.get(name, 0) for name, count in store_requests(side).items()}
    gib = local_share = 1.0
    up = sum(count for name, count in tiered.items() if name != "get_if_changed") / gib
    down = sum(count for name, count in replayed.items() if name in ("get", "head")) / (read / (1 << 30)) / local_share
    return [
        Row("requests per GiB tiered (S3, 128 MiB segments)", "requests", "≤ 40", False, [], [up], json.dumps(tiered)),
        Row("requests per GiB replayed cold from S3", "requests", "≤ 280", False, [], [down], json.dumps(replayed)),
    ]


def store_requests(side: Side) -> dict[str, int]:
    """Billed requests by operation, from /metrics."""
    with urllib.request.urlopen(f"http://{side.http}/metrics", timeout=10) as answer:  # type: ignore[attr-defined]
        lines = answer.read().decode().splitlines()
    prefix = 'thermocline_store_requests_total{operation="'
    return {
        line[len(prefix) :].split('"')[0]: int(float(line.rsplit(" ", 1)[1]))
        for line in lines
        if line.startswith(prefix)
    }


def replay(side: Side, topic: str) -> int:
    """Read a partition from 0 to its end; bytes of values."""
    consumer = Consumer(
        {"bootstrap.servers": f"127.0.0.1:{side.port}", "group.id": "bench", "fetch.message.max.bytes": 8 << 20}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    read = 0
    while True:
        for message in consumer.consume(5000, timeout=5.0):
            read += len(message.value() or b"")
            if (message.offset() or 0) >= end - 1:
                consumer.close()
                return read


def write_results(rows: list[Row]) -> None:
    """bench/RESULTS.md."""
    lines = [
        "# Benchmarks",
        "",
        f"`make bench`, {time.strftime('%Y-%m-%d')}: {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"Linux {platform.release()}; Apache Kafka 4.3.1 (1 GiB heap). Medians of {ROUNDS} interleaved rounds; "
        "the load generator shares the cores. Only ratios travel.",
        "",
        "| work | Kafka | Thermocline | unit | ratio | floor | notes |",
        "|---|---|---|---|---|---|---|",
        *(row.line() for row in rows),
        "",
    ]
    results = BENCH / "RESULTS.md"
    _, mark, second = (results.read_text() if results.exists() else "").partition("\n## ")  # of bench/spark.py
    results.write_text("\n".join(lines) + mark + second)
    print("\n".join(lines))


def beside_kafka(binary: Path, root: Path, wanted: list[str], sides: ExitStack) -> list[Row]:
    """All rows that have a peer; the brokers end with `sides`."""
    rows: list[Row] = []
    memory = BackedMemory()
    kafka = sides.enter_context(kafka_peer())
    ours = sides.enter_context(thermocline(root, "page-cache", **{"thermocline.flush": "os"}))
    synced = sides.enter_context(thermocline(root, "fsync"))
    if "produce" in wanted:
        rows += produce_rows(binary, kafka, ours, memory)
    if "latency" in wanted:
        rows.append(latency_row(binary, kafka, synced, memory))
    if "fetch" in wanted:
        rows += fetch_rows(binary, kafka, ours, memory)
    if "footprint" in wanted:
        resident = ([rss_mb(kafka.pid)], [rss_mb(ours.pid)])
        start = ([kafka.started_s], [synced.started_s])
        rows.append(Row("resident memory after the rows above", "MB", "≤ 0.25×", False, *resident))
        rows.append(Row("start to first answer, format included", "s", "≤ 0.4×", False, *start))
    return rows


def main() -> None:
    """Measure what was asked for, all of it by default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("produce", "latency", "fetch", "footprint", "requests"), action="append")
    wanted = parser.parse_args().only or ["produce", "latency", "fetch", "footprint", "requests"]
    binary = build_loadgen()
    root = Path(tempfile.mkdtemp(prefix="thermocline-bench-"))
    rows: list[Row] = []
    try:
        with ExitStack() as sides:
            if wanted != ["requests"]:
                rows += beside_kafka(binary, root, wanted, sides)
        if "requests" in wanted:
            rows += requests_row(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    write_results(rows)


if __name__ == "__main__":
    main()
