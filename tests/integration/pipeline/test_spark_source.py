"""The Spark source in batches, against what stock clients wrote.

One broker with small segments: every topic has an older part in the bucket, of which some has left the disk, and a
younger part on the disk alone. `records_of` is compared row by row with what was produced.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.clients.stock_clients import alter_topic, create_topic, end_offsets, read_confluent, write_confluent
from tests.support.pipeline.spark_kit import T0, MixedTopic, frame, mixed, records_of, spark
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import Site, seal, status, wait_copied
from tests.support.store.buckets import BUCKET_KINDS, DirectoryBucket, Stores, manifest_of, segment_keys
from tests.support.waiting import wait_until
from thermocline.pipeline.plan import INDEX_WORTH_BYTES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(240)
__all__ = ["spark"]

COUNT = 100  # records a partition and write: 30 KB, so one or two sealed segments
SEGMENT_BYTES = 20_480


class World(NamedTuple):
    """A running site and its topic in both tiers."""

    site: Site
    broker: BrokerProcess
    log: MixedTopic

    def options(self, *, hot: bool = True, **more: object) -> dict[str, object]:
        found: dict[str, object] = {"bucket": self.site.bucket.url, "subscribe": self.log.topic, **more}
        return {**found, "kafka.bootstrap.servers": self.broker.kafka} if hot else found

    def remote_ends(self, topic: str | None = None) -> dict[int, int]:
        return {p["partition"]: p["remote_end_offset"] for p in status(self.broker, topic or self.log.topic)}

    def seal(self, topic: str) -> None:
        """All of this topic into the bucket; the others keep their hot tails."""
        sealed = self.site.cli("tier", "seal", "-b", self.broker.kafka, "--topic", topic, "--wait")
        assert sealed.returncode == 0, sealed.stderr


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Written, copied, partly expired from the disk, and written again."""
    path = tmp_path_factory.mktemp("spark")
    site = Site(path, DirectoryBucket(path / "bucket"))
    with site.broker() as broker:
        log = MixedTopic(
            broker, "mixed", internal_segment_bytes=SEGMENT_BYTES, local_retention_bytes=SEGMENT_BYTES // 3
        )
        log.write(broker, COUNT)
        wait_copied(broker, "mixed")
        log.write(broker, COUNT // 2)
        wait_copied(broker, "mixed")
        shown = status(broker, "mixed")
        assert all(0 < p["remote_end_offset"] < COUNT * 3 // 2 for p in shown), "every partition is in both tiers"
        yield World(site, broker, log)


def parts_of(options: dict[str, object]) -> list[object]:
    """What the driver plans, in this process."""
    from thermocline.pipeline.spark.batch import BatchReader
    from thermocline.pipeline.spark.options import parse_options
    from thermocline.pipeline.spark.projection import full_schema

    reader = BatchReader(parse_options({k: str(v) for k, v in options.items()}), full_schema(True))
    return [part for partition in reader.partitions() for part in partition.value]


def test_rows_are_what_clients_wrote_in_both_tiers(spark: SparkSession, world: World) -> None:
    """All codecs, three clients, headers, nulls, times in no order: each row once, from the bucket below the seam and
    from the broker above it."""
    assert records_of(frame(spark, world.options())) == world.log.records
    kinds = {type(part).__name__ for part in parts_of(world.options())}
    assert kinds == {"Split", "TailPart"}


def test_the_bucket_alone_ends_where_it_ends(spark: SparkSession, world: World) -> None:
    """Without kafka.bootstrap.servers `latest` is the remote end of each partition."""
    ends = world.remote_ends()
    found = records_of(frame(spark, world.options(hot=False)))
    assert found == [r for r in world.log.records if r.offset < ends[r.partition]]


def test_segments_that_move_during_the_read_change_nothing(spark: SparkSession, world: World) -> None:
    """Planned; then the tail is copied and leaves the disk; then read: the same rows, none twice and none missing."""
    log = MixedTopic(world.broker, "moving", internal_segment_bytes=SEGMENT_BYTES, local_retention_ms=-1)
    log.write(world.broker, COUNT)
    wait_copied(world.broker, "moving")
    before = world.remote_ends("moving")
    planned = frame(spark, world.options(subscribe="moving")).rdd
    assert planned.getNumPartitions() >= 1  # the plan stands from here on
    alter_topic(world.broker.kafka, "moving", local_retention_ms=1)
    world.seal("moving")
    wait_until(lambda: not world.site.local_log_files("moving"), "every record of it left the disk")
    assert all(end > before[p] for p, end in world.remote_ends("moving").items())
    rows = planned.map(lambda row: (row.partition, row.offset, row.key and bytes(row.key))).collect()
    assert sorted(rows) == [(r.partition, r.offset, r.key) for r in log.records]


@pytest.mark.parametrize("kind", BUCKET_KINDS)
def test_a_cold_read_needs_no_broker(
    spark: SparkSession, kind: str, stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is down and its data directory gone; the bucket, on any store, gives every row."""
    with stores.bucket(kind, tmp_path, delay_ms=2) as bucket:
        site = Site(tmp_path, bucket)
        with site.broker() as broker:
            log = MixedTopic(broker, "history", internal_segment_bytes=SEGMENT_BYTES)
            log.write(broker, COUNT)
            seal(broker)
            assert broker.stop() == 0
        site.lose_data_dir()
        options = {"bucket": bucket.url, "subscribePattern": "hist.*"}
        assert records_of(frame(spark, options)) == log.records


def test_any_columns_in_any_order(spark: SparkSession, world: World) -> None:
    """`.schema()` is the projection: only these columns are decoded."""
    reader = spark.read.format("thermocline").options(**{k: str(v) for k, v in world.options().items()})
    found = reader.schema("offset bigint, key binary, partition int not null").load()
    assert found.columns == ["offset", "key", "partition"]
    rows = sorted((p, o, None if k is None else bytes(k)) for o, k, p in found.collect())
    assert rows == [(r.partition, r.offset, r.key) for r in world.log.records]
    with pytest.raises(Exception, match="column value is binary, not string"):
        reader.schema("value string").load().count()
    with pytest.raises(Exception, match="no column 'ofset'; did you mean 'offset'"):
        reader.schema("ofset bigint").load().count()


@pytest.mark.parametrize("pushed", ["true", "false"])
def test_filters_choose_the_same_rows_pushed_or_not(spark: SparkSession, world: World, pushed: str) -> None:
    """Spark's conf decides whether filters reach the source; then whole partitions and segments are not read."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    wanted = f"partition in (2, 4) and offset >= 70 and offset < 120 and timestamp < timestamp_millis({T0 + 110_000})"
    try:
        a_task_a_part = world.options(maxRecordsPerPartition=1000)  # small parts share a task otherwise
        found = frame(spark, a_task_a_part).where(wanted)
        tasks = found.rdd.getNumPartitions()
        rows = records_of(found)
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert rows == [
        r for r in world.log.records if r.partition in (2, 4) and 70 <= r.offset < 120 and r.timestamp_ms < T0 + 110_000
    ]
    assert rows
    everything = frame(spark, a_task_a_part).rdd.getNumPartitions()
    assert tasks <= 4 < everything if pushed == "true" else tasks == everything


def test_times_are_offsets_as_the_broker_would_find_them(spark: SparkSession, world: World) -> None:
    """startingTimestamp and endingOffsetsByTimestamp: the first record at or after a time, in whatever tier it is."""
    start, stop = T0 + 40_500, T0 + 146_500
    consumer = Consumer({"bootstrap.servers": world.broker.kafka, "group.id": "times"})
    try:
        first, last = (
            {
                found.partition: found.offset
                for found in consumer.offsets_for_times(
                    [TopicPartition("mixed", p, at) for p in world.log.partitions], 10
                )
            }
            for at in (start, stop)
        )
    finally:
        consumer.close()
    by_partition = json.dumps({"mixed": {str(p): stop for p in world.log.partitions}})
    found = frame(spark, world.options(startingTimestamp=start, endingOffsetsByTimestamp=by_partition))
    assert records_of(found) == [r for r in world.log.records if first[r.partition] <= r.offset < last[r.partition]]
    ends = world.remote_ends()
    assert any(first[p] < ends[p] for p in first) and any(last[p] > ends[p] for p in last), "both tiers are asked"
    with pytest.raises(Exception, match="no record at or after that time"):
        frame(spark, world.options(startingTimestamp=T0 * 2)).count()
    late = world.options(startingTimestamp=T0 * 2, startingOffsetsByTimestampStrategy="latest")
    assert frame(spark, late).count() == 0


def test_a_clock_of_whole_seconds_loses_no_row(spark: SparkSession, world: World) -> None:
    """100 000 records, 10 000 of each second, uncompressed and sealed: an object large enough that its time index is
    asked. `timestamp >= T`, pushed or not, and startingTimestamp give the seconds from T on, whole."""
    create_topic(world.broker.kafka, "seconds", segment_bytes=1 << 30, retention_ms=-1)
    producer = Producer({"bootstrap.servers": world.broker.kafka, "linger.ms": 500, "batch.size": 16_384})
    for number in range(100_000):
        producer.produce("seconds", b"%040d" % number, timestamp=T0 + number // 10_000 * 1000)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    world.seal("seconds")
    (entry,) = manifest_of(world.site.bucket, "seconds")[1]["tail"]
    assert entry["log_bytes"] > INDEX_WORTH_BYTES and entry["records"] == 100_000
    options = world.options(hot=False, subscribe="seconds")
    for second in (1, 5, 9):
        since = f"timestamp >= timestamp_millis({T0 + 1000 * second})"
        wanted = (100_000 - 10_000 * second, 10_000 * second)
        for more in ({}, {"pushFilters": False}):
            found = frame(spark, {**options, **more}).where(since)
            assert tuple(found.selectExpr("count(*)", "min(offset)").first() or ()) == wanted, (second, more)
    found = frame(spark, {**options, "startingTimestamp": T0 + 3000})
    assert tuple(found.selectExpr("count(*)", "min(offset)").first() or ()) == (70_000, 30_000)


def test_offsets_by_partition_and_smaller_tasks(spark: SparkSession, world: World) -> None:
    """assign with start and end offsets, -2 and -1; no task has more than maxRecordsPerPartition."""
    options = world.options(
        startingOffsets='{"mixed":{"1":-2,"4":33}}',
        endingOffsets='{"mixed":{"1":77,"4":-1}}',
        maxRecordsPerPartition=20,
    )
    del options["subscribe"]
    options["assign"] = '{"mixed":[1,4]}'
    found = frame(spark, options)
    expected = [
        r for r in world.log.records if (r.partition == 1 and r.offset < 77) or (r.partition == 4 and r.offset >= 33)
    ]
    assert records_of(found) == expected
    assert max(found.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()) <= 20
    assert frame(spark, {**options, "minPartitions": 12}).rdd.getNumPartitions() >= 12


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"subscribe": "mixd"}, "did you mean 'mixed'"),
        ({"startingOffsets": '{"mixed":{"0":0}}'}, "leaves out mixed-1"),
        (
            {"endingOffsets": '{"mixed":{"0":999999,"1":-1,"2":-1,"3":-1,"4":-1,"5":-1,"6":-1}}'},
            "mixed-0: end offset 999999",
        ),
        ({"kafka.no.such.property": "1"}, "no.such.property"),
    ],
)
def test_mistakes_say_what_to_do(spark: SparkSession, world: World, more: dict[str, object], says: str) -> None:
    with pytest.raises(Exception, match=says):
        frame(spark, world.options(**more)).count()


def test_a_topic_of_which_nothing_was_copied_yet(spark: SparkSession, world: World) -> None:
    """All of it is hot; the bucket alone has no row of it and that is no error."""
    create_topic(world.broker.kafka, "fresh", 2)
    write_confluent(world.broker.kafka, "fresh", 1, mixed(1, 0, 10), "lz4", True)
    assert len(records_of(frame(spark, world.options(subscribe="fresh")))) == 10
    assert frame(spark, world.options(subscribe="fresh", hot=False)).count() == 0
    create_topic(world.broker.kafka, "local", 1, remote_storage_enable="false")
    write_confluent(world.broker.kafka, "local", 0, mixed(1, 0, 10), "lz4", True)
    assert len(records_of(frame(spark, world.options(subscribe="local,fresh")))) == 20


def test_damage_is_named_or_counted(spark: SparkSession, tmp_path: Path, world: World) -> None:
    """A flipped bit in an object: the task fails with topic, partition, offsets, object and what to do; with
    failOnDataLoss=false everything else is read."""
    copied = tmp_path / "bucket"
    shutil.copytree(world.site.bucket.path, copied)  # type: ignore[attr-defined]
    bucket = DirectoryBucket(copied)
    (first, end), key = min(segment_keys(*manifest_of(bucket, "mixed", 3)).items())
    place = copied / key
    data = bytearray(place.read_bytes())
    data[len(data) // 3] ^= 0x10
    place.write_bytes(data)
    options = {"bucket": bucket.url, "assign": '{"mixed":[3]}'}
    with pytest.raises(Exception, match=rf"(?s)mixed-3: offsets.*{key}.*scrub.*failOnDataLoss"):
        frame(spark, options).count()
    found = records_of(frame(spark, {**options, "failOnDataLoss": "false"}))
    remote_end = world.remote_ends()[3]
    whole = [r for r in world.log.records if r.partition == 3 and r.offset < remote_end]
    assert set(found) < set(whole)
    assert all(first <= r.offset < end for r in set(whole) - set(found))


def test_a_lost_manifest_is_no_empty_partition(tmp_path: Path, world: World) -> None:
    """Every partition has a manifest from its first day: without it nobody can say what the bucket held."""
    from thermocline.pipeline.split import DataLoss

    copied = tmp_path / "bucket"
    shutil.copytree(world.site.bucket.path, copied)  # type: ignore[attr-defined]
    (copied / manifest_of(DirectoryBucket(copied), "mixed", 3)[0] / "manifest.json").unlink()
    options: dict[str, object] = {"bucket": f"file://{copied}", "assign": '{"mixed":[2,3]}'}
    with pytest.raises(DataLoss, match="mixed-3 has no manifest"):
        parts_of(options)
    assert {part.partition for part in parts_of({**options, "failOnDataLoss": "false"})} == {2}  # type: ignore[attr-defined]


def test_offsets_that_retention_took_are_loss(spark: SparkSession, world: World) -> None:
    """Asked for by number and gone: an error that says so, or a start at what there is."""
    create_topic(world.broker.kafka, "short", 1, internal_segment_bytes=SEGMENT_BYTES, local_retention_ms=1)
    write_confluent(world.broker.kafka, "short", 0, mixed(0, 0, 200), "none", True)
    world.seal("short")
    alter_topic(world.broker.kafka, "short", retention_bytes=SEGMENT_BYTES)
    wait_until(lambda: status(world.broker, "short")[0]["log_start_offset"] > 0, "retention")
    options = world.options(subscribe="short", startingOffsets='{"short":{"0":0}}')
    for hot in (options, {k: v for k, v in options.items() if k != "kafka.bootstrap.servers"}):
        with pytest.raises(Exception, match=r"short-0: offsets 0–.* below the log's start"):
            frame(spark, hot).count()
        found = records_of(frame(spark, {**hot, "failOnDataLoss": "false"}))
        assert 0 < len(found) < 200 and found[-1].offset == 199
        assert [r.offset for r in found] == list(range(found[0].offset, 200))


def test_a_declared_gap_is_told_and_no_error(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a lost disk: what the bucket had, the hole named in the driver's log and counted, and what came after."""
    site = Site(tmp_path, DirectoryBucket(tmp_path / "bucket"))
    with site.broker() as broker:
        create_topic(broker.kafka, "events", 1, internal_segment_bytes=SEGMENT_BYTES)
        write_confluent(broker.kafka, "events", 0, mixed(0, 0, 150), "none", True)
        wait_copied(broker, "events")
        broker.kill()
    site.lose_data_dir()
    with site.broker() as broker:
        wait_until(lambda: status(broker, "events")[0]["gaps"], "the gap in the bucket")
        after = end_offsets(broker.kafka, "events", 1)[0]
        write_confluent(broker.kafka, "events", 0, mixed(0, 150, 10), "none", True)
        expected = read_confluent(broker.kafka, "events", {0: after + 10})
        options = {"bucket": site.bucket.url, "subscribe": "events", "kafka.bootstrap.servers": broker.kafka}
        assert records_of(frame(spark, options)) == expected  # the hole is still hot
        seal(broker)
        assert records_of(frame(spark, options)) == expected
        with caplog.at_level(logging.INFO):
            parts_of(options)
    (hole,) = manifest_of(site.bucket, "events")[1]["gaps"]
    assert f"declared gap: events-0 has no records at offsets [{hole[0]}, {hole[1]})" in caplog.text
    assert f"1 declared gaps with {hole[1] - hole[0]} offsets" in caplog.text


def test_spark_finds_the_source_by_its_name(spark: SparkSession) -> None:
    """`pyspark_thermocline` registers by itself: this session was told nothing about it."""
    with pytest.raises(Exception, match="option bucket is missing"):
        spark.read.format("thermocline").load()
    assert os.environ.get("AWS_ACCESS_KEY_ID") is None, "the session's credentials stay in the session"
