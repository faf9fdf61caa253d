"""`thermocline.read` from S3: the same rows as from a directory, whatever the network does, with few requests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
import pytest

import thermocline
from coldstore.object_store import AccessRefused, ObjectMissing, StoreUnavailable
from logformat.errors import InvalidRequest
from tests.support.pipeline.history_bucket import HistoryBucket
from tests.support.store.s3_servers import (
    Fault,
    StoreProxy,
    find_versitygw,
    moto_server,
    store_proxy,
    versitygw_server,
)
from thermocline.pipeline import arrow_store
from thermocline.pipeline import read as read_module
from thermocline.pipeline.arrow_store import ArrowStore, finished, open_arrow_store
from thermocline.pipeline.history import History
from thermocline.pipeline.jobs.scrub.scrub import scrub
from thermocline.pipeline.split import DataLoss

ROWS = 3 * 400 * 20
KINDS = ("moto", pytest.param("versitygw", marks=pytest.mark.peer))


@pytest.fixture(scope="module", params=KINDS)
def proxy(request) -> Iterator[StoreProxy]:
    if request.param == "versitygw" and find_versitygw() is None:
        pytest.skip("versitygw is missing: tests/support/store/get_versitygw.sh installs it")
    start = {"moto": moto_server, "versitygw": versitygw_server}[request.param]
    with start() as server, store_proxy(server) as proxy:
        before = dict(os.environ)
        os.environ.update(server.environment())
        try:
            yield proxy
        finally:
            os.environ.clear()
            os.environ.update(before)


@pytest.fixture(scope="module")
def bucket(proxy: StoreProxy) -> HistoryBucket:
    """Three segments of about 1.2 MB each, above 512 KiB so that windows and footers are requests of their own."""
    made = HistoryBucket(proxy.bucket_url("history", prefix="a/b"))
    made.topic("events")
    made.fill("events", 0, [[400] * 20] * 3, value_bytes=100, interval=64 * 1024)
    return made


@pytest.fixture(autouse=True)
def quiet_network(proxy: StoreProxy, monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(read_module, "WINDOW_BYTES", 256 * 1024)
    yield
    proxy.faults()
    proxy.delay(0)


def table(bucket: HistoryBucket, **asked: object) -> pa.Table:
    return thermocline.read(bucket.url, "events", **asked).to_table()


def all_of(found: pa.Table) -> bool:
    return found["offset"].to_pylist() == list(range(ROWS)) and found["key"][ROWS - 1].as_py() == b"k%d" % (ROWS - 1)


def test_all_rows_and_few_requests(bucket, proxy):
    """Every byte of the log once, in windows; a footer, a look at size and identity for each object."""
    proxy.forget()
    with thermocline.read(bucket.url, "events") as rows:
        found = pa.Table.from_batches(list(rows), schema=rows.schema)
        fetched = rows.bytes_fetched
    assert all_of(found)
    asked = proxy.requests()
    assert {request.method for request in asked} <= {"GET", "HEAD"}
    segments = [request for request in asked if "/segments/" in request.key]
    log_bytes = sum(segment.log_bytes for segment in bucket.segments("events", 0))
    windows = log_bytes // (256 * 1024) + 3
    assert len([r for r in segments if r.method == "HEAD"]) == 3
    assert len([r for r in segments if r.method == "GET"]) <= windows + 3
    assert fetched < log_bytes + 3 * 64 * 1024 + 20_000
    assert sum(request.sent for request in segments) < 1.1 * log_bytes + 3 * 64 * 1024


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", match="/segments/", status=503, times=3),
        Fault("reset", match="/segments/", times=2),
        Fault("truncate", method="GET", match="/segments/", times=2),
        Fault("flip", method="GET", match="/segments/", after=4, times=1),
        Fault("slow", match="/segments/", seconds=1.0, times=2),
        Fault("status", match="manifest.json", status=500, times=2),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.match.strip('/')}",
)
def test_a_network_that_recovers_costs_no_row(bucket, proxy, fault):
    """Refusals, resets, short and false answers, each a few times: all rows, and no loss."""
    proxy.faults(fault)
    rows = thermocline.read(bucket.url, "events", threads=2)
    assert all_of(rows.to_table())
    assert proxy.hits() == [fault.times] and not rows.loss.damage


def test_bits_that_stay_flipped_are_loss(bucket, proxy):
    """Every answer is false: the reader says which batch, and never gives a row of it."""
    proxy.faults(Fault("flip", method="GET", match="/segments/00000000000000008000", after=1))
    with pytest.raises(DataLoss, match=r"events-0: offsets \[\d+, \d+\)"):
        table(bucket)


@pytest.mark.parametrize("grows", [True, False], ids=["grows", "shrinks"])
def test_a_root_replaced_between_head_and_get_is_no_damage(proxy, monkeypatch, grows):
    """pyarrow asks for the size, then for the bytes: a commit in between gives a root cut short, or one with a tail."""
    made = HistoryBucket(proxy.bucket_url("replaced", prefix=f"grows-{grows:d}"))
    topic_id = made.topic("events")
    store = open_arrow_store(made.url)
    roots = ("cluster.json", f"topics/{topic_id}/0/manifest.json")
    small = {key: finished(store.get(key)).data for key in roots}
    made.fill("events", 0, [[3]])
    made.topic("others", 3)
    large = {key: finished(store.get(key)).data for key in roots}
    first, second = (small, large) if grows else (large, small)
    client = proxy.client()

    def put(key: str, data: bytes) -> None:
        client.put_object(Bucket="replaced", Key=f"grows-{grows:d}/{key}", Body=data)

    left, really = set[str](), ArrowStore._opened

    def replaced_once() -> None:
        for key in roots:
            assert len(small[key]) < len(large[key])
            put(key, first[key])
        left.update(roots)

    def opened(self: ArrowStore, key: str) -> pa.NativeFile:
        handle = really(self, key)
        if key in left:
            left.remove(key)
            put(key, second[key])
        return handle

    monkeypatch.setattr(ArrowStore, "_opened", opened)
    replaced_once()
    with History.open(made.url) as history:
        assert set(history.topics()) == ({"events", "others"} if grows else {"events"})
        assert history.partition("events", 0).remote_end == (3 if grows else 0)
    assert not left
    replaced_once()
    assert not scrub(None, made.url).damage and not left


def test_a_store_that_stalls_is_an_error_in_time(bucket, proxy, monkeypatch):
    """No answer at all: every request has a time-out, retries are bounded, the reader hears of it."""
    monkeypatch.setattr(arrow_store, "REQUEST_S", 1.0)
    monkeypatch.setattr(arrow_store, "ATTEMPTS_MAX", 2)
    proxy.faults(Fault("stall", match="/segments/", seconds=30.0))
    with pytest.raises(StoreUnavailable):
        table(bucket)


def test_refusals_and_what_is_not_there(bucket, proxy):
    """403, a missing bucket, a missing topic: each its own error."""
    proxy.faults(Fault("status", match="manifest.json", status=403))
    with pytest.raises(AccessRefused, match="right to read"):
        table(bucket)
    proxy.faults()
    with pytest.raises(InvalidRequest, match="did you mean 'events'"):
        thermocline.read(bucket.url, "evens")
    with pytest.raises(ObjectMissing):
        open_arrow_store(bucket.url).read("topics/none", 0, 1)
    with pytest.raises(InvalidRequest, match="holds no topics"):
        thermocline.read(bucket.url.replace("/history/", "/nowhere/"), "events")


def test_a_root_is_read_again_only_when_it_changed(bucket, proxy):
    """A HEAD tells; the body comes once."""
    proxy.forget()
    store = open_arrow_store(bucket.url)
    first = finished(store.get("cluster.json"))
    assert finished(store.get_if_changed("cluster.json", first.etag)) is None
    assert [request.method for request in proxy.requests()] == ["HEAD", "GET", "HEAD"]
