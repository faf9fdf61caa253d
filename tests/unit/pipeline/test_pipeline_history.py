"""A bucket's history without a broker: which topic a name means, what a partition holds, when that is read again."""

from __future__ import annotations

import pytest

from coldstore.object_store import ObjectMissing
from logformat.errors import Corrupt, InvalidRequest
from tests.support.pipeline.history_bucket import T0, HistoryBucket
from thermocline.pipeline.arrow_store import finished, open_arrow_store
from thermocline.pipeline.history import History
from thermocline.pipeline.split import DataLoss, Loss


def test_topics_by_cluster_json(tmp_path):
    """Names, ids and counts; a topic deleted and made again under its name is the one that lives."""
    bucket = HistoryBucket(tmp_path)
    old = bucket.topic("events", 2)
    bucket.topic("gone")
    bucket.delete("gone")
    bucket.delete("events")
    new = bucket.topic("events", 3)
    bucket.fill("events", 0, [[5, 5]])
    with History.open(bucket.url) as history:
        assert {name: (t.topic_id, t.partitions) for name, t in history.topics().items()} == {"events": (new, 3)}
        assert history.topic(str(new)).topic == "events"
        assert history.partition("events", 0).remote_end == 10
        with pytest.raises(InvalidRequest, match="did you mean 'events'"):
            history.topic("event")
        with pytest.raises(InvalidRequest, match="partitions 0 to 2, not 3"):
            history.partition("events", 3)
    assert old != new


def test_topics_without_cluster_json(tmp_path):
    """The manifests say it too; which of two topics with one name lives they do not say: an error, never a guess."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("events", 2)
    bucket.fill("events", 0, [[5]])
    bucket.topic("__consumer_offsets")
    (tmp_path / "bucket" / "cluster.json").unlink()
    with History.open(bucket.url) as history:
        assert [(name, topic.partitions) for name, topic in history.topics().items()] == [("events", 2)]
        assert history.partition("events", 0).remote_end == 5
    bucket.topic("events", 1)
    (tmp_path / "bucket" / "cluster.json").unlink()
    with History.open(bucket.url) as history, pytest.raises(InvalidRequest, match="deleted and created again"):
        history.topics()


def test_a_damaged_manifest_of_the_first_partition_does_not_hide_the_topic(tmp_path, caplog):
    """Without cluster.json the lowest partition alone was asked for the name: `did you mean` another topic."""
    bucket = HistoryBucket(tmp_path)
    events, lost = bucket.topic("events", 3), bucket.topic("lost")
    for topic, partitions in (("events", 3), ("lost", 1)):
        for partition in range(partitions):
            bucket.fill(topic, partition, [[5]])
    (tmp_path / "bucket" / "cluster.json").unlink()
    for topic_id in (events, lost):
        (tmp_path / "bucket" / "topics" / str(topic_id) / "0" / "manifest.json").write_bytes(b"{rotten")
    with History.open(bucket.url) as history:
        assert {name: topic.partitions for name, topic in history.topics().items()} == {"events": 3}
        assert history.partition("events", 2).remote_end == 5
        with pytest.raises(Corrupt, match=f"{events}/0/manifest.json"):
            history.partition("events", 0)
    assert f"topic {lost} is left out" in caplog.text and f"{lost}/0/manifest.json" in caplog.text
    assert f"topic {events}" not in caplog.text


def test_a_stray_folder_does_not_make_a_topic_of_millions_of_partitions(tmp_path):
    """Without cluster.json the highest number of any folder was believed."""
    bucket = HistoryBucket(tmp_path)
    events = bucket.topic("events", 2)
    for partition in range(2):
        bucket.fill("events", partition, [[5]])
    (tmp_path / "bucket" / "cluster.json").unlink()
    for number in ("10000", "2147483646", "9" * 200):
        stray = tmp_path / "bucket" / "topics" / str(events) / number / "x"
        stray.parent.mkdir()
        stray.touch()
    with History.open(bucket.url) as history:
        assert history.topic("events").partitions == 2


def test_an_empty_bucket_has_no_topics(tmp_path):
    """Nothing there: an error that says so, not an empty read."""
    with History.open(f"file://{tmp_path}/nothing") as history:
        assert not history.topics()
        with pytest.raises(InvalidRequest, match="holds no topics"):
            history.topic("events")


def test_a_partition_is_read_again_when_it_changed(tmp_path):
    """New segments show in the next look; a value once given does not change."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("events")
    bucket.fill("events", 0, [[5]])
    with History.open(bucket.url) as history:
        before = history.partition("events", 0)
        assert history.partition("events", 0).manifest is before.manifest
        bucket.fill("events", 0, [[5, 5]], base=5)
        after = history.partition("events", 0)
        assert (before.remote_end, after.remote_end) == (5, 15)
        assert [s.end_offset for s in before.segments(0, 100)] == [5]
        assert [s.end_offset for s in after.segments(0, 100)] == [5, 15]


@pytest.mark.parametrize("pages", [False, True])
def test_segments_by_offset_and_time(tmp_path, pages):
    """Segments of a range, whether the root holds them or pages do."""
    bucket = HistoryBucket(tmp_path, pages=pages)
    bucket.topic("events")
    bucket.fill("events", 0, [[10]] * 60)
    with History.open(bucket.url) as history:
        part = history.partition("events", 0)
        assert bool(part.manifest.pages) is pages
        assert [s.base_offset for s in part.segments(0, 600)] == list(range(0, 600, 10))
        assert [s.base_offset for s in part.segments(105, 131)] == [100, 110, 120, 130]
        assert [s.base_offset for s in part.segments(0, 600, T0 + 95, T0 + 120, late_ms=0)] == [90, 100, 110]
        assert [s.base_offset for s in part.segments(0, 600, T0 + 565, T0 + 570)] == [560, 570, 580, 590]
        before = history.store.requests
        live = part.live(0, 600)
        assert not live.skipped and len(live.segments) == 60
        assert history.store.requests == before, "pages are read once"


def test_pages_outside_the_time_are_not_read(tmp_path):
    """A month of manifest pages costs the ones of that hour, and is no hole in the plan."""
    bucket = HistoryBucket(tmp_path, pages=True)
    bucket.topic("events")
    bucket.fill("events", 0, [[10]] * 60)
    with History.open(bucket.url) as history:
        (split,) = history.plan(
            {("events", 0): (0, 600)}, min_timestamp_ms=T0 + 95, max_timestamp_ms=T0 + 120, late_ms=0
        )
        assert [piece.segment.base_offset for piece in split.pieces] == [90, 100, 110]
        cheap = history.store.requests
    with History.open(bucket.url) as history:
        history.plan({("events", 0): (0, 600)})
        assert history.store.requests > cheap


def test_a_page_that_a_newer_root_replaced(tmp_path):
    """A page deleted after its grace: the newest manifest names another one, and the range is the same."""
    bucket = HistoryBucket(tmp_path, pages=True)
    bucket.topic("events")
    bucket.fill("events", 0, [[10]] * 60)
    with History.open(bucket.url) as history:
        part = history.partition("events", 0)
        bucket.fill("events", 0, [[10]] * 30, base=600)
        newer = history.partition("events", 0)
        named = finished(newer._reader.page_sizes(newer.manifest))
        stale = [page for page in part.manifest.pages if str(page.key(part.topic_id, 0)) not in named]
        for page in stale:
            (tmp_path / "bucket" / str(page.key(part.topic_id, 0))).unlink()
        assert stale
    with History.open(bucket.url) as history:
        fresh = history.partition("events", 0)
        fresh.manifest = part.manifest  # as it stood before
        assert [s.base_offset for s in fresh.segments(0, 600)] == list(range(0, 600, 10))


def test_a_manifest_that_is_gone_is_loss(tmp_path):
    """cluster.json names the topic, its partition has no manifest."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("events", 2)
    bucket.manifest_path("events", 1).unlink()
    with History.open(bucket.url) as history, pytest.raises(DataLoss, match="events-1 has no manifest"):
        history.partitions([("events", 0), ("events", 1)])


def test_a_start_below_the_log_start(tmp_path):
    """Earliest is the log start; an explicit offset below it is loss, or is counted and begins at the log start."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("events")
    bucket.fill("events", 0, [[10]] * 5)
    bucket.expire("events", 0, 20)
    with History.open(bucket.url) as history:
        part = history.partition("events", 0)
        assert part.log_start == 20 and [s.base_offset for s in part.segments(0, 50)] == [20, 30, 40]
        with pytest.raises(DataLoss, match=r"offsets \[10, 20\).*log starts at 20"):
            history.plan({("events", 0): (10, 50)})
        loss = Loss()
        (split,) = history.plan({("events", 0): (10, 50)}, fail_on_data_loss=False, loss=loss)
        assert (split.rows.start_offset, split.rows.end_offset) == (20, 50) and len(loss.damage) == 1


def test_the_store_answers_exactly_or_says_why(tmp_path):
    """Ranges, tails, listings and what is not there."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("events")
    (key,) = bucket.fill("events", 0, [[10]])
    store = open_arrow_store(bucket.url)
    data = bucket.object_path(key).read_bytes()
    assert bytes(store.read(str(key), 5, 20)) == data[5:25]
    assert finished(store.get(str(key), -7)).data == data[-7:]
    assert finished(store.get(str(key))).data == data
    with pytest.raises(Corrupt, match=f"has {len(data)} bytes"):
        store.read(str(key), len(data) - 5, 6)
    with pytest.raises(ObjectMissing):
        store.read("topics/none", 0, 1)
    with pytest.raises(ObjectMissing):
        finished(store.get("cluster.json/x"))

    async def listed(prefix: str) -> list[str]:
        return [info.key async for info in store.list(prefix)]

    assert str(key) in finished(listed("topics/")) and finished(listed("cluster")) == ["cluster.json"]
    assert not finished(listed("nothing/"))
    first = finished(store.get("cluster.json"))
    assert finished(store.get_if_changed("cluster.json", first.etag)) is None
    bucket.topic("more")
    changed = finished(store.get_if_changed("cluster.json", first.etag))
    assert changed is not None and changed.etag != first.etag
    assert store.requests > 5 and store.bytes_read > len(data)


@pytest.mark.parametrize("url", ["http://x", "s3://", "s3://b?endpoint=ftp://x", "s3://b?regoin=x", "file://rel"])
def test_a_bad_url_is_refused(url):
    """Before anything is sent."""
    with pytest.raises(InvalidRequest):
        History.open(url)
