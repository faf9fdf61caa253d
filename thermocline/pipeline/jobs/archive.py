"""The driver of an archive: archives a topic into an Iceberg table, exactly once.

Workers write files that no table names. Dead letters are committed before the rows of the same step. Each commit
requires the snapshot that the step was planned on, and records the offsets it adds and all archived offsets. A step
whose commit finds another snapshot is planned again. A crash at any point thus leaves a correct table, a dead-letter
table that is at most one step ahead, and files that no table names.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from coldstore.manifest.manifest_entries import RemoteSegment
from coldstore.segments.segment_object import TransactionOutcome
from logformat.errors import Corrupt
from thermocline.pipeline.footers import read_footer
from thermocline.pipeline.history import History, PartitionHistory
from thermocline.pipeline.jobs import offset_ranges
from thermocline.pipeline.jobs.archive_plan import (
    BYTES_MAX,
    ArchiveStep,
    BucketPartition,
    Expired,
    lost,
    next_step,
    only_new,
    remaining,
)
from thermocline.pipeline.jobs.archive_summary import ArchiveSummary
from thermocline.pipeline.jobs.archive_worker import ArchiveTask, TaskDone, run_task
from thermocline.pipeline.jobs.iceberg_catalog import (
    CatalogConfig,
    catalog_errors,
    check_new_table,
    open_catalog,
    open_existing_catalog,
    shown,
)
from thermocline.pipeline.jobs.job_crash_points import reach
from thermocline.pipeline.jobs.spark_tasks import InProcess, SparkTasks, TaskRunner, TasksFailed, ThrottledProgress
from thermocline.pipeline.jobs.tables.archive_columns import table_schema
from thermocline.pipeline.jobs.tables.archive_tables import (
    Tables,
    check_days,
    check_same_dead_letters,
    dead_letter_coverage,
    delete,
    existing,
    initial_log_starts,
    open_tables,
    sweep,
)
from thermocline.pipeline.jobs.tables.iceberg_table import (
    ArchiveCommit,
    Archived,
    ArchiveTable,
    StaleTable,
    table_identifier,
)
from thermocline.pipeline.jobs.values import ValueSpec, decoder_of
from thermocline.pipeline.plan import TARGET_BYTES
from thermocline.pipeline.split import DataLoss, Loss
from thermocline.pipeline.topics import TopicHistory
from thermocline.units import show_size

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

STALE_MAX: Final = 20  # steps lost in a row to other committers
_SWEPT_MAX: Final = 8  # newest archive commits whose leftovers are deleted at a run's start
_TASK_BYTES_MIN: Final = 16 << 20  # a smaller task costs Spark more than it saves


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """The settings of an archive. If `values` is None, an existing table keeps its decoder, and a new table gets raw
    values."""

    bucket: str
    topic: str
    table: str
    values: ValueSpec | None = None
    bytes_max: int = BYTES_MAX  # bytes of log in one commit
    commits_max: int | None = None
    target_bytes: int = TARGET_BYTES  # bytes of log in one file
    fail_on_data_loss: bool = True
    dry_run: bool = False
    by_day: bool = False  # partition a new table by the day of `timestamp`


def archive(
    spark: SparkSession | None,
    bucket: str,
    topic: str,
    table: str,
    *,
    catalog: CatalogConfig | Catalog,
    values: ValueSpec | None = None,
    bytes_max: int = BYTES_MAX,
    commits_max: int | None = None,
    target_bytes: int = TARGET_BYTES,
    fail_on_data_loss: bool = True,
    dry_run: bool = False,
    by_day: bool = False,
    progress: Callable[[str], None] | None = None,
) -> ArchiveSummary:
    """Archive the offsets of `topic` that the bucket holds and `table` (`namespace.table`) lacks. Run it again for new
    data.

    `bucket`: a URL (`coldstore.url`). `catalog`: a result of `iceberg.catalog_config`, or pyiceberg's own catalog.
    `values`: decode values into columns, with bad rows in `<table>_dead_letters`; an existing table gets the columns it
    lacks, if `values` names all of its columns. One commit covers at most `bytes_max` of log; `commits_max` ends the
    run early. Without `spark` this process does the work, one file after the other.

    Raises InvalidRequest, Corrupt, StoreError, DataLoss (offsets that expired before they were archived, or damage;
    `fail_on_data_loss=False` skips and reports them), TasksFailed, StaleTable, CatalogUnavailable.
    """
    options = ArchiveOptions(
        bucket, topic, table, values, bytes_max, commits_max, target_bytes, fail_on_data_loss, dry_run, by_day
    )
    runner: TaskRunner = InProcess() if spark is None else SparkTasks(spark)
    with History.open(bucket) as history, catalog_errors(catalog):
        _check(history.topic(topic), table, catalog, values, by_day)  # checked before a catalog is created
        opened = _opened(catalog, dry_run)
        return _Archiver(options, history, opened, shown(catalog), runner, progress or (lambda text: None)).run()


def check_archive(
    bucket: str,
    topic: str,
    table: str,
    *,
    catalog: CatalogConfig | Catalog,
    values: ValueSpec | None = None,
    by_day: bool = False,
) -> None:
    """Raise the errors of an archive with these arguments, before Spark is started. Creates nothing.

    Raises InvalidRequest, Corrupt, StoreError, CatalogUnavailable.
    """
    with History.open(bucket) as history, catalog_errors(catalog):
        _check(history.topic(topic), table, catalog, values, by_day)


def _check(
    topic: TopicHistory, table: str, catalog: CatalogConfig | Catalog, values: ValueSpec | None, by_day: bool
) -> None:
    table_identifier(table)
    if values is not None:
        table_schema(decoder_of(values), keep_value=values.keep_value)
    there = _opened(catalog, True)
    found = None if there is None else existing(there, table, topic, values)[0]
    if found is not None:
        check_days(found, by_day)
    elif isinstance(catalog, CatalogConfig):
        check_new_table(catalog)


def _opened(catalog: CatalogConfig | Catalog, dry_run: bool) -> Catalog | None:
    if not isinstance(catalog, CatalogConfig):
        return catalog
    return open_existing_catalog(catalog) if dry_run else open_catalog(catalog)


class _Archiver:
    def __init__(
        self,
        options: ArchiveOptions,
        history: History,
        catalog: Catalog | None,
        catalog_shown: str,
        runner: TaskRunner,
        show: Callable[[str], None],
    ) -> None:
        self._options = options
        self._history = history
        self._catalog = catalog
        self._runner = runner
        self._show = show
        self._topic = history.topic(options.topic)
        self._run = secrets.token_hex(6)
        self._ends: dict[int, int] = {}  # end offsets in the bucket when the run began: the run stops there
        self._segments: dict[int, Sequence[RemoteSegment]] = {}
        self._summary = ArchiveSummary(self._topic.topic, options.table, catalog_shown, options.dry_run)

    def run(self) -> ArchiveSummary:
        """Run steps until nothing is left or `commits_max` is reached."""
        started = time.monotonic()
        options, summary = self._options, self._summary
        try:
            if options.dry_run:
                there = self._catalog
                found = (None, None) if there is None else existing(there, options.table, self._topic, options.values)
                self._plan_only(*found)
            else:
                assert self._catalog is not None
                log_starts = {partition: part.log_start for (_, partition), part in self._parts().items()}
                place = (self._catalog, options.table, self._topic)
                tables = open_tables(*place, options.values, log_starts, by_day=options.by_day)
                summary.dead_letters_table = None if tables.dead is None else tables.dead.name
                for one in tables.both:
                    summary.leftovers_deleted += sweep(one, _SWEPT_MAX)
                self._steps(tables)
        finally:
            summary.seconds = time.monotonic() - started
        return summary

    # ── what there is ────────────────────────────────────────────────────────────────────────────────────────────────
    def _parts(self) -> dict[tuple[str, int], PartitionHistory]:
        name = self._topic.topic
        return self._history.partitions((name, partition) for partition in range(self._topic.partitions))

    def _logs(self, parts: Mapping[tuple[str, int], PartitionHistory], archived: Archived) -> list[BucketPartition]:
        """The partitions now, up to their ends when the run began. Manifest pages are read once per run."""
        logs = []
        for (_, partition), part in sorted(parts.items()):
            if part.topic_id != self._topic.topic_id:
                raise DataLoss(f"topic {self._topic.topic} was deleted and created again while it was archived")
            end = self._ends.setdefault(partition, part.remote_end)
            if partition not in self._segments:
                ranges = archived.offsets.get(partition, ())
                first = ranges[0][1] if ranges and ranges[0][0] <= part.log_start else part.log_start
                self._segments[partition] = part.segments(max(part.log_start, min(first, end)), end)
            logs.append(BucketPartition(partition, part.log_start, end, self._segments[partition]))
        return logs

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _plan_only(self, table: ArchiveTable | None, dead: ArchiveTable | None) -> None:
        summary, limit = self._summary, self._options.commits_max
        archived = Archived(None, None, {}) if table is None else table.archived()
        dead_lettered = {} if dead is None else dead_letter_coverage(dead, archived).offsets
        logs = self._logs(self._parts(), archived)
        summary.lost = lost(logs, archived.offsets, initial_log_starts(table))
        while limit is None or summary.commits < limit:
            step = next_step(logs, archived.offsets, dead_lettered, self._options.bytes_max)
            if step is None:
                break
            self._count(step)
            archived = replace(archived, offsets=offset_ranges.union(archived.offsets, step.offsets))
        self._finish(logs, archived)

    def _steps(self, tables: Tables) -> None:
        summary, limit = self._summary, self._options.commits_max
        stale = 0
        while True:
            parts = self._parts()
            archived = tables.table.archived()
            dead = None if tables.dead is None else dead_letter_coverage(tables.dead, archived)
            logs = self._logs(parts, archived)
            self._check_lost(lost(logs, archived.offsets, initial_log_starts(tables.table)))
            done = limit is not None and summary.commits >= limit
            dead_lettered = {} if dead is None else dead.offsets
            step = None if done else next_step(logs, archived.offsets, dead_lettered, self._options.bytes_max)
            if step is None:
                return self._finish(logs, archived)
            assert only_new(step, archived.offsets), (step, archived)
            reach("archive.planned")
            try:
                self._run_step(step, tables, parts, archived, dead)
                stale = 0
            except StaleTable as behind:
                stale += 1
                summary.replanned += 1
                if stale > STALE_MAX:
                    raise
                log.info("%s; planning again", behind)
                tables.refresh()

    def _check_lost(self, gone: list[Expired]) -> None:
        if gone and self._options.fail_on_data_loss:
            raise DataLoss(
                f"{self._topic.topic}: offsets left the bucket before they were archived: "
                f"{'; '.join(map(str, gone))}; archive more often or keep them longer (retention.ms), and skip them "
                f"with --allow-data-loss (fail_on_data_loss=False)"
            )
        # Once the archive has passed these offsets, the table no longer shows them as lost, so the first finding is
        # kept.
        known = {(one.partition, one.first) for one in self._summary.lost}
        self._summary.lost += [one for one in gone if (one.partition, one.first) not in known]

    def _run_step(
        self,
        step: ArchiveStep,
        tables: Tables,
        parts: Mapping[tuple[str, int], PartitionHistory],
        archived: Archived,
        dead: Archived | None,
    ) -> None:
        """Write, commit dead letters, commit rows, delete leftovers. Raises StaleTable when another archiver committed
        first.
        """
        loss = Loss()
        tasks = self._tasks(step, tables, parts, loss)
        done = self._write_files(step, tables, tasks)
        reach("archive.files_written")
        damaged = any(one.loss.damage for one in done) or bool(loss.damage)
        left_out = 0 if step.records is None else step.records - sum(one.rows + one.bad_rows for one in done)
        if left_out < 0 and not damaged:
            raise Corrupt(
                f"{self._topic.topic}: {-left_out} more records were read than the {step.records} the manifests count; "
                "nothing was committed; run `thermocline scrub`"
            )
        if left_out > 0 and not damaged and not self._any_replaced(step) and not self._any_aborted(step):
            self._report_unread(step, left_out, loss)
            left_out = 0
        if step.dead_letters_committed and tables.dead is not None:
            check_same_dead_letters(step, tables.dead, tasks, done)
        self._commit(step, tables, done, archived, dead)
        self._count(step)
        self._count_done(done, tasks, loss)
        self._summary.left_out += 0 if damaged else left_out
        for one in tables.both:
            self._summary.leftovers_deleted += sweep(one, 1)
        reach("archive.cleaned")

    def _any_aborted(self, step: ArchiveStep) -> bool:
        """Whether a footer of the step names an aborted transaction. Only aborted transactions hide records that the
        manifests count.
        """
        store = self._history.store
        keys = [
            (segment.key(self._topic.topic_id, partition), segment)
            for partition, segments in self._planned(step).items()
            for segment in segments
            if segment.decided
        ]
        footers = (read_footer(store, key, segment) for key, segment in keys)
        return any(one.outcome is TransactionOutcome.ABORTED for footer in footers for one in footer.transactions)

    def _any_replaced(self, step: ArchiveStep) -> bool:
        """Whether compaction replaced an object of the step since the run read the manifests. The manifests' counts
        then include removed records. The next step is planned with the current objects."""
        parts = self._parts()
        for partition, segments in self._planned(step).items():
            part, (first, end) = parts[self._topic.topic, partition], step.ranges[partition]
            named = {segment.uuid for segment in part.segments(first, end)}
            if any(segment.uuid not in named for segment in segments):
                self._segments.clear()
                return True
        return False

    def _planned(self, step: ArchiveStep) -> dict[int, list[RemoteSegment]]:
        """The objects of the planned step."""
        return {
            partition: [s for s in self._segments[partition] if s.base_offset < end and s.end_offset > first]
            for partition, (first, end) in step.ranges.items()
        }

    def _report_unread(self, step: ArchiveStep, count: int, loss: Loss) -> None:
        """Records of the step in the manifests' counts that neither belong to an aborted transaction nor were read by a
        task."""
        line = (
            f"{self._topic.topic} {offset_ranges.encode(step.offsets)}: {count} of {step.records} records were not read"
        )
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{line}, and no transaction was aborted; nothing was committed; run `thermocline scrub`")
        loss.damage.append(line)

    def _write_files(self, step: ArchiveStep, tables: Tables, tasks: Sequence[ArchiveTask]) -> list[TaskDone]:
        number = self._summary.commits + 1
        progress = ThrottledProgress(self._show, f"commit {number}, {show_size(step.log_bytes)} of log")
        before = [one.snapshot_id for one in tables.both]
        try:
            return self._runner.run(run_task, tasks, progress)
        except (TasksFailed, OSError) as failed:
            # Another archiver that commits on this snapshot deletes its folder, and our files with it.
            tables.refresh()
            if [one.snapshot_id for one in tables.both] != before:
                raise StaleTable(f"{self._options.table} changed while files were written: {failed}") from failed
            raise

    def _commit(
        self, step: ArchiveStep, tables: Tables, done: Sequence[TaskDone], archived: Archived, dead: Archived | None
    ) -> None:
        """Commit the dead letters first: a table without the bad rows would have a silent gap, while dead letters
        without their table rows are repaired.
        """
        files = [written for one in done for written in one.files]
        dead_files = [written for one in done for written in one.dead_files]
        change = ArchiveCommit(
            self._topic.topic,
            self._topic.topic_id,
            step.offsets,
            f"{self._run}-{self._summary.commits}-{secrets.token_hex(4)}",
        )
        try:
            if tables.dead is not None and dead is not None and not step.dead_letters_committed:
                tables.dead.commit(dead_files, dead, change, point="archive.dead_letters_committed")
                dead_files = []
            tables.table.commit(files, archived, change, point="archive.committed")
        except StaleTable as behind:
            if not behind.landed_possible:
                delete(tables.table, files)
                delete(tables.dead, dead_files)
            raise

    def _tasks(
        self, step: ArchiveStep, tables: Tables, parts: Mapping[tuple[str, int], PartitionHistory], loss: Loss
    ) -> list[ArchiveTask]:
        name = self._topic.topic
        wide = min(self._runner.parallelism, max(1, step.log_bytes // _TASK_BYTES_MIN))
        splits = self._history.plan(
            {(name, partition): found for partition, found in step.ranges.items()},
            target_bytes=self._options.target_bytes,
            min_partitions=wide if wide > 1 else None,
            fail_on_data_loss=self._options.fail_on_data_loss,
            loss=loss,
            parts=parts,
        )
        table = tables.target()
        dead = None if step.dead_letters_committed else tables.dead_target()
        bucket, fail = self._options.bucket, self._options.fail_on_data_loss
        return [ArchiveTask(bucket, split, self._run, table, dead, tables.values, fail) for split in splits]

    # ── the summary ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _count(self, step: ArchiveStep) -> None:
        self._summary.commits += 1
        self._summary.offsets += offset_ranges.size(step.offsets)
        self._summary.log_bytes += step.log_bytes

    def _count_done(self, done: Sequence[TaskDone], tasks: Sequence[ArchiveTask], loss: Loss) -> None:
        summary = self._summary
        summary.tasks += len(tasks)
        summary.damage += loss.damage
        for one in done:
            summary.rows += one.rows
            summary.dead_letters += one.bad_rows
            summary.files += len(one.files)
            summary.file_bytes += sum(written.size for written in one.files)
            summary.declared_gaps += len(one.loss.gaps)
            summary.damage += one.loss.damage

    def _finish(self, logs: Sequence[BucketPartition], archived: Archived) -> None:
        summary = self._summary
        summary.partitions = len(logs)
        summary.archived = dict(archived.offsets)
        summary.remaining_offsets = offset_ranges.size(remaining(logs, archived.offsets))
        summary.snapshot_id = archived.snapshot_id
