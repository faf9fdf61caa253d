"""What Spark's users see of the source beside rows: tables in SQL, sums of a plan, a stream's backlog, errors.

Against what the bucket's writer made, so every figure is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.pipeline.archive_kit import json_topic
from tests.support.pipeline.history_bucket import HistoryBucket
from tests.support.pipeline.spark_kit import spark
from thermocline.pipeline.history import History
from thermocline.pipeline.spark.explain import explain, plan_summaries
from thermocline.pipeline.spark.planning.plan_summary import Amount

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(240)
__all__ = ["spark"]

ROWS = 600  # two partitions of three segments of two batches of 50


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> HistoryBucket:
    made = HistoryBucket(tmp_path_factory.mktemp("bucket"))
    json_topic(made, "orders")
    return made


@pytest.fixture
def table(spark: SparkSession, bucket: HistoryBucket) -> Iterator[str]:
    spark.sql(f"CREATE TABLE orders USING thermocline OPTIONS (bucket '{bucket.url}', subscribe 'orders')")
    yield "orders"
    spark.sql("DROP TABLE orders")


def frame(spark: SparkSession, bucket: HistoryBucket, options: Mapping[str, str] | None = None) -> DataFrame:
    given = {"bucket": bucket.url, "subscribe": "orders", **(options or {})}
    return spark.read.format("thermocline").options(**given).load()


def failure(act: object) -> str:
    """What the user sees."""
    with pytest.raises(Exception) as failed:
        act()  # type: ignore[operator]
    return str(failed.value)


# ── SQL ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_table_keeps_its_options(spark: SparkSession, table: str) -> None:
    """It failed at once, on a property that Spark adds; and Spark hands a table's options over only once."""
    assert spark.sql(f"SELECT count(*) FROM {table}").head()[0] == ROWS  # type: ignore[index]
    assert spark.newSession().table(table).where("offset >= 290 and partition = 1").count() == 10
    assert spark.table(table).columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def test_a_query_on_a_table_may_add_options(spark: SparkSession, table: str) -> None:
    where = json.dumps({"orders": {"0": 290, "1": 280}})
    assert spark.sql(f"SELECT count(*) FROM {table} WITH (startingOffsets='{where}')").head()[0] == 30  # type: ignore[index]
    said = failure(lambda: spark.sql(f"SELECT * FROM {table} WITH (startOffsets='{where}')").count())
    assert "did you mean 'startingOffsets'?" in said


def test_a_table_is_a_stream_too(spark: SparkSession, table: str, tmp_path: Path) -> None:
    stream = spark.readStream.option("startingOffsets", "earliest").table(table)
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    started = query.start()
    assert started.awaitTermination(120)
    assert sum(progress["numInputRows"] for progress in started.recentProgress) == ROWS


@pytest.mark.parametrize(
    ("clause", "says"),
    [
        ("OPTIONS (bucket '{url}', subscribe 'orders', `kafka.sasl.password` 'x')", "would be stored in the catalog"),
        ("LOCATION '/tmp/x' OPTIONS (bucket '{url}', subscribe 'orders')", "LOCATION has no effect"),
        ("OPTIONS (bucket '{url}', subscribe 'orders', includeHeader 'true')", "did you mean 'includeHeaders'?"),
        ("OPTIONS (subscribe 'orders')", "option bucket is missing"),
    ],
)
def test_a_table_that_cannot_be_is_not_made(spark: SparkSession, bucket: HistoryBucket, clause: str, says: str) -> None:
    said = failure(lambda: spark.sql("CREATE TABLE wrong USING thermocline " + clause.format(url=bucket.url)))
    assert says in said and "Traceback" not in said
    assert not spark.catalog.tableExists("wrong")


def test_a_table_with_a_list_of_columns_says_what_to_do(spark: SparkSession, bucket: HistoryBucket) -> None:
    """Spark asks the source nothing then, so that its options are lost; a view with columns keeps them."""
    options = f"USING thermocline OPTIONS (bucket '{bucket.url}', subscribe 'orders')"
    spark.sql(f"CREATE TABLE lean (`offset` bigint) {options}")
    try:
        assert "use CREATE TEMPORARY VIEW" in failure(lambda: spark.table("lean").count())
    finally:
        spark.sql("DROP TABLE lean")
    spark.sql(f"CREATE TEMPORARY VIEW lean_view (`offset` bigint) {options}")
    assert spark.sql("SELECT sum(`offset`) FROM lean_view").head()[0] == 2 * sum(range(ROWS // 2))  # type: ignore[index]
    assert plan_summaries(spark.table("lean_view"))[0].columns == ("offset",)


# ── sums ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_explain_tells_what_is_read_and_what_is_spared(
    spark: SparkSession, bucket: HistoryBucket, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the manifests' own sums: two of three segments of one partition, none of the other's."""
    with History.open(bucket.url) as history:
        parts = [history.partition("orders", partition) for partition in (0, 1)]
        sizes = [segment.log_bytes for segment in parts[1].segments(0, ROWS)]
        held = sum(part.manifest.live.log_bytes for part in parts)
    query = frame(spark, bucket).where(
        "partition = 1 and offset >= 110 and timestamp < timestamp_millis(9999999999999)"
    )
    (found,) = plan_summaries(query.select("offset"))
    assert found.read == Amount(190, 2, sizes[1] + sizes[2]) and found.held == Amount(ROWS, 6, held)
    assert found.pruned_bytes == held - sizes[1] - sizes[2] > 0 and found.tail_offsets == 0
    explain(query)
    said = capsys.readouterr().out
    assert "offsets    190 of 600 (410 pruned)" in said and "segments   2 of 6 (4 pruned)" in said
    assert "offset >= 110, timestamp < 9999999999999 ms, partition in 1" in said
    assert ".schema() with fewer columns decodes fewer" in said
    lean = spark.read.format("thermocline").schema("offset bigint").options(bucket=bucket.url, subscribe="orders")
    assert ".schema()" not in str(plan_summaries(lean.load())[0])


def test_explain_of_several_reads_and_of_none(spark: SparkSession, bucket: HistoryBucket, table: str) -> None:
    one = spark.table(table)
    other = spark.read.format("thermocline").options(bucket=bucket.url, assign='{"orders":[0]}').load()
    found = plan_summaries(one.join(other, "offset"))
    assert [summary.partitions for summary in found] == [2, 1]
    assert plan_summaries(one.where("topic = 'none'"))[0].read == Amount()
    assert "reads no batch" in failure(lambda: explain(spark.range(3)))


def test_a_streams_progress_has_its_backlog(spark: SparkSession, bucket: HistoryBucket, tmp_path: Path) -> None:
    """Offsets and bytes behind the newest batch, trigger for trigger, until none is left."""
    with History.open(bucket.url) as history:
        live = [history.partition("orders", partition).manifest.live for partition in (0, 1)]
    stream = spark.readStream.format("thermocline").options(bucket=bucket.url, subscribe="orders")
    stream = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger=250)
    written = stream.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = written.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    told = [json.loads(progress["sources"][0]["latestOffset"]) for progress in query.recentProgress]
    behind = [latest["@backlog"] for latest in told]
    assert [one["offsets"] for one in behind] == [350, 100, 0]
    mean = sum(one.log_bytes for one in live) / ROWS
    assert [one["bytes"] for one in behind] == pytest.approx([350 * mean, 100 * mean, 0], abs=2)


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────
UNREACHABLE = "s3://no-bucket/log?endpoint=http://127.0.0.1:1&region=us-east-1"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffset": "earliest"}, r"unknown option 'startingoffset'; did you mean 'startingOffsets'\?"),
        ({"subscribe": "ordrs"}, r"has no topic 'ordrs'; did you mean 'orders'\?"),
        ({"bucket": UNREACHABLE}, r"is the address right and the store up\? Then try again"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "without kafka.bootstrap.servers the bucket alone is read"),
    ],
    ids=["option", "topic", "bucket", "cluster"],
)
def test_an_error_is_one_sentence(
    spark: SparkSession, bucket: HistoryBucket, options: dict[str, str], says: str
) -> None:
    """In a batch and in a stream: no frame of Python's, nor of Java's."""

    def stream() -> None:
        given = {"bucket": bucket.url, "subscribe": "orders", **options}
        written = spark.readStream.format("thermocline").options(**given).load().writeStream.format("noop")
        written.trigger(availableNow=True).start().awaitTermination(120)

    for said in (failure(lambda: frame(spark, bucket, options).count()), failure(stream)):
        assert re.search(says, said)
        assert "Traceback" not in said and 'File "' not in said and "\tat " not in said


def test_damage_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    """The task's own words: topic, partition, offsets, object, and what to do."""
    own = HistoryBucket(tmp_path)
    json_topic(own, "orders", partitions=1)
    assert own.path is not None
    (segment,) = own.path.glob("topics/*/0/segments/00000000000000000100-*")
    damaged = bytearray(segment.read_bytes())
    damaged[100] ^= 0x10
    segment.write_bytes(damaged)
    said = failure(lambda: frame(spark, own).count())
    assert re.search(r"DataLoss: orders-0: offsets \[100, 150\) are lost .*thermocline scrub", said)
    assert "Traceback" not in said and 'File "' not in said


def test_what_is_not_ours_keeps_its_stack(spark: SparkSession) -> None:
    """A user's own mistake in a function of his, in the same session."""
    from pyspark.sql import functions as F

    broken = F.udf(lambda value: 1 // value, "int")
    assert "Traceback" in failure(lambda: spark.range(1).select(broken("id")).collect())


@pytest.mark.parametrize("way", ["append", "overwrite", "insert", "stream"])
def test_writing_names_the_kafka_format(spark: SparkSession, table: str, tmp_path: Path, way: str) -> None:
    """Whatever options came with it: those of a topic to write are not ours."""
    rows = spark.range(1).selectExpr("cast(id as string) as value")

    def write() -> None:
        if way == "insert":
            spark.sql(f"INSERT INTO {table} SELECT * FROM {table}")
        elif way == "stream":
            rates = spark.readStream.format("rate").load()
            written = rates.writeStream.format("thermocline").option("checkpointLocation", str(tmp_path))
            written.option("topic", "orders").start().awaitTermination(120)
        else:
            rows.write.format("thermocline").mode(way).option("topic", "orders").save()

    said = failure(write)
    assert 'use format("kafka") with kafka.bootstrap.servers and topic' in said
    assert "Traceback" not in said and 'File "' not in said
