"""Spark's schema and our columns: which columns a query reads, and batches in Spark's exact Arrow schema."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from logformat.errors import InvalidRequest
from thermocline.pipeline.rows import COLUMNS, DEFAULT_COLUMNS

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SPARK_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def full_schema(include_headers: bool) -> StructType:
    """The schema of Spark's own Kafka source, with or without headers."""
    names = COLUMNS if include_headers else DEFAULT_COLUMNS
    return StructType([StructField(name, SPARK_TYPES[name]) for name in names])


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema, in its order. Raises InvalidRequest for an unknown name or another type."""
    if not schema.fields:
        raise InvalidRequest("the schema has no column; leave .schema() out to read all of them")
    for field in schema.fields:
        ours = SPARK_TYPES.get(field.name)
        if ours is None:
            near = difflib.get_close_matches(field.name, COLUMNS, n=1, cutoff=0.0)[0]
            raise InvalidRequest(
                f"schema: no column {field.name!r}; did you mean {near!r}? There are {', '.join(COLUMNS)}"
            )
        if field.dataType.simpleString() != ours.simpleString():
            raise InvalidRequest(
                f"schema: column {field.name} is {ours.simpleString()}, not {field.dataType.simpleString()}; "
                "read it as it is and cast it in the query"
            )
    names = tuple(field.name for field in schema.fields)
    if len(set(names)) != len(names):
        raise InvalidRequest(f"schema: a column is named twice in {', '.join(names)}")
    return names


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of a reader with this schema."""
    return to_arrow_schema(schema, timezone="UTC")


def shaped(batches: Iterator[pa.RecordBatch], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches with Spark's field names and nullability; no copy if the types are equal."""
    for batch in batches:
        if batch.schema.equals(target):
            yield batch
        else:
            columns = [
                column if column.type == field.type else column.cast(field.type)
                for column, field in zip(batch.columns, target, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=target)
