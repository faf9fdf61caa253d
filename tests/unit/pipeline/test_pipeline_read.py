"""`thermocline.read`: all rows in order by many threads, in bounded memory, with nothing left behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import thermocline
from logformat.errors import InvalidRequest
from logformat.record_batch import Codec
from logformat.records import Record, encode_batch
from tests.support.pipeline.history_bucket import T0, HistoryBucket, batch
from tests.support.waiting import wait_until
from thermocline.pipeline import read as read_module
from thermocline.pipeline import reader_pool
from thermocline.pipeline import scan as scan_module
from thermocline.pipeline.rows import DEFAULT_COLUMNS
from thermocline.pipeline.split import DataLoss
from thermocline.pipeline.windows import windows_of


@pytest.fixture(scope="module")
def bucket(tmp_path_factory) -> HistoryBucket:
    made = HistoryBucket(tmp_path_factory.mktemp("read"))
    made.topic("events", 3)
    made.fill("events", 0, [[7] * 50] * 4)
    made.fill("events", 2, [[100], [3] * 30])
    return made


@pytest.fixture
def small_windows(monkeypatch):
    """Many windows, so that threads meet."""
    monkeypatch.setattr(scan_module.SplitReader, "windows", lambda self, opened: windows_of(opened, 1000))


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith(("read-", "open", "history")):
            thread.join(5)
            assert not thread.is_alive(), thread.name


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_all_rows_partition_after_partition(bucket, small_windows, threads):
    """Whatever the threads: the same rows in the same order."""
    with thermocline.read(bucket.url, "events", threads=threads) as rows:
        assert rows.schema.names == list(DEFAULT_COLUMNS)
        table = pa.Table.from_batches(list(rows), schema=rows.schema)
    places = list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert places == [(0, n) for n in range(1400)] + [(2, n) for n in range(190)]
    assert table["key"].to_pylist()[:3] == [b"k0", b"k1", b"k2"]
    assert set(table["topic"].to_pylist()) == {"events"}


def test_offsets_partitions_columns_and_times(bucket):
    """What is asked for is what comes."""

    def offsets(**asked: object) -> list[int]:
        return thermocline.read(bucket.url, "events", columns=["offset"], **asked).to_table()["offset"].to_pylist()

    assert offsets(partitions=[2], start=5, end=105) == list(range(5, 105))
    assert offsets(start={0: 1390}, end={2: 3}) == [*range(1390, 1400), 0, 1, 2]
    assert offsets(partitions=[0], start_timestamp=T0 + 100, end_timestamp=T0 + 110) == list(range(100, 110))
    late = datetime.fromtimestamp((T0 + 1395) / 1000, UTC)
    assert offsets(partitions=[0], start_timestamp=late) == list(range(1395, 1400))
    assert offsets(partitions=[1]) == []
    assert thermocline.read(bucket.url, "events", columns=["value", "headers"]).to_table().column_names == [
        "value",
        "headers",
    ]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"topic": "event"}, "did you mean 'events'"),
        ({"columns": ["vlaue"]}, "vlaue"),
        ({"partitions": [3]}, "partitions 0 to 2"),
        ({"threads": 0}, "threads"),
        ({"start_timestamp": datetime(2024, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"start": 10_000}, "start 10000"),
    ],
)
def test_what_cannot_be_asked(bucket, asked, words):
    """Errors before any thread starts."""
    asked = {"topic": "events", **asked}
    with pytest.raises(InvalidRequest, match=words):
        thermocline.read(bucket.url, **asked)


def test_an_end_beyond_the_bucket_is_loss(bucket):
    """What is younger is on the brokers' disks: no silent short answer."""
    with pytest.raises(DataLoss, match="bucket ends at 190"):
        thermocline.read(bucket.url, "events", end=5000, partitions=[2])


def test_an_error_comes_behind_the_rows_before_it(tmp_path, small_windows):
    """Damage in the middle: all rows before, then the error, from any thread; then the reader is over."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("events")
    keys = bucket.fill("events", 0, [[5] * 60] * 3)
    bucket.flip(keys[1], len(b"".join(batch(n, 5) for n in range(300, 400, 5))) + 75)
    for threads in (1, 3):
        seen: list[int] = []
        rows = thermocline.read(bucket.url, "events", columns=["offset"], threads=threads)
        with pytest.raises(DataLoss, match=r"offsets \[400, 405\)"):
            for made in rows:
                seen += made.column(0).to_pylist()
        assert seen == list(range(400))
        assert list(rows) == []
    rows = thermocline.read(bucket.url, "events", columns=["offset"], fail_on_data_loss=False)
    assert rows.to_table()["offset"].to_pylist() == [*range(400), *range(405, 900)]
    assert len(rows.loss.damage) == 1


def test_a_missing_object_comes_behind_the_rows_before_it(tmp_path, small_windows):
    """Pieces are opened ahead of their rows; their errors are not."""
    bucket = HistoryBucket(tmp_path)
    bucket.topic("events")
    keys = bucket.fill("events", 0, [[5] * 60] * 3)
    bucket.object_path(keys[1]).unlink()
    seen: list[int] = []
    with pytest.raises(DataLoss, match=r"offsets \[300, 600\)"):
        for made in thermocline.read(bucket.url, "events", columns=["offset"], threads=2):
            seen += made.column(0).to_pylist()
    assert seen == list(range(300))


def test_rows_that_wait_are_bounded(tmp_path, monkeypatch, small_windows):
    """A reader that does not take: threads stop at the bound of waiting rows, however well they compress."""
    monkeypatch.setattr(reader_pool, "WINDOW_BYTES_WAITING_MAX", 1 << 16)
    bucket = HistoryBucket(tmp_path)
    bucket.topic("events")
    made = []
    for base in range(300):
        record = Record(base, T0, b"k", bytes(1 << 16))
        made.append(encode_batch([record], base_offset=base, leader_epoch=1, codec=Codec.ZSTD))
    bucket.append("events", 0, made)
    monkeypatch.setattr(read_module, "BATCH_BYTES", 1 << 16)
    with thermocline.read(bucket.url, "events", threads=3) as rows:
        first = next(rows)
        assert first.num_rows <= 2
        units = list(rows._started)
        wait_until(lambda: all(unit._bytes > 1 << 16 or unit._done for unit in units[:3]), "threads to wait")
        assert all(unit._bytes <= 3 << 16 and not unit._done for unit in units)
        assert sum(b.num_rows for b in rows) + first.num_rows == 300


def test_a_reader_that_is_forgotten_leaves_no_thread(bucket, small_windows):
    """No close, no exhaustion: the collector is enough (the fixture looks)."""
    rows = thermocline.read(bucket.url, "events", threads=2)
    next(rows)
    del rows


@pytest.mark.not_fast
def test_a_reader_left_open_does_not_keep_the_process(bucket):
    """A notebook's kernel ends although a reader stands in the middle."""
    program = f"""
import thermocline
rows = thermocline.read({bucket.url!r}, "events", threads=2)
next(rows)
print("read")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "read\n", "")


@pytest.mark.not_fast
def test_it_is_imported_lazily():
    """The command line does not pay for pyarrow and numba."""
    program = "import sys, thermocline as t; print('pyarrow' in sys.modules); t.read; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\nTrue\n", done.stderr
    with pytest.raises(AttributeError):
        thermocline.nothing  # noqa: B018
