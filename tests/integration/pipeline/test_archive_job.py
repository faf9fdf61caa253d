"""Archive as a Spark job: what a local session writes, read by other engines; killed workers; S3 and Glue catalogs.

The steps one by one, killed and racing, without Spark: test_archive_crashes.py.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import duckdb
import pytest

from logformat.record_batch import Codec
from logformat.records import Record, encode_batch
from tests.support.pipeline.archive_kit import JSON, data_files, is_bad, json_topic, lake, named_files, places, rows
from tests.support.pipeline.history_bucket import T0, HistoryBucket
from tests.support.pipeline.rest_catalog import rest_catalog
from tests.support.pipeline.spark_kit import spark
from tests.support.store.s3_servers import S3Server, moto_server
from thermocline.cli.main import main
from thermocline.cli.terminal.outcome import Exit
from thermocline.pipeline.jobs.archive import archive
from thermocline.pipeline.jobs.compaction.compact import compact
from thermocline.pipeline.jobs.iceberg_catalog import catalog_config, open_catalog
from thermocline.pipeline.jobs.spark_tasks import TasksFailed
from thermocline.pipeline.jobs.tables.iceberg_table import ArchiveCommit, StaleTable, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(240)
__all__ = ["spark"]


@pytest.fixture
def mixed(tmp_path: Path) -> tuple[HistoryBucket, list[Record]]:
    """All codecs, headers, nulls, times in no order: partition 0 of `events`; and the same records as they were."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("events")
    written: list[Record] = []
    for codec in Codec:
        base = len(written)
        made = [
            Record(
                offset,
                T0 + 1000 * (offset % 7),
                None if offset % 5 == 0 else b"k%d" % offset,
                None if offset % 3 == 0 else b"v%d " % offset * 20,
                () if offset % 4 else (("n", b"%d" % offset), ("ü", None)),
            )
            for offset in range(base, base + 30)
        ]
        bucket.append("events", 0, [encode_batch(made, base_offset=base, leader_epoch=1, codec=codec)])
        written += made
    return bucket, written


def test_other_engines_read_what_was_archived(
    spark: SparkSession, mixed: tuple[HistoryBucket, list[Record]], tmp_path: Path
) -> None:
    """Row by row: polars through the Iceberg table, DuckDB through its files, and back to the records."""
    bucket, written = mixed
    summary = archive(spark, bucket.url, "events", "ns.events", catalog=lake(tmp_path), target_bytes=2000)
    assert summary.rows == len(written) and summary.tasks > 1
    table = open_catalog(lake(tmp_path)).load_table("ns.events")
    expected = [
        (
            record.offset,
            datetime.datetime.fromtimestamp(record.timestamp / 1000, datetime.UTC),
            record.key,
            record.value,
            list(record.headers),
        )
        for record in written
    ]
    polars = pytest.importorskip("polars")
    frame = polars.scan_iceberg(table).sort("offset").collect()
    seen = [
        (*map(row.get, ("offset", "timestamp", "key", "value")), [(h["key"], h["value"]) for h in row["headers"] or []])
        for row in frame.iter_rows(named=True)
    ]
    assert seen == expected
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    connection = duckdb.connect()
    found = connection.execute(
        'select count(*), count(distinct "offset"), min("offset"), max("offset"), sum(octet_length(value)), '
        "count(key), epoch_ms(max(timestamp)), sum(len(headers)) from read_parquet(?)",
        [files],
    ).fetchone()
    assert found is not None
    values = [record.value for record in written if record.value is not None]
    keys = sum(record.key is not None for record in written)
    assert found[:6] == (len(written), len(written), 0, len(written) - 1, sum(map(len, values)), keys)
    assert found[6:] == (T0 + 6000, sum(len(record.headers) for record in written))


def test_a_killed_worker_fails_the_run_and_the_next_one_is_whole(spark: SparkSession, tmp_path: Path) -> None:
    """A local session gives a task one try: nothing was committed; the rerun sweeps what the dead worker left."""
    bucket = HistoryBucket(tmp_path)
    json_topic(bucket, "js", segments=2, records=20)
    environment = spark.sparkContext.environment
    once = tmp_path / "killed"
    for point in ("archive.file_written",):
        armed = {
            "THERMOCLINE_TESTING": "true",
            "THERMOCLINE_CRASH_AT": point,
            "THERMOCLINE_CRASH_ONCE": f"{once}-{point}",
        }
        environment.update(armed)
        try:
            with pytest.raises(TasksFailed):
                archive(spark, bucket.url, "js", "ns.js", catalog=lake(tmp_path), values=JSON, target_bytes=1000)
        finally:
            for name in armed:
                del environment[name]
        assert len(rows(lake(tmp_path), "ns.js")) == 0
    assert data_files(tmp_path), "the dead left something"
    summary = archive(spark, bucket.url, "js", "ns.js", catalog=lake(tmp_path))
    assert summary.leftovers_deleted > 0
    assert data_files(tmp_path) == named_files(lake(tmp_path), "ns.js", "ns.js_dead_letters")
    good = places(rows(lake(tmp_path), "ns.js"))
    assert good == [(p, o) for p in (0, 1) for o in range(80) if not is_bad(o)]


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3Server("").environment().items():
        monkeypatch.setenv(name, value)


def test_log_and_warehouse_on_s3_catalog_in_glue(credentials: None) -> None:
    """History from one bucket, Parquet and metadata into another, commits by Glue's own compare-and-set."""
    with moto_server() as s3:
        bucket = HistoryBucket(s3.bucket_url("log", "prod"))
        json_topic(bucket, "js", partitions=1, segments=2, records=20)
        glue = {"glue.endpoint": s3.endpoint, "glue.region": "us-east-1"}
        catalog = catalog_config("glue", s3.bucket_url("lake", "warehouse"), glue)
        first = archive(None, bucket.url, "js", "ns.js", catalog=catalog, values=JSON, bytes_max=1000)
        assert first.commits == 2 and first.rows + first.dead_letters == 80
        assert archive(None, bucket.url, "js", "ns.js", catalog=catalog).commits == 0
        assert places(rows(catalog, "ns.js")) == [(0, offset) for offset in range(80) if not is_bad(offset)]
        table = open_catalog(catalog).load_table("ns.js")
        assert all(task.file.file_path.startswith("s3://lake/warehouse/") for task in table.scan().plan_files())
        stood = places(rows(catalog, "ns.js"))
        archive(None, bucket.url, "js", "ns.small", catalog=catalog, values=JSON, bytes_max=1)
        merged = compact(None, bucket.url, "js", "ns.small", catalog=catalog)
        assert merged.files_merged > merged.files_made > 0
        assert places(rows(catalog, "ns.small")) == stood


def test_spark_merges_small_files(spark: SparkSession, tmp_path: Path) -> None:
    """By its own tasks: the same rows in a file a partition."""
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    json_topic(bucket, "js", segments=3, records=20)
    archive(None, bucket.url, "js", "ns.js", catalog=catalog, values=JSON, bytes_max=1)
    before = rows(catalog, "ns.js").sort_by([("partition", "ascending"), ("offset", "ascending")])
    summary = compact(spark, bucket.url, "js", "ns.js", catalog=catalog)
    assert (summary.files_merged, summary.files_made) == (12, 4)
    after = rows(catalog, "ns.js").sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert after.equals(before) and len(named_files(catalog, "ns.js")) == 2


def test_the_command_archives_and_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run first; --json; usage errors are exit 2."""
    bucket = HistoryBucket(tmp_path)
    json_topic(bucket, "js", segments=1, records=10)
    common = ["archive", "js", "--bucket", bucket.url, "--table", "ns.js", "--warehouse", f"file://{tmp_path}/lake"]
    assert main([*common, "--dry-run", "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["offsets"] == 40
    assert main([*common, "--columns", "a int", "--dry-run"]) == Exit.USAGE
    assert "--value" in capsys.readouterr().err
    assert main([*[word if word != "js" else "jss" for word in common], "--dry-run"]) == Exit.USAGE
    assert "did you mean 'js'" in capsys.readouterr().err


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "thermocline", *words]
    return subprocess.run(program, capture_output=True, text=True, timeout=200, env=os.environ | environment)


@pytest.mark.slow
def test_the_command_on_spark_killed_and_run_again(tmp_path: Path) -> None:
    """The driver with its JVM dies between its two commits; the next command ends the work."""
    bucket = HistoryBucket(tmp_path)
    json_topic(bucket, "js", segments=2, records=20)
    words = ["archive", "js", "--bucket", bucket.url, "--table", "ns.js", "--warehouse", f"file://{tmp_path}/lake"]
    words += ["--master", "local[2]", "--value", "json", "--columns", JSON.columns, "--json"]
    armed = {"THERMOCLINE_TESTING": "true", "THERMOCLINE_CRASH_AT": "archive.dead_letters_committed"}
    assert command(*words, **armed).returncode == -9
    again = command(*words)
    assert again.returncode == 0 and json.loads(again.stdout)["rows"] == 138
    assert data_files(tmp_path) == named_files(lake(tmp_path), "ns.js", "ns.js_dead_letters")


def test_a_rest_catalog_commits_on_the_snapshot_it_was_asked_to(tmp_path: Path) -> None:
    """The requirement travels over HTTP: whoever planned on an older snapshot is refused and plans again."""
    bucket = HistoryBucket(tmp_path)
    json_topic(bucket, "js", segments=2, records=20)
    with rest_catalog(open_catalog(lake(tmp_path))) as url:
        catalog = catalog_config(url)
        first = archive(None, bucket.url, "js", "ns.js", catalog=catalog, values=JSON, bytes_max=1000, commits_max=1)
        assert first.commits == 1 and first.remaining_offsets
        behind = open_table(open_catalog(catalog), "ns.js")
        assert behind is not None
        planned = behind.archived()
        archive(None, bucket.url, "js", "ns.js", catalog=catalog)
        late = ArchiveCommit("js", planned.topic_id or UUID(int=0), {0: ((0, 1),)}, "late")
        with pytest.raises(StaleTable, match="somebody else"):
            behind.commit([], planned, late, point="archive.committed")
    good = places(rows(lake(tmp_path), "ns.js"))
    assert good == [(p, o) for p in (0, 1) for o in range(80) if not is_bad(o)]
    assert data_files(tmp_path) == named_files(lake(tmp_path), "ns.js", "ns.js_dead_letters")
