"""Columns of an archived topic and of its dead letters as Arrow schemas, and the rows for them.

Names, order and types as in docs/formats/archive.md. Topic, partition and offset are never null and identify a row
across both tables. A record's value becomes a column of the table, or several decoded columns, or a dead letter with
the value's bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from logformat.errors import InvalidRequest
from thermocline.pipeline.jobs.values import ValueDecoder
from thermocline.pipeline.rows import FIELDS

# Columns to read; topic and partition are constants of a split.
READ_COLUMNS: Final = ("offset", "timestamp", "timestampType", "key", "value", "headers")
_BY_NAME: Final = {found.name: found for found in FIELDS}
_HEAD: Final = (
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", _BY_NAME["timestamp"].type),
    pa.field("timestamp_type", pa.int32()),
    pa.field("key", pa.binary()),
)
_VALUE: Final = pa.field("value", pa.binary())
_HEADERS: Final = pa.field("headers", _BY_NAME["headers"].type)
_ERROR: Final = pa.field("error", pa.string(), nullable=False)
RAW_SCHEMA: Final = pa.schema([*_HEAD, _VALUE, _HEADERS])
DEAD_LETTER_SCHEMA: Final = pa.schema([*_HEAD, _VALUE, _HEADERS, _ERROR])

# Readers prune files and row groups by these; bounds of keys, values and headers are unused and cost a pass.
PRUNED_BY: Final = ("partition", "offset", "timestamp")
_UNMEASURED: Final = frozenset({"topic", "timestamp_type", "key", "value", "headers", "error"})


def table_schema(decoder: ValueDecoder | None, *, keep_value: bool) -> pa.Schema:
    """Columns of the table. Raises InvalidRequest when a decoded column has the name of another column."""
    if decoder is None:
        return RAW_SCHEMA
    taken = [name for name in decoder.schema.names if name in RAW_SCHEMA.names]
    if taken:
        raise InvalidRequest(
            f"columns: {', '.join(taken)}: the table has columns of that name; write `my_{taken[0]} … from {taken[0]}`"
        )
    return pa.schema([*_HEAD, *((_VALUE,) if keep_value else ()), _HEADERS, *decoder.schema])


def measured(schema: pa.Schema) -> list[str]:
    """Columns with bounds in the metadata: `PRUNED_BY`, and those decoded from values."""
    return [name for name in schema.names if name not in _UNMEASURED]


def metrics_properties(schema: pa.Schema) -> dict[str, str]:
    """Iceberg's table properties for `measured`."""
    modes = {name: "full" if name in PRUNED_BY else "truncate(16)" for name in measured(schema)}
    return {
        "write.metadata.metrics.default": "none",
        **{f"write.metadata.metrics.column.{name}": mode for name, mode in modes.items()},
    }


@dataclass(frozen=True, slots=True)
class Sorted:
    """Table rows and dead letters of one batch. Either may have no rows."""

    good: pa.RecordBatch
    bad: pa.RecordBatch | None


class RowSorter:
    """Turns a split's batches into table rows and dead letters. One per task."""

    def __init__(self, topic: str, partition: int, schema: pa.Schema, decoder: ValueDecoder | None) -> None:
        self._topic = pa.scalar(topic, pa.string())
        self._partition = pa.scalar(partition, pa.int32())
        self._schema = schema
        self._decoder = decoder
        self._constants: tuple[pa.Array, pa.Array] = (pa.array([], pa.string()), pa.array([], pa.int32()))

    def sort(self, batch: pa.RecordBatch) -> Sorted:
        """`batch` has `READ_COLUMNS`."""
        columns = self._columns(batch)
        if self._decoder is None:
            return Sorted(_batch(self._schema, columns), None)
        decoded, bad = self._decoder.decode(columns["value"])
        if not bad:
            return Sorted(_batch(self._schema, columns | self._named(decoded, batch.num_rows)), None)
        rows = pa.array([row for row, _ in bad], pa.int64())
        reasons = pa.array([reason for _, reason in bad], pa.string())
        refused = {name: column.take(rows) for name, column in columns.items()} | {"error": reasons}
        kept = pc.invert(pc.is_in(pa.array(range(batch.num_rows), pa.int64()), value_set=rows))
        good = {name: column.filter(kept) for name, column in columns.items()}
        named = self._named(decoded, batch.num_rows - len(bad))
        return Sorted(_batch(self._schema, good | named), _batch(DEAD_LETTER_SCHEMA, refused))

    def _columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        rows = batch.num_rows
        if len(self._constants[0]) < rows:
            self._constants = (pa.repeat(self._topic, rows), pa.repeat(self._partition, rows))
        read = {name: batch.column(name) for name in READ_COLUMNS}
        read["timestamp_type"] = read.pop("timestampType")
        return {"topic": self._constants[0][:rows], "partition": self._constants[1][:rows]} | read

    def _named(self, decoded: list[pa.Array], rows: int) -> dict[str, pa.Array]:
        assert self._decoder is not None
        schema = self._decoder.schema
        if len(decoded) != len(schema) or any(len(column) != rows for column in decoded):
            raise InvalidRequest(
                f"the value decoder is broken: for {rows} good rows it returned columns of "
                f"{[len(column) for column in decoded]} cells, not {len(schema)} columns of {rows}"
            )
        return dict(zip(schema.names, decoded, strict=True))


def _batch(schema: pa.Schema, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
