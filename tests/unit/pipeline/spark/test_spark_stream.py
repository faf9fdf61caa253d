"""A stream's driver side over a real bucket and a scripted cluster: what it promised, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from logformat.values import TopicPartition
from tests.support.pipeline.history_bucket import HistoryBucket
from thermocline.pipeline.spark.batch import BatchReader
from thermocline.pipeline.spark.cluster import ClusterTopic
from thermocline.pipeline.spark.options import parse_options
from thermocline.pipeline.spark.projection import full_schema
from thermocline.pipeline.spark.stream import StreamReader
from thermocline.pipeline.spark.tail import TailPart
from thermocline.pipeline.spark.tiers import Tiers, Watch
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
    with pytest.raises(DataLoss, match=r"t-1: .*its log starts at 50"):
        again.partitions(start, end)
    again.stop()
    lenient = reader_of(bucket, failOnDataLoss="false")
    tasks = [planned.value for planned in lenient.partitions(start, end)]
    lenient.stop()
    assert [(s.partition, s.rows.start_offset, s.rows.end_offset) for task in tasks for s in task] == [(1, 50, 80)]


class ScriptedCluster:
    """A cluster with the topic `t` of one partition, whose first offset is 0; counts who asked for its topics."""

    def __init__(self, topic_id: UUID, end: int) -> None:
        self.topic_id, self.end, self.discoveries = topic_id, end, 0

    def topics(self) -> dict[str, ClusterTopic]:
        self.discoveries += 1
        return {"t": ClusterTopic("t", self.topic_id, 1, False)}

    def starts(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 0)

    def ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, self.end)

    def first_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {}


class SetClock:
    """A clock that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def tailed(
    bucket: HistoryBucket, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, **more: str
) -> tuple[StreamReader, SetClock]:
    monkeypatch.setattr(Tiers, "_cluster", lambda self: cluster)
    reader, clock = reader_of(bucket, **{"kafka.bootstrap.servers": "127.0.0.1:1"}, **more), SetClock()
    reader._watch = Watch(Tiers(reader._options), clock)
    return reader, clock


def spans(reader: StreamReader, start: dict[str, object], end: dict[str, object]) -> list[tuple[str, int, int]]:
    """What the batch reads, and from which tier."""
    parts = [part for planned in reader.partitions(start, end) for part in planned.value]
    return [
        ("hot" if isinstance(part, TailPart) else "cold", part.rows.start_offset, part.rows.end_offset)
        for part in parts
    ]


def test_finding_6_a_topic_made_again_between_two_triggers_is_not_read_as_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old topic ended at 120, where the stream stands. It is made again and has 150 records a second later, before
    topics are looked for again: those from 120 on are not the old topic's."""
    bucket = HistoryBucket(tmp_path)
    cluster = ScriptedCluster(bucket.topic("t", 1), 120)
    bucket.fill("t", 0, [[100]])
    reader, clock = tailed(bucket, cluster, monkeypatch)
    first = reader.initialOffset()
    at = reader.latestOffset(first, ReadAllAvailable())
    assert spans(reader, first, at) == [("cold", 0, 100), ("hot", 100, 120)]
    bucket.delete("t")
    cluster.topic_id, cluster.end = bucket.topic("t", 1), 150
    clock.now = 1.0
    after = reader.latestOffset(at, ReadAllAvailable())
    with pytest.raises(DataLoss, match="created again"):
        reader.partitions(at, after)
    reader.stop()


def test_finding_6_a_topic_made_again_is_read_from_its_own_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """failOnDataLoss=false: the batch of the old topic is left out; the next one starts the new one anew, by the new
    manifest, though the old one's was loaded a moment ago."""
    bucket = HistoryBucket(tmp_path)
    cluster = ScriptedCluster(bucket.topic("t", 1), 120)
    bucket.fill("t", 0, [[100]])
    reader, clock = tailed(bucket, cluster, monkeypatch, failOnDataLoss="false")
    at = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    bucket.delete("t")
    cluster.topic_id, cluster.end = bucket.topic("t", 1), 150
    bucket.fill("t", 0, [[30]])
    clock.now = 1.0
    after = reader.latestOffset(at, ReadAllAvailable())
    assert spans(reader, at, after) == []
    clock.now = 2.0
    then = reader.latestOffset(after, ReadAllAvailable())
    assert spans(reader, after, then) == [("cold", 0, 30), ("hot", 30, 150)]
    reader.stop()


def test_a_batch_of_the_bucket_alone_asks_nobody_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a tail is read by name; the bucket's rows by the topic's id. Discovery costs a request each."""
    bucket = HistoryBucket(tmp_path)
    cluster = ScriptedCluster(bucket.topic("t", 1), 100)
    bucket.fill("t", 0, [[100]])
    reader, _ = tailed(bucket, cluster, monkeypatch)
    first = reader.initialOffset()
    assert spans(reader, first, reader.latestOffset(first, ReadAllAvailable())) == [("cold", 0, 100)]
    assert cluster.discoveries == 1
    reader.stop()


class GrowingCluster(ScriptedCluster):
    """Records arrive between the question for the ends and the one for the first record of a time."""

    first = 0

    def first_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        self.end = max(self.end, self.first + 1)
        return dict.fromkeys(times, self.first)


LATER = str(1 << 50)  # above every timestamp in the bucket


def test_a_stream_from_a_time_starts_at_a_record_that_has_just_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offset 130 is the first of that time, and the log ended at 120 a moment ago: nothing is lost, and nothing older
    is read."""
    bucket = HistoryBucket(tmp_path)
    cluster = GrowingCluster(bucket.topic("t", 1), 120)
    cluster.first = 130
    bucket.fill("t", 0, [[100]])
    monkeypatch.setattr(Tiers, "_cluster", lambda self: cluster)
    given = {"bucket": bucket.url, "subscribe": "t", "startingTimestamp": LATER}
    options = parse_options({**given, "kafka.bootstrap.servers": "127.0.0.1:1"})
    reader = StreamReader(options, full_schema(False))
    reader._watch = Watch(Tiers(options), SetClock())
    first = reader.initialOffset()
    at = reader.latestOffset(first, ReadAllAvailable())
    assert spans(reader, first, at) == [("hot", 130, 131)]
    reader.stop()


@pytest.mark.parametrize(
    ("side", "expected"), [("startingTimestamp", []), ("endingTimestamp", [("cold", 0, 100), ("hot", 100, 120)])]
)
def test_a_batch_by_time_ends_where_the_log_ended_when_it_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str, expected: list[tuple[str, int, int]]
) -> None:
    """The first record of that time arrived after the ends were read: that is no loss."""
    bucket = HistoryBucket(tmp_path)
    cluster = GrowingCluster(bucket.topic("t", 1), 120)
    cluster.first = 130
    bucket.fill("t", 0, [[100]])
    monkeypatch.setattr(Tiers, "_cluster", lambda self: cluster)
    given = {"bucket": bucket.url, "subscribe": "t", side: LATER, "kafka.bootstrap.servers": "127.0.0.1:1"}
    tasks, _ = BatchReader(parse_options(given), full_schema(False))._planned()
    found = [part for task in tasks for part in task or ()]
    assert [
        ("hot" if isinstance(part, TailPart) else "cold", part.rows.start_offset, part.rows.end_offset)
        for part in found
    ] == expected
