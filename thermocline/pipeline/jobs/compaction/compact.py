"""The driver of a compaction: merges many small files of an archive's table into few, with the same rows.

One commit replaces the old files. It requires the snapshot on which it was planned. A crash leaves a table with the
same rows, and files that the next commit deletes. When an archiver commits meanwhile, the compaction is planned again,
or the archiver plans again. Old files stay until the snapshots that name them expire.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from logformat.errors import InvalidRequest
from thermocline.pipeline.history import History
from thermocline.pipeline.jobs.archive_worker import TableTarget
from thermocline.pipeline.jobs.compaction.compact_plan import TARGET_BYTES, StoredFile, groups
from thermocline.pipeline.jobs.compaction.compact_worker import CompactTask, run_compact
from thermocline.pipeline.jobs.iceberg_catalog import CatalogConfig, catalog_errors, open_existing_catalog, shown
from thermocline.pipeline.jobs.job_crash_points import reach
from thermocline.pipeline.jobs.report import Cell, summary_table
from thermocline.pipeline.jobs.spark_tasks import InProcess, SparkTasks, TaskRunner, TasksFailed, ThrottledProgress
from thermocline.pipeline.jobs.tables.archive_tables import delete, existing, folder_of, sweep
from thermocline.pipeline.jobs.tables.iceberg_table import ArchiveCommit, ArchiveTable, StaleTable, base_name
from thermocline.units import show_seconds, show_size

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

STALE_MAX: Final = 20  # commits lost in a row to other committers


@dataclass(slots=True)
class CompactSummary:
    """The result of a compaction, or with `dry_run` the expected result, for the table and its dead letters."""

    topic: str
    table: str
    catalog: str
    dry_run: bool
    commits: int = 0
    files_before: int = 0
    files_merged: int = 0
    files_made: int = 0
    rows: int = 0
    bytes_merged: int = 0
    replanned: int = 0
    snapshots: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def lines(self) -> Sequence[tuple[str, Cell]]:
        would = "would merge" if self.dry_run else "merged"
        return [
            ("topic", self.topic),
            ("table", self.table),
            ("catalog", self.catalog),
            ("files", self.files_before),
            (would, f"{self.files_merged:,} files ({show_size(self.bytes_merged)}, {self.rows:,} rows)"),
            ("into", self.files_made),
            ("commits", self.commits),
            ("planned again", self.replanned or None),
            ("took", show_seconds(self.seconds)),
        ]

    def row(self) -> dict[str, Cell]:
        """The names are part of the `--json` contract."""
        return {
            "topic": self.topic,
            "table": self.table,
            "catalog": self.catalog,
            "dry_run": self.dry_run,
            "commits": self.commits,
            "files_before": self.files_before,
            "files_merged": self.files_merged,
            "files_made": self.files_made,
            "rows": self.rows,
            "bytes_merged": self.bytes_merged,
            "replanned": self.replanned,
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        return summary_table(self.lines())


def compact(
    spark: SparkSession | None,
    bucket: str,
    topic: str,
    table: str,
    *,
    catalog: CatalogConfig | Catalog,
    target_bytes: int = TARGET_BYTES,
    dry_run: bool = False,
    progress: Callable[[str], None] | None = None,
) -> CompactSummary:
    """Merge small files of the archive `table` of `topic`, and of its dead letters, up to about `target_bytes` each.

    Raises InvalidRequest when there is no such archive, Corrupt, StoreError, TasksFailed, StaleTable,
    CatalogUnavailable.
    """
    began = time.monotonic()
    runner: TaskRunner = InProcess() if spark is None else SparkTasks(spark)
    with History.open(bucket) as history, catalog_errors(catalog):
        found = history.topic(topic)
        opened = open_existing_catalog(catalog) if isinstance(catalog, CatalogConfig) else catalog
        tables = (None, None) if opened is None else existing(opened, table, found, None)
        if tables[0] is None:
            raise InvalidRequest(f"catalog {shown(catalog)} has no table {table}: archive first")
        summary = CompactSummary(found.topic, table, shown(catalog), dry_run)
        for one in tables:
            if one is not None:
                _compact(one, found.topic, runner, summary, target_bytes, progress or (lambda text: None))
    summary.seconds = time.monotonic() - began
    return summary


def _compact(
    table: ArchiveTable,
    topic: str,
    runner: TaskRunner,
    summary: CompactSummary,
    target_bytes: int,
    show: Callable[[str], None],
) -> None:
    table.refresh()
    if not summary.dry_run:
        sweep(table, 1)
    for attempt in range(STALE_MAX + 1):
        files = table.stored_files()
        chosen = groups((one for one, _ in files), target_bytes)
        if not chosen or summary.dry_run:
            _count(summary, len(files), chosen)
            return
        try:
            summary.snapshots.append(_merge(table, topic, runner, files, chosen, show))
        except StaleTable as behind:
            if attempt == STALE_MAX:
                raise
            summary.replanned += 1
            log.info("%s; planning again", behind)
            table.refresh()
            continue
        summary.commits += 1
        _count(summary, len(files), chosen)
        return


def _merge(
    table: ArchiveTable,
    topic: str,
    runner: TaskRunner,
    files: Sequence[tuple[StoredFile, DataFile]],
    chosen: Sequence[tuple[StoredFile, ...]],
    show: Callable[[str], None],
) -> int:
    """Write, commit, delete leftovers. Raises StaleTable when another archiver committed first."""
    planned_on = table.archived()
    assert planned_on.topic_id is not None
    run = secrets.token_hex(6)
    target = TableTarget(folder_of(table, base_name(table.snapshot_id)), table.full_schema(), table.io_properties)
    tasks = [CompactTask(group, target, _name(run, group)) for group in chosen]
    try:
        made = runner.run(run_compact, tasks, ThrottledProgress(show, f"{table.name}: {len(tasks)} new files"))
    except (TasksFailed, OSError) as failed:
        # Another archiver that commits on this snapshot deletes its folder, and our files with it.
        table.refresh()
        if table.snapshot_id != planned_on.snapshot_id:
            raise StaleTable(f"{table.name} changed while files were merged: {failed}") from failed
        raise
    reach("compact.files_written")
    entries = {one.location: entry for one, entry in files}
    removed = [entries[one.location] for group in chosen for one in group]
    change = ArchiveCommit(topic, planned_on.topic_id, {}, f"{run}-compact-{secrets.token_hex(4)}")
    try:
        snapshot = table.commit(made, planned_on, change, point="compact.committed", removed=removed)
    except StaleTable as behind:
        if not behind.landed_possible:
            delete(table, made)
        raise
    sweep(table, 1)
    return snapshot


def _name(run: str, group: tuple[StoredFile, ...]) -> str:
    first, last = group[0], group[-1]
    return f"{run}-{first.partition}-{first.first:020d}-{last.last + 1:020d}-{secrets.token_hex(4)}.parquet"


def _count(summary: CompactSummary, files: int, chosen: Sequence[tuple[StoredFile, ...]]) -> None:
    merged = [one for group in chosen for one in group]
    summary.files_before += files
    summary.files_merged += len(merged)
    summary.files_made += len(chosen)
    summary.rows += sum(one.rows for one in merged)
    summary.bytes_merged += sum(one.size for one in merged)
