"""The two tables of an archive, and deletion of files that no table names.

A table is refused before anything is written if it is of another topic or decoder, or not an archive. A dead-letter
table belongs to the table it was created for. Deleted files can never be committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from logformat.errors import Corrupt, InvalidRequest
from thermocline.pipeline.jobs import offset_ranges
from thermocline.pipeline.jobs.archive_plan import ArchiveStep
from thermocline.pipeline.jobs.archive_worker import ArchiveTask, TableTarget, TaskDone, offsets_digest
from thermocline.pipeline.jobs.tables.archive_columns import DEAD_LETTER_SCHEMA, metrics_properties, table_schema
from thermocline.pipeline.jobs.tables.data_file_storage import DataFileWritten
from thermocline.pipeline.jobs.tables.iceberg_table import (
    ARCHIVE,
    BEGUN,
    DEAD_LETTERS,
    TOPIC,
    TOPIC_ID,
    VALUES,
    Archived,
    ArchiveTable,
    base_name,
    create_table,
    file_name,
    open_table,
)
from thermocline.pipeline.jobs.values import ValueSpec, decoder_of, extends
from thermocline.pipeline.topics import TopicHistory

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

DEAD_LETTER_SUFFIX: Final = "_dead_letters"
_VALUE_SPEC: Final = msgspec.json.Decoder(ValueSpec)
_LOG_STARTS: Final = msgspec.json.Decoder(dict[int, int])


def value_spec(table: ArchiveTable | None, topic: TopicHistory, asked: ValueSpec | None) -> ValueSpec:
    """The value columns of the table. `asked` may repeat them, or name additional columns.

    Raises InvalidRequest if it is another topic's table, or if `asked` would change existing columns.
    """
    if table is None:
        return asked or ValueSpec()
    if VALUES not in table.properties or TOPIC_ID not in table.properties:
        raise InvalidRequest(f"table {table.name} is not an archive of a topic; give another name")
    if table.properties[TOPIC_ID] != str(topic.topic_id):
        raise InvalidRequest(
            f"table {table.name} is the archive of topic {table.properties[TOPIC]} with id "
            f"{table.properties[TOPIC_ID]}, not of {topic.topic} with id {topic.topic_id}"
            " (deleted and created again?); archive into another table"
        )
    stored = _stored_spec(table)
    if asked is None or asked == stored:
        return stored
    if not extends(stored, asked):
        raise InvalidRequest(
            f"table {table.name} keeps values as {stored}, not as {asked}: leave out --value and --columns, name all "
            "stored columns and new ones, or archive into another table"
        )
    return asked


def _stored_spec(table: ArchiveTable) -> ValueSpec:
    return _VALUE_SPEC.decode(table.properties[VALUES])


def existing(
    catalog: Catalog, name: str, topic: TopicHistory, asked: ValueSpec | None
) -> tuple[ArchiveTable | None, ArchiveTable | None]:
    """The table and its dead-letter table, None where missing. Raises InvalidRequest as an archive would."""
    table = open_table(catalog, name)
    values = value_spec(table, topic, asked)
    if table is None:
        return None, None
    dead = None if values.is_raw else open_table(catalog, _dead_name(table, name))
    if dead is not None:
        check_dead_letters_of(table, dead)
    return table, dead


def open_tables(
    catalog: Catalog,
    name: str,
    topic: TopicHistory,
    asked: ValueSpec | None,
    log_starts: Mapping[int, int],
    *,
    by_day: bool = False,
) -> Tables:
    """Both tables, created where missing; `log_starts` by partition are where a new archive begins.

    An existing table gets the columns it lacks. `by_day` applies to a new table; an existing table must be partitioned
    in the same way.
    """
    table = open_table(catalog, name)
    values = value_spec(table, topic, asked)
    schema = table_schema(decoder_of(values), keep_value=values.keep_value)
    stored = {TOPIC: topic.topic, TOPIC_ID: str(topic.topic_id)}
    if table is None:
        kept = {
            VALUES: msgspec.json.encode(values).decode(),
            BEGUN: msgspec.json.encode(log_starts).decode(),
            **({} if values.is_raw else {DEAD_LETTERS: f"{name}{DEAD_LETTER_SUFFIX}"}),
        }
        table = create_table(catalog, name, schema, metrics_properties(schema) | stored | kept, by_day=by_day)
        values = value_spec(table, topic, asked)  # another archiver may have created it first
        schema = table_schema(decoder_of(values), keep_value=values.keep_value)
    check_days(table, by_day)
    dead = None
    if not values.is_raw:
        dead = open_table(catalog, _dead_name(table, name))
        if dead is None:
            properties = metrics_properties(DEAD_LETTER_SCHEMA) | stored | _dead_letters_of(table)
            properties[VALUES] = table.properties[VALUES]
            dead = create_table(catalog, _dead_name(table, name), DEAD_LETTER_SCHEMA, properties)
        check_dead_letters_of(table, dead)
        if values != _stored_spec(table):
            _check_even(table, dead)
        dead.grow(DEAD_LETTER_SCHEMA, {})
    table.grow(schema, metrics_properties(schema) | {VALUES: msgspec.json.encode(values).decode()})
    return Tables(table, dead, values, schema)


def check_days(table: ArchiveTable, by_day: bool) -> None:
    """A table's partitioning is fixed when it is created. Raises InvalidRequest for another partitioning."""
    if by_day and not table.by_day:
        raise InvalidRequest(f"table {table.name} is not partitioned by day, and stays so: archive into another table")


def _check_even(table: ArchiveTable, dead: ArchiveTable) -> None:
    """Refuse another decoder while a step is unfinished, because the decoder that found its dead letters must find them
    again."""
    if offset_ranges.difference(dead.archived().offsets, table.archived().offsets):
        raise InvalidRequest(
            f"{dead.name} is ahead of {table.name}: a run died between its two commits; run once without --value and "
            "--columns, then add columns"
        )


def _dead_name(table: ArchiveTable, name: str) -> str:
    return table.properties.get(DEAD_LETTERS, f"{name}{DEAD_LETTER_SUFFIX}")


@dataclass(slots=True)
class Tables:
    """The table, the dead-letter table (None for raw values), and how values become columns."""

    table: ArchiveTable
    dead: ArchiveTable | None
    values: ValueSpec
    schema: pa.Schema

    @property
    def both(self) -> list[ArchiveTable]:
        return [self.table] if self.dead is None else [self.dead, self.table]

    def refresh(self) -> None:
        """Read the table first, then the dead-letter table, which is ahead of it and must not appear to be behind."""
        for one in reversed(self.both):
            one.refresh()
        self.values = _stored_spec(self.table)  # another archiver may have added columns
        self.schema = table_schema(decoder_of(self.values), keep_value=self.values.keep_value)

    def target(self) -> TableTarget:
        return _target(self.table, self.schema)

    def dead_target(self) -> TableTarget | None:
        return None if self.dead is None else _target(self.dead, DEAD_LETTER_SCHEMA)


def initial_log_starts(table: ArchiveTable | None) -> Mapping[int, int] | None:
    """Log starts when the table was created. None if there is no table, or if the table is older than this property."""
    if table is None or BEGUN not in table.properties:
        return None
    return _LOG_STARTS.decode(table.properties[BEGUN])


def _dead_letters_of(table: ArchiveTable) -> dict[str, str]:
    """Properties that tie a dead-letter table to this table."""
    return {TOPIC_ID: table.properties[TOPIC_ID], ARCHIVE: str(table.uuid)}


def check_dead_letters_of(table: ArchiveTable, dead: ArchiveTable) -> None:
    """Refuse a dead-letter table left by a dropped archive, because its offsets are another archive's."""
    if any(dead.properties.get(name) != stored for name, stored in _dead_letters_of(table).items()):
        raise InvalidRequest(
            f"table {dead.name} does not hold the dead letters of {table.name} but of another archive (of a topic or a "
            "table that was dropped and made again?); rename it or drop it, or archive into a table of another name"
        )


def dead_letter_coverage(dead: ArchiveTable, archived: Archived) -> Archived:
    """Offsets that the dead-letter table covers. They include all archived offsets, because the dead-letter table is
    committed first."""
    covered = dead.archived()
    if offset_ranges.difference(archived.offsets, covered.offsets):
        dead.refresh()  # another archiver may have committed both between the reads of the two tables
        covered = dead.archived()
    if missing := offset_ranges.difference(archived.offsets, covered.offsets):
        raise Corrupt(
            f"{dead.name} does not cover offsets {offset_ranges.encode(missing)}, which are archived: it was dropped "
            "or rolled back, and their dead letters are in neither table; roll it forward, or archive into a new table"
        )
    return covered


def check_same_dead_letters(
    step: ArchiveStep, dead: ArchiveTable, tasks: Sequence[ArchiveTask], done: Sequence[TaskDone]
) -> None:
    """Check that the dead letters of an earlier run equal those found now; otherwise a row would be in both tables or
    in none.
    """
    committed = {partition: dead.offsets_of_rows(partition, *found) for partition, found in step.ranges.items()}
    for task, one in zip(tasks, done, strict=True):
        partition, first, end = task.split.partition, task.split.rows.start_offset, task.split.rows.end_offset
        offsets = committed[partition]
        those = offsets.filter(pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, end)))
        if offsets_digest(those) != one.bad_digest:
            raise Corrupt(
                f"{dead.name} holds {len(those)} dead letters of partition {partition} [{first}, {end}), but decoding "
                f"again gave {one.bad_rows}, or different ones: the run that died used another decoder; run again with "
                f"that decoder, or roll {dead.name} back by one snapshot"
            )


def _target(table: ArchiveTable, schema: pa.Schema) -> TableTarget:
    folder = folder_of(table, base_name(table.snapshot_id))
    return TableTarget(folder, table.arrow_schema(schema), table.io_properties, table.by_day)


def folder_of(table: ArchiveTable, base: str) -> str:
    """The folder of files for a commit on snapshot `base`. Once another snapshot is current, none of these files can be
    committed.

    The folder's name also has the table's UUID, because a table of another catalog, or a dropped table, may have the
    same name and location, and every table's first base is 0.
    """
    return f"{table.data_location}/thermocline/{table.uuid}/{base}"


def sweep(table: ArchiveTable, commits: int) -> int:
    """Delete the files for bases that the newest `commits` archive commits used, except the files that these commits
    added.

    Killed runs, repeated tasks and lost races leave such files; their writers can no longer commit. Folders without a
    UUID, of earlier versions, stay, because their owner is unknown.
    """
    deleted = 0
    for base, added in table.used_bases(commits):
        left = [location for location in table.list_files(folder_of(table, base)) if file_name(location) not in added]
        table.delete_files(left)
        deleted += len(left)
    return deleted


def delete(table: ArchiveTable | None, files: Sequence[DataFileWritten]) -> None:
    if table is not None:
        table.delete_files([written.location for written in files])
