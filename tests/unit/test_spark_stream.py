"""A stream's driver side over a real bucket and a scripted cluster: what it promised, and what became of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.history_bucket import HistoryBucket
from thermocline.pipeline.spark.options import parse_options
from thermocline.pipeline.spark.projection import full_schema
from thermocline.pipeline.spark.stream import StreamReader
from thermocline.pipeline.split import DataLoss


def reader_of(bucket: HistoryBucket, **more: str) -> StreamReader:
    given = {"bucket": bucket.url, "subscribe": "t", "startingOffsets": "earliest", **more}
    return StreamReader(parse_options(given), full_schema(False))


def test_finding_5_a_replayed_batch_says_what_expired(tmp_path: Path) -> None:
    """A batch up to 80 of a partition that appeared in it was checkpointed; before the restart retention took [0, 50).
    With failOnDataLoss=false what is left of it is planned."""
    bucket = HistoryBucket(tmp_path)
    topic_id = bucket.topic("t", 2)
    bucket.fill("t", 0, [[10]])
    bucket.fill("t", 1, [[50], [30]])
    start = {"t": {"0": 10}, "@topic_ids": {"t": str(topic_id)}}
    first = reader_of(bucket)
    end = first.latestOffset(start, ReadAllAvailable())
    first.stop()
    assert end["t"] == {"0": 10, "1": 80}
    bucket.expire("t", 1, 50)
    again = reader_of(bucket)
    with pytest.raises(DataLoss, match="t-1: .*its log starts at 50"):
        again.partitions(start, end)
    again.stop()
    lenient = reader_of(bucket, failOnDataLoss="false")
    tasks = [planned.value for planned in lenient.partitions(start, end)]
    lenient.stop()
    assert [(s.partition, s.rows.start_offset, s.rows.end_offset) for task in tasks for s in task] == [(1, 50, 80)]
