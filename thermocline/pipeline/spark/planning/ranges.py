"""Resolves "earliest", "latest", offsets and times to offsets `[start, end)` of every partition. Pure.

A range is inside the log. Offsets outside of it are reported, and the caller raises or logs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from logformat.errors import InvalidRequest
from logformat.values import TopicPartition
from thermocline.pipeline.spark.options import ByOffset, ByTimestamp, Edge, Position
from thermocline.pipeline.spark.planning.offsets import EARLIEST, LATEST, check_covers


@dataclass(frozen=True, slots=True)
class Extent:
    """Offsets `[start, end)` of a partition's log."""

    start: int
    end: int


Extents = Mapping[TopicPartition, Extent]
Found = Mapping[TopicPartition, int | None]  # the first offset at or after the requested time; None when there is none


def times_to_find(position: Position, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The time in ms to look up in each partition; empty for positions without times."""
    if not isinstance(position, ByTimestamp):
        return {}
    if position.timestamp_ms is not None:
        return dict.fromkeys(partitions, position.timestamp_ms)
    wanted = list(partitions)
    check_covers(position.timestamps_ms, wanted, position.option)
    # As in Spark's source, -1 and -2 are not times; the option's parser refuses negative times.
    return {tp: position.timestamps_ms[tp] for tp in wanted}


def starts(
    position: Position, extents: Extents, found: Found, no_later_is_latest: bool, lost: list[str]
) -> dict[TopicPartition, int]:
    """Start of each partition, above its end if the first record of a time arrived after the end was read. Raises
    InvalidRequest when a time is later than every record (strategy `error`)."""
    result = {}
    for tp, wanted in _wanted(position, extents, found).items():
        if wanted is None:
            if not no_later_is_latest:
                assert isinstance(position, ByTimestamp)
                raise InvalidRequest(
                    f"option {position.option}: {tp} has no record at or after that time; choose an earlier one, or "
                    "startingOffsetsByTimestampStrategy=latest to start at the end"
                )
            wanted = extents[tp].end
        arrived = _arrived_since(position, wanted, extents[tp])
        result[tp] = wanted if arrived else inside(tp, wanted, extents[tp], "start", lost)
    return result


def ends(position: Position, extents: Extents, found: Found, lost: list[str]) -> dict[TopicPartition, int]:
    """End (exclusive) of each partition. A time later than every record gives the log's end."""
    result = {}
    for tp, wanted in _wanted(position, extents, found).items():
        extent = extents[tp]
        if wanted is None or _arrived_since(position, wanted, extent):
            result[tp] = extent.end
        else:
            result[tp] = inside(tp, wanted, extent, "end", lost)
    return result


def _arrived_since(position: Position, offset: int, extent: Extent) -> bool:
    """Whether the record at `offset` arrived after the end was read. This may happen because a time is looked up
    later."""
    return isinstance(position, ByTimestamp) and offset > extent.end


def inside(tp: TopicPartition, wanted: int, extent: Extent, what: str, lost: list[str]) -> int:
    """`wanted`, or the nearest offset in the log, with a line about it in `lost`."""
    if wanted < extent.start and what == "start":
        lost.append(f"{tp}: offsets {wanted}–{extent.start - 1} are below the log's start {extent.start} (retention)")
    elif wanted > extent.end:
        lost.append(f"{tp}: {what} offset {wanted} is beyond the end {extent.end} of what can be read")
    return min(max(wanted, extent.start), extent.end)


def _wanted(position: Position, extents: Extents, found: Found) -> dict[TopicPartition, int | None]:
    if isinstance(position, ByTimestamp):
        return {tp: found[tp] for tp in extents}
    if isinstance(position, ByOffset):
        check_covers(position.offsets, extents, position.option)
        return {tp: _edge(position.offsets[tp], extent) for tp, extent in extents.items()}
    return {tp: extent.start if position is Edge.EARLIEST else extent.end for tp, extent in extents.items()}


def _edge(offset: int, extent: Extent) -> int:
    return {EARLIEST: extent.start, LATEST: extent.end}.get(offset, offset)
