"""Archiving in one process: what stands in the tables after races, lost answers, expired and rolled back snapshots.

Rows come from real objects and go to real Parquet files in a SQLite catalog; only Spark is left out (it is in
tests/integration/pipeline/test_archive_job.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from coldstore.segments.segment_object import DecidedTransaction, TransactionOutcome
from logformat.errors import Corrupt, InvalidRequest
from logformat.gap import gap_batches
from logformat.records import Record, encode_batch
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
from thermocline.pipeline.jobs import archive as archive_module
from thermocline.pipeline.jobs import archive_worker, offset_ranges
from thermocline.pipeline.jobs.archive_summary import ArchiveSummary
from thermocline.pipeline.jobs.iceberg_catalog import catalog_config, open_catalog
from thermocline.pipeline.jobs.spark_tasks import InProcess, TasksFailed
from thermocline.pipeline.jobs.tables import iceberg_table
from thermocline.pipeline.jobs.tables.iceberg_table import ArchiveTable, StaleTable, open_table
from thermocline.pipeline.jobs.values import ValueSpec, decoder_of
from thermocline.pipeline.split import DataLoss


@pytest.fixture
def bucket(tmp_path: Path) -> HistoryBucket:
    made = HistoryBucket(tmp_path)
    made.topic("events", 2)
    made.fill("events", 0, [[10, 20], [30], [40]])
    made.fill("events", 1, [[5], [6]])
    return made


def every(ends: Sequence[int]) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, end in enumerate(ends) for offset in range(end)]


# ── one archiver ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_an_archive_is_what_the_log_holds_and_grows_with_it(bucket: HistoryBucket, tmp_path: Path) -> None:
    """Dry run, first run, a run with nothing to do, a run after new segments; a bound on commits is kept."""
    catalog = lake(tmp_path)
    dry = run(bucket, catalog, "events", "ns.events", dry_run=True, bytes_max=2000)
    assert dry.commits > 1 and dry.offsets == 111 and not data_files(tmp_path)
    first = run(bucket, catalog, "events", "ns.events", bytes_max=2000, commits_max=1)
    assert first.commits == 1 and 0 < first.rows < 111 and first.remaining_offsets == 111 - first.offsets
    second = run(bucket, catalog, "events", "ns.events", bytes_max=2000)
    assert second.commits == dry.commits - 1 and first.rows + second.rows == 111
    assert run(bucket, catalog, "events", "ns.events").commits == 0
    bucket.fill("events", 1, [[7]], base=11)
    assert run(bucket, catalog, "events", "ns.events").rows == 7
    found = rows(catalog, "ns.events")
    assert places(found) == every([100, 18])
    assert set(found["topic"].to_pylist()) == {"events"}
    row = found.filter(pc.and_(pc.equal(found["partition"], 0), pc.equal(found["offset"], 42))).to_pylist()[0]
    assert (row["key"], row["value"], row["timestamp_type"]) == (b"k42", b"42.".ljust(40, b"v"), 0)
    assert row["timestamp"].timestamp() == pytest.approx(1_700_000_000.042)
    assert data_files(tmp_path) == named_files(catalog, "ns.events")


def test_the_offsets_stand_in_the_snapshots(bucket: HistoryBucket, tmp_path: Path) -> None:
    """Each commit says what it adds and what stands then; what the commits add tiles what stands."""
    catalog = lake(tmp_path)
    summary = run(bucket, catalog, "events", "ns.events", bytes_max=2000)
    table = open_catalog(catalog).load_table("ns.events")
    added: dict[int, tuple[tuple[int, int], ...]] = {}
    for snapshot in table.snapshots():
        assert snapshot.summary is not None
        said = snapshot.summary.additional_properties
        more = offset_ranges.decode(said[iceberg_table.ADDED])
        assert not offset_ranges.common(added, more)
        added = offset_ranges.union(added, more)
        assert offset_ranges.decode(said[iceberg_table.ARCHIVED]) == added
    assert added == {0: ((0, 100),), 1: ((0, 11),)} == summary.archived


def test_files_are_pruned_by_offset_and_time(bucket: HistoryBucket, tmp_path: Path) -> None:
    """A file is of one partition, sorted by offset, zstd, with bounds that let a reader skip it."""
    catalog = lake(tmp_path)
    run(bucket, catalog, "events", "ns.events", bytes_max=2000)
    table = open_catalog(catalog).load_table("ns.events")
    everything = list(table.scan().plan_files())
    some = list(table.scan(row_filter="partition = 0 and offset >= 70").plan_files())
    assert 0 < len(some) < len(everything)
    late = list(table.scan(row_filter="timestamp >= '2023-11-14T22:13:20.070+00:00'").plan_files())
    assert 0 < len(late) < len(everything)
    for task in everything:
        held = pq.read_table(task.file.file_path.removeprefix("file://"))
        offsets = held["offset"].to_pylist()
        assert offsets == sorted(offsets) and len(set(held["partition"].to_pylist())) == 1
        metadata = pq.read_metadata(task.file.file_path.removeprefix("file://"))
        assert metadata.row_group(0).column(2).compression == "ZSTD"
        assert task.file.record_count == len(offsets)


def test_what_expired_before_it_was_archived_fails_or_is_reported(bucket: HistoryBucket, tmp_path: Path) -> None:
    catalog = lake(tmp_path)
    run(bucket, catalog, "events", "ns.events")
    bucket.fill("events", 0, [[10], [10]], base=100)
    bucket.expire("events", 0, 110)
    with pytest.raises(DataLoss, match=r"partition 0: \[100, 110\)"):
        run(bucket, catalog, "events", "ns.events")
    summary = run(bucket, catalog, "events", "ns.events", fail_on_data_loss=False)
    assert [str(one) for one in summary.lost] == ["partition 0: [100, 110)"] and summary.rows == 10
    assert summary.archived[0] == ((0, 100), (110, 120))
    assert run(bucket, catalog, "events", "ns.events").commits == 0, "said once, when it was stepped over"


def test_what_expired_before_a_partition_had_its_first_commit_is_lost_too(tmp_path: Path) -> None:
    """But not what had expired before the archive began."""
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    bucket.topic("e", 2)
    for partition in (0, 1):
        bucket.fill("e", partition, [[10], [50], [50]])
        bucket.expire("e", partition, 10)
    (done,) = run(bucket, catalog, "e", "ns.e", commits_max=1, bytes_max=1).archived
    bucket.expire("e", 1 - done, 60)
    words = f"partition {1 - done}: [10, 60)"
    with pytest.raises(DataLoss, match=re.escape(words)):
        run(bucket, catalog, "e", "ns.e")
    assert list(map(str, run(bucket, catalog, "e", "ns.e", dry_run=True).lost)) == [words]
    assert list(map(str, run(bucket, catalog, "e", "ns.e", fail_on_data_loss=False).lost)) == [words]
    assert run(bucket, catalog, "e", "ns.e").commits == 0, "said once, when it was stepped over"


def test_damage_fails_the_run_or_is_reported(bucket: HistoryBucket, tmp_path: Path) -> None:
    """Nothing of a failed step is committed."""
    key = bucket.append("events", 1, [json_batch(11, 5)])
    bucket.flip(key, 200)
    catalog = lake(tmp_path)
    with pytest.raises(DataLoss, match="events-1"):
        run(bucket, catalog, "events", "ns.events")
    assert len(rows(catalog, "ns.events")) == 0
    summary = run(bucket, catalog, "events", "ns.events", fail_on_data_loss=False)
    assert summary.damage and places(rows(catalog, "ns.events")) == every([100, 11])


class Loses(InProcess):
    """A worker that hands back a row less than there are."""

    def run(self, function: Any, tasks: Any, progress: Any) -> Any:
        done = super().run(function, tasks, progress)
        done[0].rows -= 1
        return done


def test_a_record_that_no_transaction_took_back_may_not_be_missing(
    bucket: HistoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifests count it, no footer excuses it: nothing is committed, or it is said."""
    monkeypatch.setattr(archive_module, "SparkTasks", lambda spark: Loses())
    catalog: Any = lake(tmp_path)

    def lossy(**options: Any) -> ArchiveSummary:
        return archive_module.archive(object(), bucket.url, "events", "ns.events", catalog=catalog, **options)  # type: ignore[arg-type]

    with pytest.raises(DataLoss, match="1 of 111 records were not read"):
        lossy()
    assert len(rows(catalog, "ns.events")) == 0
    summary = lossy(fail_on_data_loss=False)
    assert ["1 of 111 records" in line for line in summary.damage] == [True] and summary.left_out == 0


def test_records_of_aborted_transactions_are_left_out(tmp_path: Path) -> None:
    """And declared gaps have no records."""
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    bucket.topic("tx", 1)
    first = encode_batch(
        [Record(n, T0 + n, b"k", b"v") for n in range(5)], base_offset=0, leader_epoch=1, producer_id=7,
        producer_epoch=0, base_sequence=0, transactional=True,
    )  # fmt: skip
    second = encode_batch([Record(n, T0, b"k", b"v") for n in range(5, 9)], base_offset=5, leader_epoch=1)
    aborted = [DecidedTransaction(7, 0, 0, 20, TransactionOutcome.ABORTED)]
    bucket.append("tx", 0, [first, second, *gap_batches(9, 50, 1)], transactions=aborted)
    bucket.append("tx", 0, [json_batch(50, 5), *gap_batches(55, 60, 1)])
    summary = run(bucket, catalog, "tx", "ns.tx")
    assert (summary.left_out, summary.rows) == (5, 9) and not summary.damage
    assert places(rows(catalog, "ns.tx")) == [(0, n) for n in (*range(5, 9), *range(50, 55))]


def test_a_topic_created_again_is_another_archive(bucket: HistoryBucket, tmp_path: Path) -> None:
    catalog = lake(tmp_path)
    run(bucket, catalog, "events", "ns.events")
    bucket.delete("events")
    bucket.topic("events", 1)
    with pytest.raises(InvalidRequest, match="deleted and created again"):
        run(bucket, catalog, "events", "ns.events")


def test_a_table_that_is_no_archive_is_left_alone(bucket: HistoryBucket, tmp_path: Path) -> None:
    catalog = lake(tmp_path)
    opened = open_catalog(catalog)
    opened.create_namespace("ns")
    opened.create_table("ns.events", schema=pa.schema([("a", pa.int64())]))
    with pytest.raises(InvalidRequest, match="not an archive"):
        run(bucket, catalog, "events", "ns.events")


# ── decoded values and dead letters ──────────────────────────────────────────────────────────────────────────────────
def test_bad_rows_go_to_the_dead_letter_table_once(tmp_path: Path) -> None:
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    json_topic(bucket, "js")
    summary = run(bucket, catalog, "js", "ns.js", values=JSON, bytes_max=5000)
    assert summary.commits > 1
    check_json(catalog, [300, 300])
    bucket.append("js", 0, [json_batch(300, 20)])
    run(bucket, catalog, "js", "ns.js")  # the table remembers how values are decoded
    check_json(catalog, [320, 300])
    with pytest.raises(InvalidRequest, match="keeps values as json"):
        run(bucket, catalog, "js", "ns.js", values=ValueSpec("json", "user string"))


def check_json(catalog: object, ends: Sequence[int]) -> None:
    good, bad = rows(catalog, "ns.js"), rows(catalog, "ns.js_dead_letters")  # type: ignore[arg-type]
    assert places(good) == [place for place in every(ends) if not is_bad(place[1])]
    assert places(bad) == [place for place in every(ends) if is_bad(place[1])]
    assert set(bad["value"].to_pylist()) <= {b"oops"} and all(bad["error"].to_pylist())
    for row in good.slice(0, 50).to_pylist():
        assert (row["user"], row["amount"]) == (f"u{row['offset']}", row["offset"] + 0.5)
    assert "value" not in good.schema.names


# ── dead letters that are not ours ───────────────────────────────────────────────────────────────────────────────────
def json_values(bucket: HistoryBucket, values: Sequence[bytes]) -> None:
    """Topic `js` of one partition that holds `values`."""
    bucket.topic("js", 1)
    made = [Record(n, T0 + n, b"k", value) for n, value in enumerate(values)]
    bucket.append("js", 0, [encode_batch(made, base_offset=0, leader_epoch=1)])


USER = b'{"user":"u","amount":1}'


def test_dead_letters_of_a_topic_that_was_made_again_are_refused(tmp_path: Path) -> None:
    """Table dropped, its dead letters left behind: as many, of the same offsets, but other records."""
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    json_values(bucket, [USER, b"oops", USER])
    run(bucket, catalog, "js", "ns.js", values=JSON)
    bucket.delete("js")
    json_values(bucket, [USER, USER, b"oops"])
    open_catalog(catalog).drop_table("ns.js")
    for dry_run in (False, True):
        with pytest.raises(InvalidRequest, match="js_dead_letters does not hold"):
            run(bucket, catalog, "js", "ns.js", values=JSON, dry_run=dry_run)
    open_catalog(catalog).drop_table("ns.js_dead_letters")
    run(bucket, catalog, "js", "ns.js", values=JSON)
    assert places(rows(catalog, "ns.js")) == [(0, 0), (0, 1)]
    assert places(rows(catalog, "ns.js_dead_letters")) == [(0, 2)]


def test_dead_letters_of_a_dropped_table_are_refused(tmp_path: Path) -> None:
    """The same topic, archived again with other columns: as many bad rows, other ones."""
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    json_values(bucket, [USER, b'{"user":1,"amount":1}', b'{"user":"u","amount":"x"}'])
    run(bucket, catalog, "js", "ns.js", values=ValueSpec("json", "user string"))
    open_catalog(catalog).drop_table("ns.js")
    with pytest.raises(InvalidRequest, match="another archive"):
        run(bucket, catalog, "js", "ns.js", values=ValueSpec("json", "amount double"))


def test_standing_dead_letters_are_the_same_rows_and_not_as_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead between the two commits, then another decoder under the same name: as many bad rows, other ones."""
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    json_values(bucket, [USER, b'{"user":1,"amount":1}', b'{"user":"u","amount":"x"}'])

    def die(point: str) -> None:
        if point == "archive.dead_letters_committed":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(iceberg_table, "reach", die)
        with pytest.raises(KeyboardInterrupt):
            run(bucket, catalog, "js", "ns.js", values=ValueSpec("json", "user string"))
    with monkeypatch.context() as patch:
        patch.setattr(archive_worker, "decoder_of", lambda said: Other(decoder_of(said)))
        with pytest.raises(Corrupt, match="the run that died used another decoder"):
            run(bucket, catalog, "js", "ns.js")
    assert len(rows(catalog, "ns.js")) == 0
    run(bucket, catalog, "js", "ns.js")
    assert places(rows(catalog, "ns.js")) == [(0, 0), (0, 2)]
    assert places(rows(catalog, "ns.js_dead_letters")) == [(0, 1)]


class Other:
    """Finds the row after a bad one bad."""

    def __init__(self, right: Any) -> None:
        self.schema = right.schema

    def decode(self, values: pa.Array) -> tuple[list[pa.Array], list[tuple[int, str]]]:
        return [pa.array(["u"] * (len(values) - 1))], [(2, "wrong")]


def test_dead_letters_that_are_behind_the_table_are_noticed(tmp_path: Path) -> None:
    """They are committed first, so they are ahead, always: dropped, their records are in neither table."""
    bucket, catalog = HistoryBucket(tmp_path), lake(tmp_path)
    json_topic(bucket, "js", partitions=1, segments=2, records=10)
    run(bucket, catalog, "js", "ns.js", values=JSON)
    open_catalog(catalog).drop_table("ns.js_dead_letters")
    for _ in range(2):
        with pytest.raises(Corrupt, match=r'js_dead_letters does not cover offsets {"0":\[\[0,40\]\]}'):
            run(bucket, catalog, "js", "ns.js")


# ── commits ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_commit_on_a_stale_snapshot_fails_and_is_not_repeated(bucket: HistoryBucket, tmp_path: Path) -> None:
    """pyiceberg's own commit would append on top of whatever came between; ours must not."""
    catalog = open_catalog(lake(tmp_path))
    run(bucket, catalog, "events", "ns.events", commits_max=1, bytes_max=2000)
    ours = open_table(catalog, "ns.events")
    assert ours is not None
    planned = ours.archived()
    run(bucket, catalog, "events", "ns.events", commits_max=1, bytes_max=2000)
    before = rows(lake(tmp_path), "ns.events")
    change = iceberg_table.ArchiveCommit("events", planned.topic_id, {0: ((0, 1),)}, "late")  # type: ignore[arg-type]
    with pytest.raises(StaleTable) as refused:
        ours.commit([], planned, change, point="archive.committed")
    assert not refused.value.landed_possible
    assert rows(lake(tmp_path), "ns.events").num_rows == before.num_rows
    assert len(open_catalog(lake(tmp_path)).load_table("ns.events").snapshots()) == 2


class Flaky(SqlCatalog):
    """A catalog whose commits end as the test says: `lost` landed, but no answer came; `dropped` never arrived."""

    script: list[str]

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        how = self.script.pop(0) if self.script else "fine"
        if how == "dropped":
            raise ConnectionError("nothing came back")
        if how == "conflict":
            raise CommitFailedException("somebody else is quicker")
        answer = super().commit_table(table, requirements, updates)
        if how == "lost":
            raise ConnectionError("nothing came back")
        if how == "conflict after all":
            raise CommitFailedException("the client sent it twice and was refused by its own first")
        return answer


HOW = st.sampled_from(["fine", "lost", "dropped", "conflict", "conflict after all"])


@settings(max_examples=6, phases=(Phase.generate,))
@given(script=st.lists(HOW, max_size=6), values=st.booleans())
def test_lost_answers_never_make_a_second_commit(
    tmp_path_factory: pytest.TempPathFactory, script: list[str], values: bool
) -> None:
    """Whatever becomes of the answers, each offset is in the tables once and no file lies about for nothing."""
    place = tmp_path_factory.mktemp("flaky")
    bucket = HistoryBucket(place)
    json_topic(bucket, "js", segments=2, records=10)
    (place / "lake").mkdir()
    catalog = Flaky("thermocline", **lake(place).properties)
    catalog.script = list(script)
    summary = run(bucket, catalog, "js", "ns.js", bytes_max=1500, values=JSON if values else None)
    assert summary.replanned == sum(
        how in ("dropped", "conflict") for how in script[: len(script) - len(catalog.script)]
    )
    if values:
        check_json(lake(place), [40, 40])
    else:
        assert places(rows(lake(place), "ns.js")) == every([40, 40])
    tables = ("ns.js", "ns.js_dead_letters") if values else ("ns.js",)
    assert data_files(place) == named_files(lake(place), *tables)


# ── races ────────────────────────────────────────────────────────────────────────────────────────────────────────────
class Interrupted(InProcess):
    """Runs the tasks, then lets somebody else go first."""

    def __init__(self, meanwhile: Sequence[Callable[[], None]], *, before: bool) -> None:
        self._meanwhile = list(meanwhile)
        self._before = before

    def run(self, function: Any, tasks: Any, progress: Any) -> Any:
        if self._before and self._meanwhile:
            self._meanwhile.pop(0)()
        done = super().run(function, tasks, progress)
        if not self._before and self._meanwhile:
            self._meanwhile.pop(0)()
        return done


@settings(max_examples=6, phases=(Phase.generate,))
@given(
    others=st.lists(st.tuples(st.integers(1000, 6000), st.integers(1, 3)), min_size=1, max_size=3),
    bytes_max=st.integers(1000, 6000),
    values=st.booleans(),
    before=st.booleans(),
)
def test_two_archivers_never_write_an_offset_twice(
    tmp_path_factory: pytest.TempPathFactory,
    others: list[tuple[int, int]],
    bytes_max: int,
    values: bool,
    before: bool,
) -> None:
    """While one has written its files and not committed, another plans, writes and commits, in steps of other sizes."""
    place = tmp_path_factory.mktemp("race")
    bucket, catalog = HistoryBucket(place), lake(place)
    json_topic(bucket, "js", segments=3, records=10)
    spec = JSON if values else None

    def other(size: int, commits: int) -> Callable[[], None]:
        return lambda: void(run(bucket, catalog, "js", "ns.js", bytes_max=size, commits_max=commits, values=spec))

    runner = Interrupted([other(*one) for one in others], before=before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive_module, "SparkTasks", lambda spark: runner)
        archive_module.archive(
            object(),  # type: ignore[arg-type]
            bucket.url,
            "js",
            "ns.js",
            catalog=catalog,
            values=spec,
            bytes_max=bytes_max,
        )
    if values:
        check_json(catalog, [60, 60])
    else:
        assert places(rows(catalog, "ns.js")) == every([60, 60])
    tables = ("ns.js", "ns.js_dead_letters") if values else ("ns.js",)
    assert data_files(place) == named_files(catalog, *tables), "losers' files are swept"


def void(outcome: object) -> None:
    """A callback returns nothing."""


def test_a_failure_that_is_no_race_is_told(
    bucket: HistoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(InProcess):
        def run(self, function: Any, tasks: Any, progress: Any) -> Any:
            raise TasksFailed("a worker died")

    monkeypatch.setattr(archive_module, "SparkTasks", lambda spark: Broken())
    with pytest.raises(TasksFailed):
        archive_module.archive(object(), bucket.url, "events", "ns.events", catalog=lake(tmp_path))  # type: ignore[arg-type]


# ── what others do to the table ──────────────────────────────────────────────────────────────────────────────────────
def test_snapshots_of_others_do_not_hide_what_is_archived(bucket: HistoryBucket, tmp_path: Path) -> None:
    """Rows deleted by a user stay deleted."""
    catalog = lake(tmp_path)
    run(bucket, catalog, "events", "ns.events")
    open_catalog(catalog).load_table("ns.events").delete("partition = 1")
    assert run(bucket, catalog, "events", "ns.events").commits == 0
    bucket.fill("events", 1, [[7]], base=11)
    run(bucket, catalog, "events", "ns.events")
    assert places(rows(catalog, "ns.events")) == [*every([100]), *((1, offset) for offset in range(11, 18))]


def test_expired_snapshots_do_not_hide_what_is_archived(bucket: HistoryBucket, tmp_path: Path) -> None:
    """When the archive's last snapshot is expired, the table's properties still say it."""
    catalog = lake(tmp_path)
    run(bucket, catalog, "events", "ns.events")
    table = open_catalog(catalog).load_table("ns.events")
    ours = table.current_snapshot()
    assert ours is not None
    table.delete("partition = 1 and offset = 3")
    table.maintenance.expire_snapshots().by_id(ours.snapshot_id).commit()
    assert run(bucket, catalog, "events", "ns.events").commits == 0
    bucket.fill("events", 1, [[7]], base=11)
    run(bucket, catalog, "events", "ns.events")
    expected = [place for place in every([100, 18]) if place != (1, 3)]
    assert places(rows(catalog, "ns.events")) == expected, "and no sweep takes a file for a leftover"


def test_a_table_rolled_back_is_archived_again_from_there(bucket: HistoryBucket, tmp_path: Path) -> None:
    """The snapshot says what is archived, so going back to an older one takes the offsets with it."""
    catalog = lake(tmp_path)
    run(bucket, catalog, "events", "ns.events", commits_max=1, bytes_max=2000)
    table = open_catalog(catalog).load_table("ns.events")
    early = table.current_snapshot()
    run(bucket, catalog, "events", "ns.events")
    assert early is not None
    roll_back(open_catalog(catalog).load_table("ns.events"), early.snapshot_id)
    run(bucket, catalog, "events", "ns.events", bytes_max=2000)
    assert places(rows(catalog, "ns.events")) == every([100, 11])
    for snapshot in open_catalog(catalog).load_table("ns.events").snapshots():
        open_catalog(catalog).load_table("ns.events").scan(
            snapshot_id=snapshot.snapshot_id
        ).to_arrow()  # nothing was swept that a snapshot still names


def test_a_rolled_back_table_without_its_history_is_refused(bucket: HistoryBucket, tmp_path: Path) -> None:
    catalog = lake(tmp_path)
    run(bucket, catalog, "events", "ns.events", commits_max=1, bytes_max=2000)
    table = open_catalog(catalog).load_table("ns.events")
    first = table.current_snapshot()
    table.delete("partition = 1 and offset = 3")
    early = table.current_snapshot()
    assert first is not None and early is not None
    run(bucket, catalog, "events", "ns.events")
    table = open_catalog(catalog).load_table("ns.events")
    roll_back(table, early.snapshot_id)
    table.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    opened = open_table(open_catalog(catalog), "ns.events")
    assert opened is not None
    with pytest.raises(Corrupt, match="rolled back"):
        opened.archived()


def roll_back(table: Any, snapshot_id: int) -> None:
    with table.manage_snapshots() as manage:
        manage.rollback_to_snapshot(snapshot_id)


# ── catalogs ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_catalogs_by_configuration() -> None:
    s3 = "s3://lake/here?endpoint=http://127.0.0.1:9000&region=eu-west-1"
    assert catalog_config(warehouse="file:///srv/lake").properties == {
        "warehouse": "file:///srv/lake",
        "type": "sql",
        "uri": "sqlite:////srv/lake/catalog.db",
    }
    assert catalog_config("glue", s3, {"glue.region": "eu-west-1"}).properties == {
        "type": "glue",
        "warehouse": "s3://lake/here",
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.region": "eu-west-1",
        "glue.region": "eu-west-1",
    }
    assert catalog_config("https://c.example/rest").properties == {"type": "rest", "uri": "https://c.example/rest"}
    assert catalog_config("memory").properties["type"] == "in-memory"
    assert catalog_config("production").name == "production"
    for wrong in ({}, {"warehouse": s3}, {"catalog": "ftp://x"}, {"warehouse": "/tmp/x"}):
        with pytest.raises(InvalidRequest):
            catalog_config(**wrong)


def test_an_in_memory_catalog_serves_a_script(bucket: HistoryBucket, tmp_path: Path) -> None:
    catalog = open_catalog(catalog_config("memory", f"file://{tmp_path}/lake"))
    assert run(bucket, catalog, "events", "ns.events").rows == 111
    table = open_table(catalog, "ns.events")
    assert isinstance(table, ArchiveTable) and table.archived().offsets == {0: ((0, 100),), 1: ((0, 11),)}
