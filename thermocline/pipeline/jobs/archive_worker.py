"""One task of an archive step: writes a split of the log to Parquet files in the table's storage.

A file's name has a number drawn for each attempt, so a task that Spark repeats, or runs twice at once, overwrites
nothing. No table names a file before the driver commits it. On a local file system a returned file is fsynced. Rows are
in offset order.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from thermocline.extras import require
from thermocline.pipeline.arrow_store import open_arrow_store
from thermocline.pipeline.jobs.job_crash_points import reach
from thermocline.pipeline.jobs.tables.archive_columns import READ_COLUMNS, RowSorter, measured
from thermocline.pipeline.jobs.tables.data_file_storage import DataFileOutput, DataFileWritten
from thermocline.pipeline.jobs.values import ValueSpec, decoder_of
from thermocline.pipeline.scan import scan
from thermocline.pipeline.split import Loss, Split

ROW_GROUP_BYTES: Final = 64 << 20  # as Arrow, before encoding: bounds a reader's memory
DAYS_OPEN_MAX: Final = 8  # open files: a split usually has one or two days, but producers' clocks may jump
_ZSTD_LEVEL: Final = 1
_DIGEST_BYTES: Final = 16
# Dictionaries for columns with few values, differences for offsets and times.
_DICTIONARY: Final = ("topic", "partition", "timestamp_type", "headers.list.element.key")
_DELTAS: Final[Mapping[str, str]] = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}


@dataclass(frozen=True, slots=True)
class TableTarget:
    """Place and form of one table's files: a folder without a final slash, the columns with field ids, and storage
    properties.

    `by_day`: no file may have rows of two days of `timestamp` (UTC).
    """

    folder: str
    schema: pa.Schema
    io_properties: Mapping[str, str]
    by_day: bool = False


@dataclass(frozen=True, slots=True)
class ArchiveTask:
    """Input of a worker. `dead_letters` is None if bad rows are committed already, or cannot occur."""

    bucket: str
    split: Split
    run: str
    table: TableTarget
    dead_letters: TableTarget | None
    values: ValueSpec
    fail_on_data_loss: bool


@dataclass(slots=True)
class TaskDone:
    """Result of a worker: `rows` of the table, and `bad_rows` (committed already, or in `dead_files`).

    `bad_digest` is the `offsets_digest` of the bad rows.
    """

    files: list[DataFileWritten] = field(default_factory=list)
    dead_files: list[DataFileWritten] = field(default_factory=list)
    rows: int = 0
    bad_rows: int = 0
    bad_digest: bytes = b""
    loss: Loss = field(default_factory=Loss)


def run_task(task: ArchiveTask) -> TaskDone:
    """Read, decode, write. Raises MissingExtra, DataLoss, Corrupt, StoreError; no table names the files that were
    written before the error."""
    require("read", "an archive's worker", "numpy", "numba")
    done = TaskDone()
    store = open_arrow_store(task.bucket)
    decoder = decoder_of(task.values)
    sorter = RowSorter(task.split.topic, task.split.partition, task.table.schema, decoder)
    table = DataFiles(task, task.table)
    dead = None if task.dead_letters is None else DataFiles(task, task.dead_letters)
    batches = scan(store, task.split, READ_COLUMNS, fail_on_data_loss=task.fail_on_data_loss, loss=done.loss)
    bad = blake2b(digest_size=_DIGEST_BYTES)
    for batch in batches:
        rows = sorter.sort(batch)
        table.write(rows.good)
        if rows.bad is not None:
            done.bad_rows += rows.bad.num_rows
            bad.update(_sorted_bytes(rows.bad["offset"]))
            if dead is not None:
                dead.write(rows.bad)
    done.files += table.close()
    done.dead_files += [] if dead is None else dead.close()
    done.rows, done.bad_digest = table.rows, bad.digest()
    reach("archive.file_written")
    return done


def offsets_digest(offsets: pa.Array) -> bytes:
    """A digest of int64 offsets, which is equal only for equal sets."""
    return blake2b(_sorted_bytes(offsets), digest_size=_DIGEST_BYTES).digest()


def _sorted_bytes(offsets: pa.Array) -> bytes:
    """Eight bytes per offset, sorted, because a decoder may report the bad rows of a batch in any order."""
    return bytes(offsets.sort().to_numpy(zero_copy_only=False).astype("<i8", copy=False).data)


class DataFiles:
    """The files of a task: one file, or one per day. At most `DAYS_OPEN_MAX` are open; a day whose file was closed gets
    another file.
    """

    def __init__(self, task: ArchiveTask, target: TableTarget) -> None:
        self._task, self._target = task, target
        self._open: dict[int | None, ParquetFile] = {}
        self._closed: list[DataFileWritten] = []
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        if not self._target.by_day:
            self._file(None).write(batch)
            return
        for day, rows in by_day(batch):
            self._file(day).write(rows)

    def close(self) -> list[DataFileWritten]:
        for file in self._open.values():
            self._closed += file.close()
        self._open = {}
        return self._closed

    def _file(self, day: int | None) -> ParquetFile:
        file = self._open.pop(day, None)
        if file is None:
            if len(self._open) >= DAYS_OPEN_MAX:
                self._closed += self._open.pop(next(iter(self._open))).close()  # the file with the oldest write
            group_bytes = ROW_GROUP_BYTES // DAYS_OPEN_MAX if self._target.by_day else ROW_GROUP_BYTES
            file = ParquetFile(_location(self._task, self._target), self._target, group_bytes)
        self._open[day] = file
        return file


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """(first µs of the day, rows) for each day (UTC) of `timestamp`, rows in order. None: rows without timestamp."""
    local = batch["timestamp"].cast(pa.int64()).cast(pa.timestamp("us"))  # naive: no time zone database needed
    days = pc.floor_temporal(local, unit="day").cast(pa.int64())
    for day in pc.unique(days).to_pylist():
        yield day, batch.filter(pc.is_null(days) if day is None else pc.equal(days, day))


def _location(task: ArchiveTask, target: TableTarget) -> str:
    """The location of a new file, unique for each attempt."""
    rows = task.split.rows
    name = f"{task.run}-{task.split.partition}-{rows.start_offset:020d}-{rows.end_offset:020d}-{secrets.token_hex(4)}"
    return f"{target.folder}/{name}.parquet"


class ParquetFile:
    def __init__(self, location: str, target: TableTarget, group_bytes: int = ROW_GROUP_BYTES) -> None:
        self._group_bytes = group_bytes
        self.location = location
        self.rows = 0
        self._target = target
        self._output: DataFileOutput | None = None
        self._writer: pq.ParquetWriter | None = None
        self._metadata: list[pq.FileMetaData] = []
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Buffer rows; a full row group is written to the store."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= self._group_bytes:
            self._flush()

    def close(self) -> list[DataFileWritten]:
        """The finished file; empty when there was no row."""
        if self._waiting:
            self._flush()
        if self._writer is None:
            return []
        self._writer.close()
        assert self._output is not None
        size = self._output.close()
        return [DataFileWritten(self.location, size, self._metadata[0], self.rows)]

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._target.schema)
        self._waiting, self._waiting_bytes = [], 0
        if self._writer is None:
            self._open()
        assert self._writer is not None
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def _open(self) -> None:
        names = self._target.schema.names
        self._output = DataFileOutput(self.location, self._target.io_properties)
        self._writer = pq.ParquetWriter(
            self._output.sink,
            self._target.schema,
            compression="zstd",
            compression_level=_ZSTD_LEVEL,
            use_dictionary=[name for name in _DICTIONARY if name.partition(".")[0] in names],
            column_encoding={name: encoding for name, encoding in _DELTAS.items() if name in names},
            write_statistics=measured(self._target.schema),
            write_page_index=True,
            store_schema=False,
            metadata_collector=self._metadata,
        )
        reach("archive.file_open")
