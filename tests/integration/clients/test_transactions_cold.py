"""1 000 segments in the bucket, a tenth of the transactions aborted: every reader shows what was committed, no more.

Several producers write at the same time; a transaction of one lies in many segments. The model is what each producer
was told: the offset of each record, and whether its transaction was committed. Local files are gone when readers come.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Message, Producer

import thermocline
from tests.support.clients import stock_clients
from tests.support.clients.access import Access
from tests.support.clients.go_modules import go, needs_go
from tests.support.clients.kafkajs_package import require_kafkajs
from tests.support.clients.lives import life_programs
from tests.support.clients.stock_clients import alter_topic, create_topic, end_offsets
from tests.support.kafka.kafka_tools import kafka_tool, require_kafka
from tests.support.pipeline.spark_kit import frame, spark
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import Site, seal
from tests.support.repository import ROOT
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)
__all__ = ["spark"]

TOPIC = "transactions"
PARTITIONS = 2
SEGMENTS = 1_000
SEGMENT_BYTES = 4_096
BATCH_BYTES = 2_048  # below a segment
PRODUCERS = 5
RECORDS = 8  # of a producer at a time
LEVELS = ("read_committed", "read_uncommitted")
_STEP_S = 120.0
KAFKAJS_MENDED = {
    "[...abortedTransactions]": "[...abortedTransactions].sort((a, b) => a.firstOffset - b.firstOffset)",
    "    if (\n      remainingAbortedTransactions.length": "    while (\n      remainingAbortedTransactions.length",
}

Row = tuple[int, int, bytes]
"""Partition, offset, value."""


class Model(NamedTuple):
    committed: list[Row]
    every: list[Row]
    transactions: int
    aborted: int
    spans: int
    """Transactions over four or more segments of a partition."""

    def rows(self, isolation: str) -> list[Row]:
        return self.committed if isolation == "read_committed" else self.every


class World(NamedTuple):
    site: Site
    broker: BrokerProcess
    model: Model
    ends: dict[int, int]
    work: Path


class Line:
    """One producer and its open transaction."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": name, "batch.size": BATCH_BYTES, "log_level": 0}
        )
        self.producer.init_transactions(30)
        self.open: list[Row] | None = None
        self.steps = 0

    def write(self, rng: random.Random, number: int, last: int | None = None) -> None:
        """Some records in its open transaction; `last`: one in that partition."""
        if self.open is None:
            self.open, self.steps = [], rng.choice((1, 1, 1, 2, 3, 40))
            self.producer.begin_transaction()
        rows = self.open

        def told(error: object, message: Message) -> None:
            assert error is None, error
            rows.append((message.partition(), message.offset(), message.value()))

        for index in range(RECORDS if last is None else 1):
            value = b"%d.%d " % (number, index) + rng.randbytes(100).hex().encode()
            partition = rng.randrange(PARTITIONS) if last is None else last
            self.producer.produce(TOPIC, value, partition=partition, on_delivery=told)
        assert self.producer.flush(30) == 0
        self.steps -= 1

    def end(self, *, is_commit: bool) -> list[Row]:
        assert self.open is not None
        if is_commit:
            self.producer.commit_transaction(30)
        else:
            self.producer.abort_transaction(30)
        rows, self.open = self.open, None
        return rows


def write_transactions(bootstrap: str, bytes_least: int) -> Model:
    """So many bytes; the last record of each partition is committed, so that a reader of all of them has an end."""
    rng = random.Random(7)
    lines = [Line(bootstrap, f"line-{number}") for number in range(PRODUCERS)]
    committed: list[Row] = []
    every: list[Row] = []
    outcomes: list[bool] = []
    spans = number = written = 0

    def end(line: Line, *, is_commit: bool) -> None:
        nonlocal spans, written
        rows = line.end(is_commit=is_commit)
        every.extend(rows)
        outcomes.append(is_commit)
        if is_commit:
            committed.extend(rows)
        written += sum(len(value) for *_, value in rows)
        offsets = [offset for partition, offset, _ in rows if partition == 0] or [0]
        spans += max(offsets) - min(offsets) > 4 * SEGMENT_BYTES // 200

    while written < bytes_least:
        line = rng.choice(lines)
        line.write(rng, number := number + 1)
        if line.steps == 0:
            end(line, is_commit=rng.random() >= 0.1)
    for line in lines:
        if line.open is not None:
            end(line, is_commit=False)
    for partition in range(PARTITIONS):
        lines[0].write(rng, number := number + 1, partition)
        end(lines[0], is_commit=True)
    return Model(sorted(committed), sorted(every), len(outcomes), outcomes.count(False), spans)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Everything in the bucket, nothing on the disk."""
    work = tmp_path_factory.mktemp("cold")
    site = Site(work, DirectoryBucket(work / "bucket"))
    with site.broker() as broker:
        create_topic(broker.kafka, TOPIC, PARTITIONS, internal_segment_bytes=SEGMENT_BYTES, local_retention_ms=-1)
        began = time.monotonic()
        model = write_transactions(broker.kafka, SEGMENTS * SEGMENT_BYTES * 9 // 10)
        written_s = time.monotonic() - began
        seal(broker)
        alter_topic(broker.kafka, TOPIC, local_retention_ms=1)
        wait_until(lambda: not site.local_log_files(TOPIC), "nothing on the disk")
        count = sum("/segments/" in key and key.endswith(".log") for key in site.bucket.listing())
        print(
            f"{count} segments, {len(model.every)} records, {model.transactions} transactions, "
            f"{model.aborted} aborted, {model.spans} over four segments or more; "
            f"written in {written_s:.1f} s, cold after {time.monotonic() - began:.1f} s"
        )
        assert count >= SEGMENTS
        yield World(site, broker, model, end_offsets(broker.kafka, TOPIC, PARTITIONS), work)


def test_the_model_has_what_it_should(world: World) -> None:
    model = world.model
    assert 0.05 < model.aborted / model.transactions < 0.2 and model.spans > 20
    assert len(model.committed) < 0.97 * len(model.every)
    assert max(offset for _, offset, _ in model.every) + 2 == max(world.ends.values()), "a record, then its marker"


def assert_right(found: list[Row], world: World, isolation: str, who: str, began: float) -> None:
    expected = world.model.rows(isolation)
    print(f"{who}, {isolation}: {len(found)} records in {time.monotonic() - began:.1f} s")
    assert len(found) == len(expected)
    assert found == expected


@pytest.mark.parametrize("isolation", LEVELS)
@pytest.mark.parametrize("client", ["confluent-kafka", "aiokafka", "kafka-python"])
def test_a_python_client_reads_the_model(world: World, client: str, isolation: str) -> None:
    read: Callable[..., list[stock_clients.Record]] = stock_clients.READS[client][0]
    began = time.monotonic()
    found = read(world.broker.kafka, TOPIC, world.ends, isolation=isolation)
    assert_right(sorted((r.partition, r.offset, r.value or b"") for r in found), world, isolation, client, began)


@pytest.mark.parametrize("isolation", LEVELS)
def test_the_bucket_alone_shows_the_model(world: World, isolation: str) -> None:
    began = time.monotonic()
    columns = ("partition", "offset", "value")
    with thermocline.read(world.site.bucket.url, TOPIC, columns=columns, isolation_level=isolation) as batches:
        rows = [tuple(row[name] for name in columns) for batch in batches for row in batch.to_pylist()]
    assert_right(sorted(rows), world, isolation, "thermocline.read", began)


@pytest.mark.parametrize("isolation", LEVELS)
def test_spark_reads_the_model(world: World, spark: SparkSession, isolation: str) -> None:
    began = time.monotonic()
    options = {"bucket": world.site.bucket.url, "subscribe": TOPIC, "isolation.level": isolation}
    rows = frame(spark, options).select("partition", "offset", "value").collect()
    assert_right(sorted((p, o, bytes(value)) for p, o, value in rows), world, isolation, "Spark", began)


def rows_of(text: str) -> list[Row]:
    """Of lines `PARTITION OFFSET VALUE`."""
    words = (line.split(" ", 2) for line in text.splitlines())
    return sorted((int(partition), int(offset), value.encode()) for partition, offset, value in words)


@pytest.mark.peer
@pytest.mark.parametrize("isolation", LEVELS)
def test_franz_go_reads_the_model(world: World, tmp_path: Path, isolation: str) -> None:
    program = tmp_path / "read"
    with needs_go("franz-go's programs"):
        go(Path(life_programs.__file__).parent / "franz", "build", "-o", str(program), "./read")
    file, count = Access(world.broker.kafka).write_json(tmp_path / "access.json"), len(world.model.rows(isolation))
    began = time.monotonic()
    found = _output(str(program), str(file), TOPIC, str(PARTITIONS), isolation, str(count))
    assert_right(rows_of(found), world, isolation, "franz-go", began)


def kafkajs(world: World, modules: Path, isolation: str) -> list[Row]:
    program = ROOT / "tests/support/clients/kafkajs_reader.js"
    last = ",".join(str(end - 2) for _, end in sorted(world.ends.items()))  # a marker follows
    return rows_of(_output("node", str(program), world.broker.kafka, TOPIC, isolation, last, NODE_PATH=str(modules)))


@pytest.mark.peer
def test_kafkajs_reads_the_model(world: World, tmp_path: Path) -> None:
    """KafkaJS 2.2.4 takes note of one aborted transaction a record, and in the order of the list: where several are
    open, it shows the first records of some. With that mended it reads the model."""
    modules = require_kafkajs(tmp_path)
    began = time.monotonic()
    assert_right(kafkajs(world, modules, "read_uncommitted"), world, "read_uncommitted", "KafkaJS", began)
    found = set(kafkajs(world, modules, "read_committed"))
    committed = set(world.model.committed)
    print(f"KafkaJS as it is shows {len(found - committed)} records of aborted transactions")
    assert found >= committed and found <= set(world.model.every)
    _mend_kafkajs(modules)
    began = time.monotonic()
    assert_right(kafkajs(world, modules, "read_committed"), world, "read_committed", "KafkaJS, mended", began)


def _mend_kafkajs(modules: Path) -> None:
    path = modules / "kafkajs/src/consumer/filterAbortedMessages.js"
    text = path.read_text()
    for old, new in KAFKAJS_MENDED.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)


@pytest.mark.peer
@pytest.mark.parametrize("isolation", LEVELS)
def test_java_reads_the_model(world: World, isolation: str) -> None:
    """Kafka's console consumer, a partition after the other."""
    require_kafka()
    began = time.monotonic()
    found: list[Row] = []
    for partition in range(PARTITIONS):
        count = sum(row[0] == partition for row in world.model.rows(isolation))
        text = kafka_tool(
            *("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", world.broker.kafka),
            *("--topic", TOPIC, "--partition", str(partition), "--offset", "earliest", "--isolation-level", isolation),
            *("--max-messages", str(count), "--timeout-ms", "60000"),
            *("--formatter-property", "print.partition=true", "--formatter-property", "print.offset=true"),
        )
        for line in text.splitlines():
            if line.startswith("Partition:"):
                _, offset, value = line.split("\t")
                found.append((partition, int(offset.removeprefix("Offset:")), value.encode()))
    assert_right(sorted(found), world, isolation, "Java", began)


def _output(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=_STEP_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
