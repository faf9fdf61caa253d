"""The Spark source as a stream: every row exactly once, over restarts and both tiers.

The sink is Spark's own file sink, which commits a batch once: what it holds is what the source delivered.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.integration.pipeline.test_spark_source import COUNT, SEGMENT_BYTES
from tests.support.clients.stock_clients import alter_topic, create_topic, delete_topic, end_offsets, write_confluent
from tests.support.pipeline.spark_kit import CODECS_OF, MixedTopic, mixed, records_of, spark
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import Site, seal, wait_copied
from tests.support.repository import ROOT
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.timeout(240)
__all__ = ["spark"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, BrokerProcess]]:
    path = tmp_path_factory.mktemp("stream")
    site = Site(path, DirectoryBucket(path / "bucket"))
    with site.broker() as broker:
        yield site, broker


class Sink:
    """A stream into Parquet files, run to the end of what is there as often as asked."""

    def __init__(self, spark: SparkSession, place: Path, options: dict[str, object]) -> None:
        self.spark = spark
        self.out, self.checkpoint = str(place / "out"), str(place / "checkpoint")
        self.options = {"startingOffsets": "earliest", "includeHeaders": "true", **options}

    def run(self, **more: object) -> list[dict[str, Any]]:
        """One availableNow run; the progress of its batches that had rows."""
        options = {name: str(value) for name, value in {**self.options, **more}.items()}
        rows = self.spark.readStream.format("thermocline").options(**options).load()
        writer = rows.writeStream.format("parquet").option("path", self.out)
        query = writer.option("checkpointLocation", self.checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return [progress for progress in query.recentProgress if progress["numInputRows"]]

    @property
    def records(self) -> list:
        return records_of(self.spark.read.parquet(self.out))


def options_of(site: Site, broker: BrokerProcess | None, topic: str, **more: object) -> dict[str, object]:
    found: dict[str, object] = {"bucket": site.bucket.url, "subscribe": topic, **more}
    return {**found, "kafka.bootstrap.servers": broker.kafka} if broker else found


def test_runs_with_a_limit_are_exact_while_segments_move(
    spark: SparkSession, running: tuple[Site, BrokerProcess], tmp_path: Path
) -> None:
    """Two availableNow runs over one checkpoint, hot and cold, a limit per batch; between them the tail is copied and
    leaves the disk, and more is written. Each row once."""
    site, broker = running
    log = MixedTopic(broker, "exact", internal_segment_bytes=SEGMENT_BYTES, local_retention_ms=-1)
    log.write(broker, COUNT)
    wait_copied(broker, "exact")
    sink = Sink(spark, tmp_path, options_of(site, broker, "exact", maxOffsetsPerTrigger=400))
    batches = sink.run()
    assert [batch["numInputRows"] for batch in batches] == [400, 300]
    assert sink.records == log.records

    alter_topic(broker.kafka, "exact", local_retention_ms=1)
    log.write(broker, COUNT // 4)
    seal(broker)
    wait_until(lambda: not site.local_log_files("exact"), "the tail left the disk")
    log.write(broker, COUNT // 4)
    assert sum(batch["numInputRows"] for batch in sink.run()) == len(log.records) - 7 * COUNT
    assert sink.records == log.records


@pytest.mark.slow
def test_a_killed_driver_leaves_no_trace(
    spark: SparkSession, running: tuple[Site, BrokerProcess], tmp_path: Path
) -> None:
    """SIGKILL of driver, JVM and workers in the middle of a stream; the same checkpoint goes on; each row once."""
    site, broker = running
    log = MixedTopic(broker, "killed", CODECS_OF[3:5], internal_segment_bytes=SEGMENT_BYTES)
    log.write(broker, COUNT)
    wait_copied(broker, "killed")
    sink = Sink(spark, tmp_path, options_of(site, broker, "killed", maxOffsetsPerTrigger=20))
    options = {name: str(value) for name, value in sink.options.items()}
    command = [
        sys.executable,
        "-m",
        "tests.support.pipeline.spark_stream_driver",
        json.dumps(options),
        sink.out,
        sink.checkpoint,
    ]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)
    try:
        assert driver.stdout is not None
        for line in driver.stdout:
            if line.startswith("batch 2"):
                break
    finally:
        os.killpg(driver.pid, signal.SIGKILL)  # its own session: JVM and Python workers too
        driver.wait(30)
    before = len(sink.records)
    assert 0 < before < len(log.records), "killed in the middle"
    log.write(broker, 10)
    sink.run(maxOffsetsPerTrigger=1000)
    assert sink.records == log.records


class Live:
    """A running query into memory; what has come so far."""

    def __init__(self, spark: SparkSession, place: Path, options: dict[str, object]) -> None:
        self.rows: list[tuple[int, int, float]] = []
        reader = spark.readStream.format("thermocline").options(**{k: str(v) for k, v in options.items()})
        frame = reader.schema("partition int, offset bigint").load()
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(place / "live"))
        self.query: StreamingQuery = writer.start()

    def _take(self, batch: Any, _: int) -> None:
        rows = batch.collect()
        now = time.monotonic()
        self.rows += [(row.partition, row.offset, now) for row in rows]

    def wait(self, count: int, timeout_s: float = 60) -> float:
        """Until `count` rows came: when the last one did."""
        wait_until(lambda: len(self.rows) >= count or not self.query.isActive, f"{count} rows", timeout_s)
        assert self.query.isActive, self.query.exception()
        return self.rows[-1][2]


def test_the_hot_tail_within_a_second_new_partitions_from_their_start(
    spark: SparkSession, running: tuple[Site, BrokerProcess], tmp_path: Path
) -> None:
    """`latest` starts at the present; a record shows within a second of its append; a partition that is added later is
    read from offset 0."""
    site, broker = running
    create_topic(broker.kafka, "live", 1)
    write_confluent(broker.kafka, "live", 0, mixed(0, 0, 50), "lz4", True)
    live = Live(spark, tmp_path, options_of(site, broker, "live"))
    try:
        wait_until(lambda: live.query.lastProgress, "the first trigger")
        delays = []
        for n in range(5):
            write_confluent(broker.kafka, "live", 0, mixed(0, 50 + n, 1), "lz4", True)
            appended = time.monotonic()
            delays.append(live.wait(n + 1) - appended)
        assert sorted(delays)[2] < 1.0, delays
        assert [(p, o) for p, o, _ in live.rows] == [(0, 50 + n) for n in range(5)]
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        admin.create_partitions([NewPartitions("live", 2)])["live"].result(30)
        write_confluent(broker.kafka, "live", 1, mixed(1, 0, 10), "lz4", True)
        live.wait(15)
        assert [(p, o) for p, o, _ in live.rows[5:]] == [(1, n) for n in range(10)]
    finally:
        live.query.stop()


def test_a_new_segment_within_seconds_without_a_broker(
    spark: SparkSession, running: tuple[Site, BrokerProcess], tmp_path: Path
) -> None:
    """The stream of the bucket alone polls manifests: what a commit adds shows within seconds, and only that."""
    site, broker = running
    create_topic(broker.kafka, "cold", 1, internal_segment_bytes=SEGMENT_BYTES)
    write_confluent(broker.kafka, "cold", 0, mixed(0, 0, 30), "none", True)
    seal(broker)
    live = Live(spark, tmp_path, options_of(site, None, "cold", startingOffsets="earliest"))
    try:
        live.wait(30)
        write_confluent(broker.kafka, "cold", 0, mixed(0, 30, 20), "none", True)
        seal(broker)
        committed = time.monotonic()
        assert live.wait(50) - committed < 6.0
        assert [o for _, o, _ in live.rows] == list(range(50))
    finally:
        live.query.stop()


def test_a_topic_made_again_is_loss_not_a_jump(
    spark: SparkSession, running: tuple[Site, BrokerProcess], tmp_path: Path
) -> None:
    """The checkpoint remembers topic ids: the new topic of the name is another log. failOnDataLoss=false reads it from
    its start."""
    site, broker = running
    create_topic(broker.kafka, "again", 1)
    write_confluent(broker.kafka, "again", 0, mixed(0, 0, 5), "lz4", True)
    sink = Sink(spark, tmp_path, options_of(site, broker, "again"))
    sink.run()
    delete_topic(broker.kafka, "again")
    create_topic(broker.kafka, "again", 1)
    write_confluent(broker.kafka, "again", 0, mixed(0, 100, 20), "lz4", True)
    assert end_offsets(broker.kafka, "again", 1) == {0: 20}
    with pytest.raises(Exception, match="deleted and created again; the stream was at 5"):
        sink.run()
    sink.run(failOnDataLoss="false")
    assert len(sink.records) == 25


def test_a_batch_waits_for_a_minimum_but_not_for_ever(
    spark: SparkSession, running: tuple[Site, BrokerProcess], tmp_path: Path
) -> None:
    """minOffsetsPerTrigger holds a batch back until there is enough; maxTriggerDelay ends the wait."""
    site, broker = running
    create_topic(broker.kafka, "least", 1)
    write_confluent(broker.kafka, "least", 0, mixed(0, 0, 5), "lz4", True)
    least = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 50, "maxTriggerDelay": "2s"}
    live = Live(spark, tmp_path, options_of(site, broker, "least", **least))
    try:
        first = live.wait(5)
        write_confluent(broker.kafka, "least", 0, mixed(0, 5, 5), "lz4", True)
        assert live.wait(10) - first > 1.0, "five records are less than fifty: the delay had to pass"
        write_confluent(broker.kafka, "least", 0, mixed(0, 10, 60), "lz4", True)
        live.wait(70)
    finally:
        live.query.stop()
