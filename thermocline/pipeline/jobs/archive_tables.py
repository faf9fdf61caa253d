"""The tables of an archive: opened or made, what they say stands, and files that nobody names.

Owns `Tables` and the properties that bind the table of dead letters to its own. Always true: a table that is of another
topic, of another decoder, or no archive, is refused before anything is written; a table of dead letters belongs to the
table it was made for; what is deleted can never be committed. Must not know the order of a run (`archive.py`), nor how
a commit is made (`iceberg_table.py`).
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
from thermocline.pipeline.jobs.archive_columns import DEAD_LETTER_SCHEMA, metrics_properties, table_schema
from thermocline.pipeline.jobs.archive_plan import ArchiveStep
from thermocline.pipeline.jobs.archive_worker import ArchiveTask, TableTarget, TaskDone, offsets_digest
from thermocline.pipeline.jobs.data_file_storage import DataFileWritten
from thermocline.pipeline.jobs.iceberg_table import (
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
    """How values are to be kept: the table's word, which may be repeated, or said with more columns.

    InvalidRequest: it is not the topic's table, or what is asked would change columns that are there.
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
    said = _said(table)
    if asked is None or asked == said:
        return said
    if not extends(said, asked):
        raise InvalidRequest(
            f"table {table.name} keeps values as {said}, not as {asked}: leave it out, name all of its columns and "
            "more, or archive into another table"
        )
    return asked


def _said(table: ArchiveTable) -> ValueSpec:
    return _VALUE_SPEC.decode(table.properties[VALUES])


def existing(
    catalog: Catalog, name: str, topic: TopicHistory, asked: ValueSpec | None
) -> tuple[ArchiveTable | None, ArchiveTable | None]:
    """The table and its dead letters, as far as they are there. InvalidRequest as an archive would raise it."""
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
    """Both tables, made where they are not there; `log_starts` by partition are where a new archive begins.

    A table that is there gets the columns it has not; `by_day` counts when it is made, and is refused if it is not so.
    """
    table = open_table(catalog, name)
    values = value_spec(table, topic, asked)
    schema = table_schema(decoder_of(values), keep_value=values.keep_value)
    said = {TOPIC: topic.topic, TOPIC_ID: str(topic.topic_id)}
    if table is None:
        kept = {
            VALUES: msgspec.json.encode(values).decode(),
            BEGUN: msgspec.json.encode(log_starts).decode(),
            **({} if values.is_raw else {DEAD_LETTERS: f"{name}{DEAD_LETTER_SUFFIX}"}),
        }
        table = create_table(catalog, name, schema, metrics_properties(schema) | said | kept, by_day=by_day)
        values = value_spec(table, topic, asked)  # of whoever created it first
        schema = table_schema(decoder_of(values), keep_value=values.keep_value)
    check_days(table, by_day)
    dead = None
    if not values.is_raw:
        dead = open_table(catalog, _dead_name(table, name))
        if dead is None:
            properties = metrics_properties(DEAD_LETTER_SCHEMA) | said | _dead_letters_of(table)
            properties[VALUES] = table.properties[VALUES]
            dead = create_table(catalog, _dead_name(table, name), DEAD_LETTER_SCHEMA, properties)
        check_dead_letters_of(table, dead)
        if values != _said(table):
            _check_even(table, dead)
        dead.grow(DEAD_LETTER_SCHEMA, {})
    table.grow(schema, metrics_properties(schema) | {VALUES: msgspec.json.encode(values).decode()})
    return Tables(table, dead, values, schema)


def check_days(table: ArchiveTable, by_day: bool) -> None:
    """Partitions of a table are said once; InvalidRequest when others are asked for."""
    if by_day and not table.by_day:
        raise InvalidRequest(f"table {table.name} is not partitioned by day, and stays so: archive into another table")


def _check_even(table: ArchiveTable, dead: ArchiveTable) -> None:
    """Dead letters of a step that did not end must be found again by the decoder that found them."""
    if offset_ranges.difference(dead.archived().offsets, table.archived().offsets):
        raise InvalidRequest(
            f"{dead.name} is ahead of {table.name}: a run died between its two commits; run once without --value and "
            "--columns, then add columns"
        )


def _dead_name(table: ArchiveTable, name: str) -> str:
    return table.properties.get(DEAD_LETTERS, f"{name}{DEAD_LETTER_SUFFIX}")


@dataclass(slots=True)
class Tables:
    """The table, the one for dead letters (None where values stay raw), and how values become columns."""

    table: ArchiveTable
    dead: ArchiveTable | None
    values: ValueSpec
    schema: pa.Schema

    @property
    def both(self) -> list[ArchiveTable]:
        return [self.table] if self.dead is None else [self.dead, self.table]

    def refresh(self) -> None:
        """The table first: the other one is ahead of it, and must not look as if it were not."""
        for one in reversed(self.both):
            one.refresh()
        self.values = _said(self.table)  # somebody may have added columns
        self.schema = table_schema(decoder_of(self.values), keep_value=self.values.keep_value)

    def target(self) -> TableTarget:
        return _target(self.table, self.schema)

    def dead_target(self) -> TableTarget | None:
        return None if self.dead is None else _target(self.dead, DEAD_LETTER_SCHEMA)


def begun(table: ArchiveTable | None) -> Mapping[int, int] | None:
    """Log starts when the table was made; None when there is none yet, or it is of before that was kept."""
    if table is None or BEGUN not in table.properties:
        return None
    return _LOG_STARTS.decode(table.properties[BEGUN])


def _dead_letters_of(table: ArchiveTable) -> dict[str, str]:
    """Properties by which a table of dead letters is known as this table's."""
    return {TOPIC_ID: table.properties[TOPIC_ID], ARCHIVE: str(table.uuid)}


def check_dead_letters_of(table: ArchiveTable, dead: ArchiveTable) -> None:
    """A table of that name may be left of an archive that was dropped: its offsets say nothing of ours."""
    if any(dead.properties.get(name) != said for name, said in _dead_letters_of(table).items()):
        raise InvalidRequest(
            f"table {dead.name} does not hold the dead letters of {table.name} but of another archive (of a topic or a "
            "table that was dropped and made again?); rename it or drop it, or archive into a table of another name"
        )


def ahead(dead: ArchiveTable, archived: Archived) -> Archived:
    """What the table of dead letters covers: at least all that is archived, for it is committed first."""
    covered = dead.archived()
    if offset_ranges.difference(archived.offsets, covered.offsets):
        dead.refresh()  # it may have been read before another archiver's two commits, and the table after them
        covered = dead.archived()
    if missing := offset_ranges.difference(archived.offsets, covered.offsets):
        raise Corrupt(
            f"{dead.name} knows nothing of offsets {offset_ranges.encode(missing)} that are archived: it was dropped "
            "or rolled back, and their dead letters are in neither table; roll it forward, or archive into a new table"
        )
    return covered


def check_standing(
    step: ArchiveStep, dead: ArchiveTable, tasks: Sequence[ArchiveTask], done: Sequence[TaskDone]
) -> None:
    """Rows of an earlier run and dead letters of now must be of one mind, or a row is in both tables or in none."""
    stand = {partition: dead.offsets_of_rows(partition, *found) for partition, found in step.ranges.items()}
    for task, one in zip(tasks, done, strict=True):
        partition, first, end = task.split.partition, task.split.rows.start_offset, task.split.rows.end_offset
        offsets = stand[partition]
        those = offsets.filter(pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, end)))
        if offsets_digest(those) != one.bad_digest:
            raise Corrupt(
                f"{dead.name} holds {len(those)} dead letters of partition {partition} [{first}, {end}), decoding "
                f"again gave {one.bad_rows}, or others: it is not the decoder of the run that died; run that one again "
                "or roll the table of dead letters back by one"
            )


def _target(table: ArchiveTable, schema: pa.Schema) -> TableTarget:
    folder = folder_of(table, base_name(table.snapshot_id))
    return TableTarget(folder, table.arrow_schema(schema), table.io_properties, table.by_day)


def folder_of(table: ArchiveTable, base: str) -> str:
    """Where files for a commit on the snapshot `base` go: once another is current, nothing in it can be committed.

    By the table's UUID too: another catalog's table, or one that was dropped, may have the same name and location, and
    every table's first base is 0.
    """
    return f"{table.data_location}/thermocline/{table.uuid}/{base}"


def sweep(table: ArchiveTable, commits: int) -> int:
    """Delete files written for bases that the newest `commits` archive commits used up, but for those they added.

    Left by killed runs, repeated tasks and lost races. Whoever still writes there can no longer commit. Folders without
    a UUID, of versions before, are left alone: nobody can tell whose files lie there.
    """
    deleted = 0
    for base, added in table.settled_bases(commits):
        left = [location for location in table.list_files(folder_of(table, base)) if file_name(location) not in added]
        table.delete_files(left)
        deleted += len(left)
    return deleted


def delete(table: ArchiveTable | None, files: Sequence[DataFileWritten]) -> None:
    if table is not None:
        table.delete_files([written.location for written in files])
