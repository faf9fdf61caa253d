"""Spark's pushed filters on offset, timestamp, partition and topic as bounds for a plan. Pure.

`Bounds` keeps every row that all the filters keep, and perhaps more, so Spark evaluates every filter again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from thermocline.pipeline.split import RowFilter

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
OFFSET_END: Final = (1 << 63) - 1
_Value = TypeVar("_Value", int, str)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Wanted rows. Offsets and times as in `RowFilter`; None means all."""

    start_offset: int = 0
    end_offset: int = OFFSET_END
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    topics: frozenset[str] | None = None
    topic_prefix: str = ""
    partitions: frozenset[int] | None = None

    def wants(self, topic: str, partition: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
            and topic.startswith(self.topic_prefix)
            and (self.partitions is None or partition in self.partitions)
        )

    def rows(self, start: int, end: int) -> RowFilter:
        """The filter for offsets `[start, end)` of a partition; may be empty."""
        first = max(start, self.start_offset)
        return RowFilter(first, max(first, min(end, self.end_offset)), self.min_timestamp_ms, self.max_timestamp_ms)


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """Bounds of the rows that satisfy all of these filters. Filters on other columns or of other kinds are ignored."""
    bounds = Bounds()
    for pushed in filters:
        column = getattr(pushed, "attribute", None)
        if column == ("offset",):
            bounds = _offset(bounds, pushed)
        elif column == ("timestamp",):
            bounds = _timestamp(bounds, pushed)
        elif column == ("partition",):
            allowed = _values(pushed, int)
            if allowed is not None:
                bounds = replace(bounds, partitions=_both(bounds.partitions, allowed))
        elif column == ("topic",):
            bounds = _topic(bounds, pushed)
    return bounds


def _offset(bounds: Bounds, pushed: Filter) -> Bounds:
    start, end = _interval(pushed, int)
    return replace(
        bounds,
        start_offset=bounds.start_offset if start is None else max(bounds.start_offset, start),
        end_offset=bounds.end_offset if end is None else min(bounds.end_offset, end),
    )


def _timestamp(bounds: Bounds, pushed: Filter) -> Bounds:
    """Microseconds `[start, end)` of a filter as whole milliseconds of a log: both ends round up."""
    start, end = _interval(pushed, datetime)
    least, below = bounds.min_timestamp_ms, bounds.max_timestamp_ms
    if start is not None:
        least = -(-start // 1000) if least is None else max(least, -(-start // 1000))
    if end is not None:
        below = -(-end // 1000) if below is None else min(below, -(-end // 1000))
    return replace(bounds, min_timestamp_ms=least, max_timestamp_ms=below)


def _topic(bounds: Bounds, pushed: Filter) -> Bounds:
    if isinstance(pushed, StringStartsWith):
        prefix = str(pushed.value)
        return replace(bounds, topic_prefix=prefix) if prefix.startswith(bounds.topic_prefix) else bounds
    allowed = _values(pushed, str)
    return bounds if allowed is None else replace(bounds, topics=_both(bounds.topics, allowed))


def _interval(pushed: Filter, kind: type) -> tuple[int | None, int | None]:
    """`[start, end)` in the column's unit (µs for times), None where open."""
    if isinstance(pushed, In):
        numbers = [_number(value, kind) for value in pushed.value if value is not None]
        known = [number for number in numbers if number is not None]
        return (min(known), max(known) + 1) if known and len(known) == len(numbers) else (None, None)
    number = _number(getattr(pushed, "value", None), kind)
    if number is None:
        return None, None
    if isinstance(pushed, EqualTo | EqualNullSafe):
        return number, number + 1
    if isinstance(pushed, GreaterThan):
        return number + 1, None
    if isinstance(pushed, GreaterThanOrEqual):
        return number, None
    if isinstance(pushed, LessThan):
        return None, number
    return (None, number + 1) if isinstance(pushed, LessThanOrEqual) else (None, None)


def _number(value: object, kind: type) -> int | None:
    if kind is int:
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // _MICROSECOND
    return None  # a time without a zone is in Spark's session zone, which is unknown here


def _values(pushed: Filter, kind: type[_Value]) -> frozenset[_Value] | None:
    if isinstance(pushed, EqualTo | EqualNullSafe):
        return frozenset({pushed.value}) if isinstance(pushed.value, kind) else None
    if isinstance(pushed, In):
        return frozenset(value for value in pushed.value if isinstance(value, kind))
    return None


def _both(known: frozenset[_Value] | None, more: frozenset[_Value]) -> frozenset[_Value]:
    return more if known is None else known & more
