"""Compaction of an archive: fewer files, the same rows, whatever dies and whoever commits meanwhile."""

from __future__ import annotations

import signal
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logformat.errors import Corrupt, InvalidRequest
from logformat.records import Record, encode_batch
from tests.support.pipeline.archive_driver import drive_compact
from tests.support.pipeline.archive_kit import (
    JSON,
    data_files,
    is_bad,
    json_batch,
    json_topic,
    lake,
    named_files,
    places,
    rows,
    run,
)
from tests.support.pipeline.history_bucket import T0, HistoryBucket
from thermocline.cli.main import main
from thermocline.cli.terminal.outcome import Exit
from thermocline.pipeline.jobs.compaction import compact as compact_module
from thermocline.pipeline.jobs.compaction.compact import CompactSummary, compact
from thermocline.pipeline.jobs.compaction.compact_plan import StoredFile, groups
from thermocline.pipeline.jobs.compaction.compact_worker import run_compact
from thermocline.pipeline.jobs.iceberg_catalog import CatalogConfig, open_catalog
from thermocline.pipeline.jobs.job_crash_points import POINTS
from thermocline.pipeline.jobs.values import ValueSpec

pytestmark = pytest.mark.not_fast

TABLES = ("ns.js", "ns.js_dead_letters")
CRASHES = ("compact.file_written", "compact.files_written", "compact.committed")


def small_files(place: Path, **options: object) -> tuple[HistoryBucket, CatalogConfig]:
    """A stream archived often: a file a segment and partition, in both tables."""
    bucket, catalog = HistoryBucket(place), lake(place)
    json_topic(bucket, "js", segments=3, records=10)
    run(bucket, catalog, "js", "ns.js", values=JSON, bytes_max=1, **options)
    return bucket, catalog


def compacted(bucket: HistoryBucket, catalog: CatalogConfig, topic: str = "js", **options: object) -> CompactSummary:
    return compact(None, bucket.url, topic, f"ns.{topic}", catalog=catalog, **options)  # type: ignore[arg-type]


def contents(catalog: CatalogConfig, name: str) -> list[dict[str, object]]:
    found: pa.Table = rows(catalog, name)
    return sorted(found.to_pylist(), key=lambda row: (row["partition"], row["offset"]))


def remembered(catalog: CatalogConfig) -> set[str]:
    """Files that any snapshot of the tables names."""
    found = set()
    for name in TABLES:
        table = open_catalog(catalog).load_table(name)
        for snapshot in table.snapshots():
            tasks = table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
            found |= {task.file.file_path.removeprefix("file://") for task in tasks}
    return found


def test_small_files_become_one_a_partition(tmp_path: Path) -> None:
    """Row for row what stood there, for pyiceberg, polars and DuckDB; the archive goes on where it was."""
    bucket, catalog = small_files(tmp_path)
    before = {name: contents(catalog, name) for name in TABLES}
    said = {name: open_catalog(catalog).load_table(name).properties["thermocline.archived"] for name in TABLES}
    assert all(len(named_files(catalog, name)) == 6 for name in TABLES)
    summary = compacted(bucket, catalog)
    assert (summary.files_before, summary.files_merged, summary.files_made, summary.commits) == (12, 12, 4, 2)
    assert summary.rows == 120
    assert {name: contents(catalog, name) for name in TABLES} == before
    for name in TABLES:
        assert len(named_files(catalog, name)) == 2
        assert open_catalog(catalog).load_table(name).properties["thermocline.archived"] == said[name]
    assert data_files(tmp_path) == remembered(catalog)
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    table = open_catalog(catalog).load_table("ns.js")
    seen = polars.scan_iceberg(table).sort("partition", "offset").select("partition", "offset", "amount").collect()
    assert seen.rows() == [(row["partition"], row["offset"], row["amount"]) for row in before["ns.js"]]
    files = sorted(named_files(catalog, "ns.js"))
    asked = 'select count(*), count(distinct ("partition", "offset")), sum(amount) from read_parquet(?)'
    amounts = [row["amount"] for row in before["ns.js"]]
    assert duckdb.connect().execute(asked, [files]).fetchone() == (len(amounts), len(amounts), sum(amounts))  # type: ignore[arg-type]
    again = compacted(bucket, catalog)
    assert again.commits == 0 and again.files_merged == 0
    bucket.append("js", 0, [json_batch(60, 10)])
    assert run(bucket, catalog, "js", "ns.js").offsets == 10
    assert places(rows(catalog, "ns.js")) == [
        (p, n) for p, end in ((0, 70), (1, 60)) for n in range(end) if not is_bad(n)
    ]


def test_days_stay_apart_and_older_columns_are_null(tmp_path: Path) -> None:
    """Files from before a column was added, of two days: merged within a day only."""
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    bucket.topic("js", 1)

    def more(base: int, day: int) -> None:
        value = b'{"user":"u","amount":1,"city":"c"}'
        made = [Record(n, T0 + day * 86_400_000 + n, None, value) for n in range(base, base + 5)]
        bucket.append("js", 0, [encode_batch(made, base_offset=base, leader_epoch=1)])

    for number, day in enumerate((0, 0, 1, 1)):
        more(5 * number, day)
    run(bucket, catalog, "js", "ns.js", values=JSON, bytes_max=1, by_day=True)
    more(20, 1)
    run(bucket, catalog, "js", "ns.js", values=ValueSpec("json", JSON.columns + ", city string"))
    before = contents(catalog, "ns.js")
    assert [row["city"] for row in before] == [None] * 20 + ["c"] * 5
    summary = compacted(bucket, catalog)
    assert (summary.files_merged, summary.files_made) == (5, 2)
    assert contents(catalog, "ns.js") == before and len(named_files(catalog, "ns.js")) == 2


def test_every_point_of_compaction_is_killed_at() -> None:
    assert set(CRASHES) == {point for point in POINTS if point.startswith("compact.")}


@pytest.mark.parametrize("point", [f"{name}:{passes}" for name in CRASHES for passes in (1, 2)])
def test_a_compaction_killed_anywhere_leaves_the_same_rows(tmp_path: Path, point: str) -> None:
    """Also an archive that comes next finds its place; the rerun sweeps what the dead one wrote."""
    bucket, catalog = small_files(tmp_path)
    before = {name: contents(catalog, name) for name in TABLES}
    dead = drive_compact(bucket.url, tmp_path, "js", "ns.js", point)
    dead.join(90)
    assert dead.exitcode == -signal.SIGKILL
    assert {name: contents(catalog, name) for name in TABLES} == before
    assert run(bucket, catalog, "js", "ns.js").commits == 0
    compacted(bucket, catalog)
    assert {name: contents(catalog, name) for name in TABLES} == before
    assert all(len(named_files(catalog, name)) == 2 for name in TABLES)
    assert data_files(tmp_path) == remembered(catalog)


def test_an_archive_that_commits_meanwhile_is_not_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the merged files and their commit: the compaction is second and plans again, with the new file."""
    bucket, catalog = small_files(tmp_path)
    bucket.append("js", 0, [json_batch(60, 10)])
    once = []

    def archives(point: str) -> None:
        if point == "compact.files_written" and not once:
            once.append(run(bucket, catalog, "js", "ns.js"))

    monkeypatch.setattr(compact_module, "reach", archives)
    summary = compacted(bucket, catalog)
    assert once[0].offsets == 10 and summary.replanned == 1
    good = [(p, n) for p, end in ((0, 70), (1, 60)) for n in range(end)]
    assert places(rows(catalog, "ns.js")) == [one for one in good if not is_bad(one[1])]
    assert places(rows(catalog, "ns.js_dead_letters")) == [one for one in good if is_bad(one[1])]
    assert all(len(named_files(catalog, name)) == 2 for name in TABLES)
    assert data_files(tmp_path) == remembered(catalog)


def test_a_file_with_other_rows_than_the_table_says_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row too few, however it came: nothing is committed."""
    bucket, catalog = small_files(tmp_path)
    before = named_files(catalog, "ns.js")
    groups_of = compact_module.groups

    def one_row_more(files: object, target: int) -> list[tuple[StoredFile, ...]]:
        chosen = groups_of(files, target)  # type: ignore[arg-type]
        head = chosen[0][0]
        wrong = StoredFile(head.location, head.size, head.rows + 1, head.place, head.partition, head.first, head.last)
        return [(wrong, *chosen[0][1:]), *chosen[1:]]

    monkeypatch.setattr(compact_module, "groups", one_row_more)
    with pytest.raises(Corrupt, match="nothing was done"):
        compacted(bucket, catalog)
    assert named_files(catalog, "ns.js") == before and run_compact.__module__.endswith("compact_worker")


def test_the_command_compacts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run says what would be merged, and merges nothing; flags of archiving are refused."""
    bucket, catalog = small_files(tmp_path)
    words = ["archive", "js", "--bucket", bucket.url, "--table", "ns.js", "--warehouse", f"file://{tmp_path}/lake"]
    assert main([*words, "--compact", "--dry-run"]) == Exit.DONE
    assert "would merge    12 files" in capsys.readouterr().out.replace("would merge  ", "would merge    ", 1)
    assert len(named_files(catalog, *TABLES)) == 12
    assert main([*words, "--compact", "--by-day"]) == Exit.USAGE
    assert "--compact merges files as they are" in capsys.readouterr().err
    with pytest.raises(InvalidRequest, match="archive first"):
        compact(None, bucket.url, "js", "ns.none", catalog=catalog)


FILE = st.tuples(st.integers(0, 1), st.sampled_from("ab"), st.integers(1, 120), st.integers(1, 50))


@given(st.lists(FILE, max_size=30), st.integers(1, 200))
def test_groups_are_whole_and_in_order(made: list[tuple[int, str, int, int]], target: int) -> None:
    """No file twice, no group of one, none larger than the target, none over a large file or an overlap."""
    at = 0
    files = []
    for number, (partition, place, size, count) in enumerate(made):
        first = max(0, at - (number % 5 == 4))  # now and then one overlaps
        files.append(StoredFile(f"f{number}", size, count, place, partition, first, at + count - 1))
        at += count
    found = groups(files, target)
    flat = [one for group in found for one in group]
    assert len(flat) == len({one.location for one in flat})
    for group in found:
        assert len(group) > 1 and sum(one.size for one in group) <= target
        assert len({(one.place, one.partition) for one in group}) == 1
        assert all(one.last < after.first for one, after in pairwise(group))
