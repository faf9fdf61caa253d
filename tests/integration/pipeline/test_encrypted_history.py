"""Jobs over an encrypted bucket: Spark, scrub and archive, with the key file in the bucket's URL or the environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coldstore.inspection.audit import FindingKind
from coldstore.object_store import AccessRefused
from tests.support.pipeline.archive_kit import lake
from tests.support.pipeline.history_bucket import HistoryBucket
from tests.support.pipeline.spark_kit import frame, spark
from tests.support.store.keys import write_key_file
from thermocline.pipeline.history import History
from thermocline.pipeline.jobs.archive import archive
from thermocline.pipeline.jobs.scrub.scrub import scrub

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(240)
__all__ = ["spark"]
ROWS = 1000


@pytest.fixture
def bucket(tmp_path: Path) -> HistoryBucket:
    keys = write_key_file(tmp_path / "keys.json", "one")
    made = HistoryBucket(f"file://{tmp_path}/bucket?key_file={keys}")
    made.topic("events")
    made.fill("events", 0, [[50] * 4] * 5, value_bytes=200)
    return made


def test_spark_reads_what_the_key_opens(spark: SparkSession, bucket: HistoryBucket, tmp_path: Path) -> None:
    """Every row; the key file's path travels in the URL, its keys never leave the file."""
    rows = frame(spark, {"bucket": bucket.url, "subscribe": "events"}).select("offset").collect()
    assert sorted(row.offset for row in rows) == list(range(ROWS))
    for stored in (tmp_path / "bucket").rglob("*.log"):
        assert stored.read_bytes().endswith(b"THERMENC")


def test_scrub_judges_encrypted_objects(spark: SparkSession, bucket: HistoryBucket, tmp_path: Path) -> None:
    """Nothing to find, then one flipped bit and two swapped objects, each named."""
    assert not scrub(spark, bucket.url).damage
    objects = sorted((tmp_path / "bucket").rglob("*.log"))
    flipped, left, right = objects[0], objects[2], objects[3]
    data = bytearray(flipped.read_bytes())
    data[12_000] ^= 1
    flipped.write_bytes(data)
    mine, theirs = left.read_bytes(), right.read_bytes()
    left.write_bytes(theirs)
    right.write_bytes(mine)
    damage = scrub(spark, bucket.url).damage
    assert {Path(one.finding.key).name for one in damage} == {flipped.name, left.name, right.name}
    assert all(one.finding.kind in (FindingKind.DAMAGED, FindingKind.WRONG_SIZE) for one in damage)


def test_archive_reads_an_encrypted_bucket(spark: SparkSession, bucket: HistoryBucket, tmp_path: Path) -> None:
    """The table is plain: it is not in the bucket."""
    assert archive(spark, bucket.url, "events", "ns.events", catalog=lake(tmp_path)).rows == ROWS


def test_a_job_without_the_key_says_what_is_missing(
    bucket: HistoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one with the environment's needs nothing in the URL."""
    url = bucket.url.partition("?")[0]
    with pytest.raises(AccessRefused, match="is encrypted"), History.open(url) as history:
        history.topic("events")
    monkeypatch.setenv("THERMOCLINE_ENCRYPTION_KEY_FILE", str(tmp_path / "keys.json"))
    with History.open(url) as history:
        assert history.topic("events").partitions == 1
