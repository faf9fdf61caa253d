"""An archive's table gets columns, and may be partitioned by day; pyiceberg, polars and DuckDB read the same rows."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logformat.errors import InvalidRequest
from logformat.records import Record, encode_batch
from tests.support.pipeline.archive_kit import JSON, is_bad, json_topic, lake, named_files, places, rows, run
from tests.support.pipeline.history_bucket import T0, HistoryBucket
from thermocline.pipeline.jobs import archive_worker
from thermocline.pipeline.jobs.iceberg_catalog import open_catalog
from thermocline.pipeline.jobs.tables import iceberg_table
from thermocline.pipeline.jobs.tables.iceberg_table import StaleTable, open_table
from thermocline.pipeline.jobs.values import ValueSpec, extends

MORE = ValueSpec("json", "user string, amount double, city string", keep_value=True)
DAY_MS = 86_400_000


def city_batch(base: int, count: int) -> bytes:
    """JSON with the new field; offsets as `json_batch` has them."""
    records = [
        Record(n, T0 + n, b"k%d" % n, json.dumps({"user": f"u{n}", "amount": n + 0.5, "city": f"c{n}"}).encode())
        for n in range(base, base + count)
    ]
    return encode_batch(records, base_offset=base, leader_epoch=1)


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_column_more_grows_the_table(tmp_path: Path) -> None:
    """It was refused: another table had to be made. Older rows have nulls; the next run needs no word about it."""
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    json_topic(bucket, "js", partitions=1, segments=1, records=10)
    assert run(bucket, catalog, "js", "ns.js", values=JSON).rows == 17
    bucket.append("js", 0, [city_batch(20, 10)])
    assert run(bucket, catalog, "js", "ns.js", values=MORE).rows == 10
    bucket.append("js", 0, [city_batch(30, 5)])
    assert run(bucket, catalog, "js", "ns.js").rows == 5
    found = rows(catalog, "ns.js").sort_by("offset")
    assert places(found) == [(0, n) for n in range(35) if n >= 20 or not is_bad(n)]
    assert found["city"].to_pylist() == [None] * 17 + [f"c{n}" for n in range(20, 35)]
    assert [value is None for value in found["value"].to_pylist()] == [True] * 17 + [False] * 15
    assert found["amount"].to_pylist() == [n + 0.5 for _, n in places(found)]
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    table = open_catalog(catalog).load_table("ns.js")
    seen = polars.scan_iceberg(table).sort("offset").select("offset", "city").collect()
    assert seen["city"].to_list() == found["city"].to_pylist()
    files = sorted(named_files(catalog, "ns.js"))
    asked = "select count(city), sum(amount) from read_parquet(?, union_by_name=true)"
    assert duckdb.connect().execute(asked, [files]).fetchone() == (15, pc.sum(found["amount"]).as_py())
    letters = places(rows(catalog, "ns.js_dead_letters"))
    assert letters == [(0, n) for n in range(20) if is_bad(n)]


@pytest.mark.parametrize(
    "changed",
    [
        ValueSpec("json", "user string"),
        ValueSpec("json", "user string, amount bigint"),
        ValueSpec("json", "user string, amount double from price"),
        ValueSpec(),
    ],
)
def test_a_column_is_not_changed(tmp_path: Path, changed: ValueSpec) -> None:
    """Fewer columns, another type, another member: another table."""
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    json_topic(bucket, "js", partitions=1, segments=1, records=10)
    run(bucket, catalog, "js", "ns.js", values=JSON)
    with pytest.raises(InvalidRequest, match=r"keeps values as json.*name all stored columns and new ones"):
        run(bucket, catalog, "js", "ns.js", values=changed)
    assert extends(JSON, MORE) and not extends(MORE, JSON) and not extends(JSON, changed)


def test_a_new_fixed_column_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a table is older than a column of ours: here one that was dropped."""
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    json_topic(bucket, "js", partitions=1, segments=1, records=10)
    run(bucket, catalog, "js", "ns.js", values=JSON)
    for name in ("ns.js", "ns.js_dead_letters"):
        with open_catalog(catalog).load_table(name).update_schema() as update:
            update.delete_column("timestamp_type")
    bucket.append("js", 0, [city_batch(20, 5)])
    assert run(bucket, catalog, "js", "ns.js").rows == 5
    found = rows(catalog, "ns.js").sort_by("offset")["timestamp_type"].to_pylist()
    assert found == [None] * 17 + [0] * 5


def test_files_made_for_fewer_columns_are_made_again(tmp_path: Path) -> None:
    """Two archivers: columns are added between one's files and its commit, which must not leave nulls behind."""
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    json_topic(bucket, "js", partitions=1, segments=1, records=10)
    run(bucket, catalog, "js", "ns.js", values=JSON)
    bucket.append("js", 0, [city_batch(20, 10)])
    late = open_table(open_catalog(catalog), "ns.js")
    assert late is not None
    planned = late.archived()
    grown = open_table(open_catalog(catalog), "ns.js")
    assert grown is not None
    grown.grow(pa.schema([pa.field("city", pa.string())]), {})
    change = iceberg_table.ArchiveCommit("js", planned.topic_id, {0: ((20, 30),)}, "late")  # type: ignore[arg-type]
    with pytest.raises(StaleTable):
        late.commit([], planned, change, point="archive.committed")
    with pytest.raises(StaleTable, match="run again"):
        behind = open_table(open_catalog(catalog), "ns.js")
        assert behind is not None
        grown.grow(pa.schema([pa.field("street", pa.string())]), {})
        behind.grow(pa.schema([pa.field("zip", pa.string())]), {})
    assert run(bucket, catalog, "js", "ns.js", values=MORE).rows == 10


def test_columns_wait_for_a_step_that_did_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead letters that stand were found by the old decoder: it ends the step, then columns are added."""
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    json_topic(bucket, "js", partitions=1, segments=2, records=10)
    run(bucket, catalog, "js", "ns.js", values=JSON, bytes_max=1, commits_max=1)

    def dies(point: str) -> None:
        if point == "archive.dead_letters_committed":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(iceberg_table, "reach", dies)
        with pytest.raises(KeyboardInterrupt):
            run(bucket, catalog, "js", "ns.js")
    with pytest.raises(InvalidRequest, match="run once without --value and --columns"):
        run(bucket, catalog, "js", "ns.js", values=MORE)
    assert run(bucket, catalog, "js", "ns.js").commits == 1
    assert run(bucket, catalog, "js", "ns.js", values=MORE).commits == 0
    assert "city" in rows(catalog, "ns.js").column_names


# ── days ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def days_topic(bucket: HistoryBucket, days: list[int]) -> None:
    """One record a day named, in this order; bad rows too."""
    bucket.topic("days", 1)
    records = [Record(n, T0 + day * DAY_MS + n, None, b'{"user":"u","amount":1}') for n, day in enumerate(days)]
    bucket.append("days", 0, [encode_batch(records, base_offset=0, leader_epoch=1)])


def test_a_table_by_day_has_a_day_a_file(tmp_path: Path) -> None:
    """A scan of one day opens that day's files, and every reader finds every row."""
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    days = [0, 0, 1, 1, 1, 2, 0, 3, 3]
    days_topic(bucket, days)
    summary = run(bucket, catalog, "days", "ns.days", values=JSON, by_day=True)
    assert summary.rows == 9 and summary.files == 4
    table = open_catalog(catalog).load_table("ns.days")
    assert [field.name for field in table.spec().fields] == ["timestamp_day"]
    assert places(rows(catalog, "ns.days")) == [(0, n) for n in range(9)]
    start = datetime.datetime.fromtimestamp(T0 / 1000, datetime.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    day = [start + datetime.timedelta(days=n) for n in range(5)]
    scan = table.scan(row_filter=f"timestamp >= '{day[1].isoformat()}' and timestamp < '{day[2].isoformat()}'")
    (task,) = scan.plan_files()
    assert task.file.record_count == 3 and scan.to_arrow()["offset"].to_pylist() == [2, 3, 4]
    for name in named_files(catalog, "ns.days"):
        assert pc.count_distinct(pq.read_table(name)["timestamp"].cast(pa.date32())).as_py() == 1
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    assert sorted(polars.scan_iceberg(table).select("offset").collect()["offset"].to_list()) == list(range(9))
    files = sorted(named_files(catalog, "ns.days"))
    assert duckdb.connect().execute("select count(*) from read_parquet(?)", [files]).fetchone() == (9,)
    bucket.append("days", 0, [city_batch(9, 3)])
    assert run(bucket, catalog, "days", "ns.days").rows == 3  # later runs need not say it


def test_days_are_said_when_the_table_is_made(tmp_path: Path) -> None:
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    days_topic(bucket, [0, 1])
    run(bucket, catalog, "days", "ns.days")
    with pytest.raises(InvalidRequest, match="not partitioned by day"):
        run(bucket, catalog, "days", "ns.days", by_day=True)


def test_clocks_that_jump_open_few_files_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More days than files may be open: a day that comes back has two files, and no row is lost."""
    monkeypatch.setattr(archive_worker, "DAYS_OPEN_MAX", 2)
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    bucket.topic("days", 1)
    days = [0, 1, 2, 3, 0, 1]
    batches = [
        encode_batch([Record(n, T0 + day * DAY_MS, None, b"v")], base_offset=n, leader_epoch=1)
        for n, day in enumerate(days)
    ]
    for made in batches:
        bucket.append("days", 0, [made])
    summary = run(bucket, catalog, "days", "ns.days", by_day=True)
    assert summary.files == 6 and places(rows(catalog, "ns.days")) == [(0, n) for n in range(6)]


MICROS = st.one_of(
    st.none(),
    st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999),
    st.integers(-3, 2_932_896).flatmap(
        lambda day: st.sampled_from([-1, 0, 1]).map(lambda by: day * 86_400_000_000 + by)
    ),
)


@given(st.lists(MICROS, max_size=20))
@settings(deadline=None)
def test_rows_fall_to_their_day(micros: list[int | None]) -> None:
    """By integer arithmetic, at midnight's edge and beyond what a float can tell; order within a day is kept."""
    times = pa.array(micros, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    batch = pa.RecordBatch.from_arrays([times, pa.array(range(len(micros)))], names=["timestamp", "n"])
    found = {day: rows["n"].to_pylist() for day, rows in archive_worker.by_day(batch)}
    wanted: dict[int | None, list[int]] = {}
    for n, at in enumerate(micros):
        wanted.setdefault(None if at is None else at // 86_400_000_000 * 86_400_000_000, []).append(n)
    assert found == wanted
