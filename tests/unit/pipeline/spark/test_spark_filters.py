"""Filters that Spark pushes down: bounds keep every row the filters keep; schemas ask for our columns only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType

from logformat.errors import InvalidRequest
from thermocline.pipeline.rows import COLUMNS, schema_of
from thermocline.pipeline.spark.planning.filters import bounds_of
from thermocline.pipeline.spark.projection import arrow_schema, columns_of, full_schema, shaped

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEEPS = {
    EqualTo: lambda have, want: have == want,
    EqualNullSafe: lambda have, want: have == want,
    GreaterThan: lambda have, want: have > want,
    GreaterThanOrEqual: lambda have, want: have >= want,
    LessThan: lambda have, want: have < want,
    LessThanOrEqual: lambda have, want: have <= want,
    In: lambda have, want: have in want,
}


def at(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def filters_on(column: str, values: st.SearchStrategy) -> st.SearchStrategy:
    simple = st.sampled_from([kind for kind in KEEPS if kind is not In])
    return st.one_of(
        st.builds(lambda kind, value: kind((column,), value), simple, values),
        st.builds(lambda found: In((column,), tuple(found)), st.lists(values, min_size=1, max_size=3)),
    )


@given(st.lists(filters_on("offset", st.integers(0, 50)), max_size=3), st.integers(0, 50))
def test_no_wanted_offset_is_cut(filters: list, offset: int) -> None:
    """An offset that all filters keep is inside the bounds."""
    if all(KEEPS[type(f)](offset, f.value) for f in filters):
        rows = bounds_of(filters).rows(0, 100)
        assert rows.start_offset <= offset < rows.end_offset


@given(st.lists(filters_on("timestamp", st.integers(0, 9000).map(at)), max_size=3), st.integers(0, 9))
def test_no_wanted_time_is_cut(filters: list, timestamp_ms: int) -> None:
    """Logs have whole milliseconds, filters microseconds: the border is rounded to the safe side."""
    if all(KEEPS[type(f)](at(timestamp_ms * 1000), f.value) for f in filters):
        rows = bounds_of(filters).rows(0, 1)
        assert rows.min_timestamp_ms is None or rows.min_timestamp_ms <= timestamp_ms
        assert rows.max_timestamp_ms is None or timestamp_ms < rows.max_timestamp_ms


def test_one_hour_becomes_exactly_that_hour() -> None:
    hour = [GreaterThanOrEqual(("timestamp",), at(3_600_000_000)), LessThan(("timestamp",), at(7_200_000_000))]
    rows = bounds_of(hour).rows(5, 9)
    assert (rows.min_timestamp_ms, rows.max_timestamp_ms) == (3_600_000, 7_200_000)
    assert (rows.start_offset, rows.end_offset) == (5, 9)


def test_topics_and_partitions() -> None:
    """Equality, IN and a prefix choose; what is not understood chooses nothing."""
    bounds = bounds_of(
        [In(("topic",), ("a1", "a2", "b1")), StringStartsWith(("topic",), "a"), EqualTo(("partition",), 3)]
    )
    assert bounds.wants("a1", 3)
    assert not bounds.wants("b1", 3) and not bounds.wants("a1", 4) and not bounds.wants("a3", 3)
    assert bounds_of([IsNotNull(("offset",)), Not(EqualTo(("partition",), 3)), EqualTo(("value",), b"x")]) == bounds_of(
        []
    )


def test_an_impossible_filter_leaves_an_empty_range() -> None:
    rows = bounds_of([GreaterThan(("offset",), 50), LessThan(("offset",), 10)]).rows(0, 100)
    assert rows.start_offset >= rows.end_offset


def test_a_time_without_a_zone_says_nothing() -> None:
    """Its instant depends on Spark's session zone; Spark evaluates it itself."""
    assert bounds_of([LessThan(("timestamp",), datetime(2020, 1, 1))]) == bounds_of([])  # noqa: DTZ001


def test_the_full_schema_is_ours_in_arrow() -> None:
    """Spark's Arrow schema and the decoder's are one, so that no batch is copied into shape."""
    schema = full_schema(include_headers=True)
    assert columns_of(schema) == COLUMNS
    assert arrow_schema(schema).equals(schema_of(COLUMNS))


@given(st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True))
def test_any_columns_in_any_order(names: list[str]) -> None:
    fields = {field.name: field for field in full_schema(True).fields}
    assert columns_of(StructType([fields[name] for name in names])) == tuple(names)


def test_a_wrong_column_or_type_is_named() -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'offset'"):
        columns_of(StructType([StructField("Offset", LongType())]))
    with pytest.raises(InvalidRequest, match="column value is binary, not string"):
        columns_of(StructType([StructField("value", StringType())]))
    with pytest.raises(InvalidRequest, match="no column"):
        columns_of(StructType([]))
    with pytest.raises(InvalidRequest, match="twice"):
        columns_of(StructType([StructField("offset", LongType()), StructField("offset", LongType())]))


def test_batches_take_sparks_shape() -> None:
    """A column declared NOT NULL is another Arrow schema; the values are the same."""
    target = arrow_schema(StructType([StructField("offset", LongType(), nullable=False)]))
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2])], schema=schema_of(["offset"]))
    (found,) = shaped(iter([batch]), target)
    assert found.schema.equals(target) and found.column(0).to_pylist() == [1, 2]
