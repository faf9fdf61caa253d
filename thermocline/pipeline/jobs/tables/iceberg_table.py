"""Iceberg tables of archived topics: create, read archived offsets, commit once, find leftovers.

Properties as in docs/formats/archive.md. A commit requires the snapshot that the caller planned on. It is sent once:
pyiceberg's own `commit_transaction` is not used, because it retries a stale append on top of other commits. After any
failure the table is read again and searched for our commit id, so that a lost response does not cause a second commit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from logformat.errors import Corrupt, InvalidRequest, Retryable
from thermocline.extras import require
from thermocline.pipeline.jobs import offset_ranges
from thermocline.pipeline.jobs.compaction.compact_plan import StoredFile
from thermocline.pipeline.jobs.job_crash_points import reach
from thermocline.pipeline.jobs.offset_ranges import OffsetRanges
from thermocline.pipeline.jobs.tables.data_file_storage import DataFileWritten

require("spark", "an Iceberg table", "pyiceberg")

from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import (
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import (
    PARTITION_FIELD_ID_START,
    UNPARTITIONED_PARTITION_SPEC,
    PartitionField,
    PartitionSpec,
)
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertCurrentSchemaId, AssertTableUUID, TableRequirement
from pyiceberg.transforms import DayTransform
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StructType

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = "1"
FORMAT: Final = "thermocline.format"
TOPIC: Final = "thermocline.topic"
TOPIC_ID: Final = "thermocline.topic-id"
ARCHIVED: Final = "thermocline.archived"
ADDED: Final = "thermocline.added"
BASE: Final = "thermocline.base"  # the required snapshot; Iceberg's own parent id is lost when snapshots expire
COMMIT_ID: Final = "thermocline.commit-id"
SNAPSHOT_ID: Final = "thermocline.snapshot-id"  # table property only: the snapshot that set ARCHIVED
VALUES: Final = "thermocline.values"
DEAD_LETTERS: Final = "thermocline.dead-letters"
BEGUN: Final = "thermocline.begun"  # log starts when the table was created
ARCHIVE: Final = "thermocline.archive"  # property of a dead-letter table: the UUID of its table

DAY_OF: Final = "timestamp"  # a table may be partitioned by the day of this column


class StaleTable(Retryable):
    """The current snapshot is not the snapshot that the commit was planned on. Plan again.

    `landed_possible`: no response came, so our commit may still take effect, and its files must not be deleted.
    """

    def __init__(self, message: str, *, landed_possible: bool = False) -> None:
        super().__init__(message)
        self.landed_possible = landed_possible


@dataclass(frozen=True, slots=True)
class Archived:
    """The archived offsets of a table. `snapshot_id`: the next commit requires it (None: no snapshot yet)."""

    snapshot_id: int | None
    topic_id: UUID | None
    offsets: OffsetRanges


@dataclass(frozen=True, slots=True)
class ArchiveCommit:
    """A commit's additions. `commit_id` is unique."""

    topic: str
    topic_id: UUID
    added: OffsetRanges
    commit_id: str


def table_identifier(name: str) -> tuple[str, ...]:
    """`namespace.table`. Raises InvalidRequest."""
    parts = tuple(name.split("."))
    if len(parts) < 2 or not all(parts):
        raise InvalidRequest(f"table {name!r}: write namespace.table")
    return parts


class ArchiveTable:
    def __init__(self, catalog: Catalog, table: Table) -> None:
        self._catalog = catalog
        self._table = table
        self.name = ".".join(table.name())

    @property
    def properties(self) -> Mapping[str, str]:
        return self._table.properties

    @property
    def uuid(self) -> UUID:
        """UUID of the table; a table that was dropped and created again has another UUID."""
        return self._table.metadata.table_uuid

    @property
    def io_properties(self) -> dict[str, str]:
        """Storage properties for workers; may have credentials that the catalog lent."""
        return dict(self._table.io.properties)

    @property
    def data_location(self) -> str:
        """Folder of data files, without a final slash."""
        return str(self._table.location_provider().data_path)

    @property
    def snapshot_id(self) -> int | None:
        """The current snapshot; the next commit requires it."""
        snapshot = self._table.current_snapshot()
        return None if snapshot is None else snapshot.snapshot_id

    def refresh(self) -> None:
        self._table = self._catalog.load_table(self._table.name())

    def arrow_schema(self, wanted: pa.Schema) -> pa.Schema:
        """`wanted` with the table's field ids, so that files need no name mapping. Raises InvalidRequest if a column is
        absent.
        """
        return _with_ids(wanted, self._table.schema(), self.name)

    def full_schema(self) -> pa.Schema:
        return schema_to_pyarrow(self._table.schema())

    def stored_files(self) -> list[tuple[StoredFile, DataFile]]:
        """Data files of the current snapshot that an archive could have written: one Kafka partition each, no deletes.

        The second of each pair is for `commit(removed=…)`.
        """
        schema = self._table.schema()
        offset, partition = (schema.find_field(name) for name in ("offset", "partition"))
        found = []
        for task in self._table.scan().plan_files():
            file = task.file
            low, high = file.lower_bounds or {}, file.upper_bounds or {}
            known = all(one.field_id in low and one.field_id in high for one in (offset, partition))
            if task.delete_files or not known or file.spec_id != self._table.spec().spec_id:
                continue
            first, last = (from_bytes(LongType(), bounds[offset.field_id]) for bounds in (low, high))
            one, other = (from_bytes(IntegerType(), bounds[partition.field_id]) for bounds in (low, high))
            if one == other:
                place = repr(file.partition)
                size, rows = file.file_size_in_bytes, file.record_count
                found.append((StoredFile(file.file_path, size, rows, place, int(one), int(first), int(last)), file))
        return found

    def archived(self) -> Archived:
        """Archived offsets on the current branch. Raises Corrupt when they are unknown."""
        snapshot = self._table.current_snapshot()
        head = None if snapshot is None else snapshot.snapshot_id
        while snapshot is not None:
            if FORMAT in _summary(snapshot):
                return _archived_of(_summary(snapshot), head)
            snapshot = self._parent(snapshot)
        return self._from_properties(head)

    def _parent(self, snapshot: Snapshot) -> Snapshot | None:
        parent = snapshot.parent_snapshot_id
        return None if parent is None else self._table.snapshot_by_id(parent)

    def _from_properties(self, head: int | None) -> Archived:
        """Archived offsets by the table's properties, when no snapshot of the archive is left on the branch."""
        stored = self._table.properties
        setter = stored.get(SNAPSHOT_ID)
        if setter is None:
            return Archived(head, None, {})
        if self._table.snapshot_by_id(int(setter)) is not None:
            raise Corrupt(
                f"table {self.name}: the table was rolled back to a snapshot before snapshot {setter}, which "
                "the archive wrote, and no older snapshot of the archive is left; roll the table forward, or "
                "archive into a new table"
            )
        return _archived_of(stored, head)

    def commit(
        self,
        files: Sequence[DataFileWritten],
        planned_on: Archived,
        change: ArchiveCommit,
        *,
        point: str,
        removed: Sequence[DataFile] = (),
    ) -> int:
        """Append `files` to the snapshot last read, without `removed`. Returns the new snapshot's id.

        Raises StaleTable when another committer was first, or no response came. `point`: the crash point after the
        commit.
        """
        assert planned_on.snapshot_id == self.snapshot_id, (planned_on, self.snapshot_id)
        commit_id, added = change.commit_id, change.added
        stored = {
            FORMAT: FORMAT_VERSION,
            TOPIC: change.topic,
            TOPIC_ID: str(change.topic_id),
            ARCHIVED: offset_ranges.encode(offset_ranges.union(planned_on.offsets, added)),
            COMMIT_ID: commit_id,
        }
        transaction = self._table.transaction()
        more = {ADDED: offset_ranges.encode(added), BASE: base_name(planned_on.snapshot_id)}
        update = transaction.update_snapshot(snapshot_properties={**stored, **more})
        producer = update.overwrite() if removed else update.fast_append()
        for written in files:
            producer.append_data_file(self._data_file(written))
        for entry in removed:
            producer.delete_data_file(entry)
        transaction.set_properties({**stored, SNAPSHOT_ID: str(producer.snapshot_id)})
        producer.commit()  # writes the manifests and stages the change; nothing is committed yet
        # The files have these columns. If the table has more columns by now, the files must be written again.
        columns = self._same_columns()
        try:
            self._catalog.commit_table(self._table, (*self._required(transaction), columns), transaction._updates)
        except Exception as failed:  # noqa: BLE001 - only the table shows whether the commit landed
            self._check_landed(commit_id, failed, producer)
        reach(point)
        self.refresh()
        return int(producer.snapshot_id)

    def _required(self, transaction: Transaction) -> tuple[TableRequirement, ...]:
        """The requirements of the commit. pyiceberg's own commit sends them and `_updates`; neither has a public
        name."""
        return *transaction._requirements, AssertTableUUID(uuid=self._table.metadata.table_uuid)

    def _same_columns(self) -> TableRequirement:
        return AssertCurrentSchemaId.model_validate({"current-schema-id": self._table.metadata.current_schema_id})

    def grow(self, wanted: pa.Schema, properties: Mapping[str, str]) -> None:
        """Add the missing columns of `wanted` (nulls in old rows) and set the properties, in one commit.

        Raises StaleTable when another committer changed the columns first, or no response came; InvalidRequest for a
        column that is not nullable.
        """
        known = {column.name for column in self._table.schema().columns}
        more = [field for field in wanted if field.name not in known]
        if not more and all(self.properties.get(name) == stored for name, stored in properties.items()):
            return
        if needed := [field.name for field in more if not field.nullable]:
            raise InvalidRequest(f"table {self.name} has no column {', '.join(needed)}; did another archive create it?")
        transaction = self._table.transaction()
        if more:
            with transaction.update_schema() as update:
                update.union_by_name(pa.schema(more))
        transaction.set_properties(dict(properties))
        columns = self._same_columns()
        try:
            self._catalog.commit_table(self._table, (*self._required(transaction), columns), transaction._updates)
        except CommitFailedException as failed:
            raise StaleTable(f"columns of {self.name}: another commit changed the table first; run again") from failed
        self.refresh()

    @property
    def by_day(self) -> bool:
        """Whether the table is partitioned by the day of `timestamp`; then no file may hold two days."""
        fields, schema = self._table.spec().fields, self._table.schema()
        return [(schema.find_column_name(one.source_id), one.transform) for one in fields] == [(DAY_OF, DayTransform())]

    def offsets_of_rows(self, partition: int, first: int, end: int) -> pa.Array:
        """Offsets of the rows in `[first, end)`, in order."""
        wanted = f"partition = {partition} and offset >= {first} and offset < {end}"
        found = self._table.scan(row_filter=wanted, selected_fields=("offset",)).to_arrow()
        return found["offset"].combine_chunks().sort()

    def _check_landed(self, commit_id: str, failed: Exception, producer: Any) -> None:
        """Return if our commit is in the table. Raises StaleTable otherwise."""
        self.refresh()
        if any(_summary(snapshot).get(COMMIT_ID) == commit_id for snapshot in self._table.snapshots()):
            return
        certain = isinstance(failed, CommitFailedException)
        if certain:
            producer._clean_all_uncommitted()
        why = "somebody else committed first" if certain else "the catalog gave no clear answer"
        raise StaleTable(f"commit to {self.name}: {why}: {failed}", landed_possible=not certain) from failed

    def _data_file(self, written: DataFileWritten) -> DataFile:
        schema, metadata = self._table.schema(), self._table.metadata
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=written.metadata,
            stats_columns=compute_statistics_plan(schema, self._table.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=written.location,
            file_format=FileFormat.PARQUET,
            partition=statistics.partition(metadata.spec(), schema),
            file_size_in_bytes=written.size,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    # ── leftovers ────────────────────────────────────────────────────────────────────────────────────────────────────
    def used_bases(self, count_max: int) -> list[tuple[str, frozenset[str]]]:
        """The newest archive commits as (base they required, names of the files they added), newest first.

        Another file written for such a base can never be committed, because its commit would require an old snapshot.
        """
        bases: dict[str, list[Snapshot]] = {}
        snapshot = self._table.current_snapshot()
        while snapshot is not None and len(bases) < count_max:
            if (base := _summary(snapshot).get(BASE)) is not None:
                bases.setdefault(base, [])
            snapshot = self._parent(snapshot)
        # A table that was rolled back may have two commits on one base; the older one stays for time travel.
        for snapshot in self._table.snapshots():
            if (base := _summary(snapshot).get(BASE)) in bases:
                bases[base].append(snapshot)
        return [(base, frozenset().union(*map(self._files_of, those))) for base, those in bases.items()]

    def _files_of(self, snapshot: Snapshot) -> frozenset[str]:
        io = self._table.io
        return frozenset(
            file_name(entry.data_file.file_path)
            for manifest in snapshot.manifests(io)
            if manifest.added_snapshot_id == snapshot.snapshot_id
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
        )

    def list_files(self, folder: str) -> list[str]:
        """Locations of the files in `folder`; empty when it does not exist."""
        io = PyArrowFileIO(self.io_properties)
        scheme, netloc, path = io.parse_location(folder, io.properties)
        selector = pa.fs.FileSelector(path, allow_not_found=True)
        infos = io.fs_by_scheme(scheme, netloc).get_file_info(selector)
        return [f"{folder}/{info.base_name}" for info in infos if info.type == pa.fs.FileType.File]

    def delete_files(self, locations: Sequence[str]) -> None:
        io = PyArrowFileIO(self.io_properties)
        for location in locations:
            try:
                io.delete(location)
            except FileNotFoundError:
                log.debug("%s was gone already", location)


def base_name(snapshot_id: int | None) -> str:
    """The folder name of files for a commit that requires this snapshot."""
    return "0" if snapshot_id is None else str(snapshot_id)


def file_name(location: str) -> str:
    """A file's own name, which is unique; the spelling of its location varies (`file:/`, `s3a://`)."""
    return location.rpartition("/")[2]


def open_table(catalog: Catalog, name: str) -> ArchiveTable | None:
    try:
        return ArchiveTable(catalog, catalog.load_table(table_identifier(name)))
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def create_table(
    catalog: Catalog, name: str, schema: pa.Schema, properties: Mapping[str, str], *, by_day: bool = False
) -> ArchiveTable:
    """Create a table with these columns, optionally partitioned by the day of `timestamp`. Returns the existing one
    when another archiver created it first.
    """
    identifier = table_identifier(name)
    try:
        catalog.create_namespace(identifier[:-1])
    except NamespaceAlreadyExistsError:
        pass
    except Exception as raced:  # noqa: BLE001 - a SQLite catalog raises its own integrity error
        log.debug("namespace of %s: %s", name, raced)
    try:
        # With ids, because a partition field refers to its source by id; the catalog assigns its own.
        numbered = assign_fresh_schema_ids(catalog._convert_schema_if_needed(schema))
        spec = _days(numbered) if by_day else UNPARTITIONED_PARTITION_SPEC
        table = catalog.create_table(identifier, schema=numbered, partition_spec=spec, properties=dict(properties))
    except TableAlreadyExistsError:
        table = catalog.load_table(identifier)
    return ArchiveTable(catalog, table)


def _days(schema: Schema) -> PartitionSpec:
    source = schema.find_field(DAY_OF).field_id
    return PartitionSpec(PartitionField(source, PARTITION_FIELD_ID_START, DayTransform(), f"{DAY_OF}_day"))


def _summary(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _archived_of(stored: Mapping[str, str], head: int | None) -> Archived:
    try:
        version, topic_id, offsets, _ = stored[FORMAT], UUID(stored[TOPIC_ID]), stored[ARCHIVED], stored[COMMIT_ID]
    except (KeyError, ValueError) as broken:
        raise Corrupt(f"archive properties of snapshot {head} are not readable: {broken}") from broken
    if version != FORMAT_VERSION:
        raise InvalidRequest(f"the archive was written in format {version}, but this version knows {FORMAT_VERSION}")
    return Archived(head, topic_id, offset_ranges.decode(offsets))


def _with_ids(wanted: pa.Schema, schema: Schema, table: str) -> pa.Schema:
    by_name = {column.name: column for column in schema.columns}
    missing = [name for name in wanted.names if name not in by_name]
    if missing:
        raise InvalidRequest(f"table {table} has no column {', '.join(missing)}; did another archive create it?")
    return pa.schema([_field_with_id(wanted.field(name), by_name[name]) for name in wanted.names])


def _field_with_id(wanted: pa.Field, stored: NestedField) -> pa.Field:
    kind = wanted.type
    if isinstance(stored.field_type, ListType):
        kind = pa.list_(_field_with_id(kind.value_field.with_name("element"), stored.field_type.element_field))
    elif isinstance(stored.field_type, StructType):
        inner = {column.name: column for column in stored.field_type.fields}
        kind = pa.struct([_field_with_id(kind.field(name), inner[name]) for name in inner])
    return pa.field(wanted.name, kind, wanted.nullable, metadata={"PARQUET:field_id": str(stored.field_id)})
