"""Scrub as a Spark job: what its workers find, the command's exit codes, killed and run again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coldstore.inspection.audit import FindingKind
from tests.support.clients.stock_clients import commit_offset, create_topic, write_confluent
from tests.support.pipeline.history_bucket import HistoryBucket
from tests.support.pipeline.spark_kit import mixed, spark
from tests.support.processes.site import Site, seal, wait_snapshot
from tests.support.store.buckets import DirectoryBucket
from tests.support.store.s3_servers import S3Server, moto_server
from thermocline.cli.main import main
from thermocline.cli.terminal.outcome import Exit
from thermocline.pipeline.jobs.scrub.scrub import scrub
from thermocline.pipeline.jobs.spark_tasks import TasksFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(240)
__all__ = ["spark"]


@pytest.fixture
def bucket(tmp_path: Path) -> HistoryBucket:
    made = HistoryBucket(tmp_path)
    made.topic("events", 2)
    for partition in (0, 1):
        made.fill("events", partition, [[50] * 4] * 5, value_bytes=200)
    return made


def test_workers_find_what_is_damaged_and_say_where(spark: SparkSession, bucket: HistoryBucket) -> None:
    """One bit, one missing object and one swapped pair, each named, in ten tasks."""
    assert not scrub(spark, bucket.url, task_bytes=1).damage
    assert bucket.path is not None
    keys = {p: [one.key(bucket._ids["events"], p) for one in bucket.segments("events", p)] for p in (0, 1)}
    bucket.flip(keys[0][2], 12_000)
    (bucket.path / str(keys[0][4])).unlink()
    left, right = (bucket.path / str(keys[1][n]) for n in (1, 3))
    mine, theirs = left.read_bytes(), right.read_bytes()
    left.write_bytes(theirs)
    right.write_bytes(mine)
    report = scrub(spark, bucket.url, task_bytes=1)
    found = {(one.partition, one.finding.key, one.finding.kind) for one in report.damage}
    assert {key for _, key, _ in found} == {str(keys[0][2]), str(keys[0][4]), str(keys[1][1]), str(keys[1][3])}
    assert (0, str(keys[0][4]), FindingKind.MISSING) in found
    flipped = next(one.finding for one in report.damage if one.finding.key == str(keys[0][2]))
    assert flipped.offset is not None and 400 <= flipped.offset < 600
    assert report.tasks == 9 - sum(kind is FindingKind.WRONG_SIZE for _, _, kind in found)


def test_a_killed_worker_is_no_finding(spark: SparkSession, bucket: HistoryBucket, tmp_path: Path) -> None:
    environment = spark.sparkContext.environment
    armed = {"THERMOCLINE_TESTING": "true", "THERMOCLINE_CRASH_AT": "scrub.object_read"}
    armed["THERMOCLINE_CRASH_ONCE"] = str(tmp_path / "killed")
    environment.update(armed)
    try:
        with pytest.raises(TasksFailed, match="run the job again"):
            scrub(spark, bucket.url, task_bytes=1)
    finally:
        for name in armed:
            del environment[name]
    assert not scrub(spark, bucket.url, task_bytes=1).damage


def test_the_command_ends_with_five_when_the_books_are_damaged(
    bucket: HistoryBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run reads roots and pages, and starts no Spark."""

    def said(code: int, *words: str) -> tuple[str, str]:
        assert main(["scrub", *words]) == code
        return capsys.readouterr()

    assert "objects to read" in said(Exit.DONE, bucket.url, "--dry-run")[0]
    clean = json.loads(said(Exit.DONE, bucket.url, "--dry-run", "--json")[0])
    assert (clean["kind"], clean["partitions"], clean["objects"], clean["damaged"]) == ("summary", 2, 10, 0)
    path = bucket.manifest_path("events", 0)
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    found = said(Exit.FINDINGS, bucket.url, "--dry-run", "--json")[0]
    damaged, summary = map(json.loads, found.splitlines())
    assert damaged["key"].endswith("/0/manifest.json") and summary["damaged"] == 1
    nothing = said(Exit.USAGE, f"file://{tmp_path}/nothing", "--master", "no such master: told before Spark starts")
    assert "nothing was scrubbed" in nothing[1]


@pytest.mark.slow
def test_the_command_ends_with_five_when_an_object_is_damaged(bucket: HistoryBucket, tmp_path: Path) -> None:
    """Starts a Spark of its own; JSON lines as `bucket verify` prints them."""
    key = bucket.segments("events", 1)[0].key(bucket._ids["events"], 1)
    bucket.flip(key, 100)
    found = command(bucket.url, "--master", "local[2]", "--json", "--journal", str(tmp_path / "journal"))
    assert found.returncode == 5 and not found.stderr, "nothing of what the JVM says"
    line, summary = map(json.loads, found.stdout.splitlines())
    assert (line["kind"], line["topic"], line["partition"], line["key"]) == ("damaged", "events", 1, str(key))
    assert (summary["objects"], summary["damaged"]) == (10, 1)
    assert not (tmp_path / "journal").exists()
    wrong = command(bucket.url, "--master", "no-such-master")
    assert wrong.returncode == 1 and "Master must either be" in wrong.stderr, "what only the JVM can say"


def command(*words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "thermocline", "scrub", *words]
    return subprocess.run(program, capture_output=True, text=True, timeout=200, env=dict(os.environ))


def test_a_bucket_on_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3Server("").environment().items():
        monkeypatch.setenv(name, value)
    with moto_server() as s3:
        bucket = HistoryBucket(s3.bucket_url("log", "prod"))
        bucket.topic("events")
        first, second = bucket.fill("events", 0, [[30], [30]])
        assert not scrub(None, bucket.url).damage
        client = s3.client()
        data = bytearray(client.get_object(Bucket="log", Key=f"prod/{first}")["Body"].read())
        data[150] ^= 4
        client.put_object(Bucket="log", Key=f"prod/{first}", Body=bytes(data))
        client.delete_object(Bucket="log", Key=f"prod/{second}")
        found = {(one.finding.key, one.finding.kind) for one in scrub(None, bucket.url).damage}
    assert found == {(str(first), FindingKind.DAMAGED), (str(second), FindingKind.MISSING)}


def test_beside_a_live_broker(tmp_path: Path) -> None:
    """A broker's whole bucket, its group snapshot and metadata included: no damage while it writes, and again at rest;
    then a bit in each kind of object that a broker leaves is found."""
    site = Site(tmp_path, DirectoryBucket(tmp_path / "bucket"))
    url = site.bucket.url
    with site.broker() as broker:
        create_topic(broker.kafka, "events", 2, internal_segment_bytes=20_480)
        for partition in (0, 1):
            write_confluent(broker.kafka, "events", partition, mixed(partition, 0, 200), "lz4", False)
        commit_offset(broker.kafka, "group", "events", 0, 7)
        seal(broker)
        wait_snapshot(site.bucket, 1)
        for _ in range(5):
            assert not scrub(None, url).damage
        broker.stop()
    report = scrub(None, url)
    assert not report.damage and report.partitions >= 3
    unnamed = {one.finding.key for one in report.findings}
    kinds = {"segments/": 0, "snapshots/": 0, "manifest.json": 0, "cluster.json": 0, "lease.json": 0}
    for key in sorted(site.bucket.listing() - unnamed):
        kind = next((name for name in kinds if name in key), None)
        if kind is None or kinds[kind] == 2:
            continue
        path = tmp_path / "bucket" / key
        whole = path.read_bytes()
        kinds[kind] += 1
        path.write_bytes(whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 2]) + whole[len(whole) // 2 + 1 :])
        assert key in {one.finding.key for one in scrub(None, url).damage}, key
        path.write_bytes(whole)
    assert all(kinds.values()), kinds
