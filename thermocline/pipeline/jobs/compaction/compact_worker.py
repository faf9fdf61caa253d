"""One task of a compaction: copies the rows of small files into one new file.

Columns are matched by field id, as Iceberg requires, so a file that is older than a column gives nulls for it. Rows
keep their order. One row group at a time is in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from logformat.errors import Corrupt
from thermocline.pipeline.jobs.archive_worker import ParquetFile, TableTarget
from thermocline.pipeline.jobs.compaction.compact_plan import StoredFile
from thermocline.pipeline.jobs.job_crash_points import reach
from thermocline.pipeline.jobs.tables.data_file_storage import DataFileWritten, open_data_file

_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class CompactTask:
    """Files to merge, in order, and the new file's folder and name. `target` has all columns of the table."""

    files: tuple[StoredFile, ...]
    target: TableTarget
    name: str


def run_compact(task: CompactTask) -> DataFileWritten:
    """The new file. Raises Corrupt when a file's row count is not the table's, OSError from the storage."""
    out = ParquetFile(f"{task.target.folder}/{task.name}", task.target)
    for file in task.files:
        before = out.rows
        with open_data_file(file.location, task.target.io_properties) as source:
            opened = pq.ParquetFile(source)
            for number in range(opened.num_row_groups):
                for batch in opened.read_row_group(number).to_batches():
                    out.write(_columns(batch, task.target.schema))
        if out.rows - before != file.rows:
            raise Corrupt(
                f"{file.location} has {out.rows - before} rows, but the table says {file.rows}; nothing was done"
            )
    (written,) = out.close()
    reach("compact.file_written")
    return written


def _columns(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    by_id = {(field.metadata or {}).get(_FIELD_ID): at for at, field in enumerate(batch.schema)}
    columns = []
    for field in target:
        at = by_id.get(field.metadata[_FIELD_ID])
        if at is None:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            column = batch.column(at)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=target)
