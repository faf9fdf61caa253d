"""Spark SQL over records that stand behind younger ones: pushed filters choose what unpushed ones do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logformat.records import Record, encode_batch
from tests.support.pipeline.history_bucket import T0, HistoryBucket
from tests.support.pipeline.spark_kit import spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(240)
__all__ = ["spark"]


def test_finding_1_spark_sql_finds_the_same_rows_pushed_or_not(spark: SparkSession, tmp_path: Path) -> None:
    """`WHERE timestamp < X` over batches whose first record is younger than X and a later one is older."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("t", 1)
    base = 0
    for times in ([T0 + 300, T0 + 100], [T0 + 400, T0 + 50, T0 + 500]):
        made = [Record(base + n, at, b"k", b"v") for n, at in enumerate(times)]
        bucket.append("t", 0, [encode_batch(made, base_offset=base, leader_epoch=1)])
        base += len(times)
    found = {}
    try:
        for pushed in ("false", "true"):
            spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
            frame = spark.read.format("thermocline").option("bucket", bucket.url).option("subscribe", "t").load()
            rows = frame.where(f"timestamp < timestamp_millis({T0 + 200})").select("offset").collect()
            found[pushed] = sorted(row.offset for row in rows)
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert found == {"false": [1, 3], "true": [1, 3]}
