"""Offsets by timestamp in the local segments (ListOffsets with a timestamp, and with −3).

A result has a record's own timestamp and offset. All functions block and may decompress one batch. Source: Kafka's
UnifiedLog.fetchOffsetByTimestamp and LogSegment.findOffsetByTimestamp.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from hotstore.log.batch_walk import walk_headers
from hotstore.log.segment import IndexCache, Segment
from logformat.compression import DecompressedTooLarge
from logformat.record_batch import HEADER_SIZE, read_header
from logformat.records import offset_for_timestamp, records_since


class TimestampedOffset(NamedTuple):
    """A record's timestamp in ms, its offset, and the leader epoch of its batch."""

    timestamp: int
    offset: int
    leader_epoch: int


def find_timestamp(
    segments: Sequence[Segment], cache: IndexCache, timestamp: int, offset_min: int
) -> TimestampedOffset | None:
    """The first record at or above `offset_min` that is not older than `timestamp`; None if there is none in these
    segments."""
    for segment in segments:
        if segment.end_offset <= offset_min or segment.max_timestamp.timestamp < timestamp:
            continue
        position = _start(segment, cache, timestamp)
        for at, header in walk_headers(segment.file, position, segment.size):
            if header.max_timestamp < timestamp or header.next_offset <= offset_min:
                continue
            found = offset_for_timestamp(segment.file.read_at(at, header.size), timestamp, offset_min=offset_min)
            if found is not None:
                return TimestampedOffset(found.timestamp, found.offset, header.leader_epoch)
    return None


def greatest_timestamp(segments: Sequence[Segment], cache: IndexCache) -> TimestampedOffset | None:
    """The first record with the greatest timestamp in these segments; None if no record has a timestamp."""
    best = max(segments, key=lambda segment: segment.max_timestamp.timestamp)
    timestamp, offset = best.max_timestamp
    if timestamp < 0:
        return None
    place = best.locate(offset, cache)
    batch = best.file.read_at(place.position, place.size)
    with contextlib.suppress(DecompressedTooLarge):
        for found in records_since(batch, timestamp):
            if found.timestamp == timestamp:
                return TimestampedOffset(timestamp, found.offset, read_header(batch).leader_epoch)
    # A header may claim a greater timestamp than its records have (KafkaJS), or the batch is too large. The last offset
    # of the batch is then used.
    return TimestampedOffset(timestamp, offset, read_header(batch).leader_epoch)


def _start(segment: Segment, cache: IndexCache, timestamp: int) -> int:
    """A position before which no batch has the result; 0 if the time index is wrong."""
    try:
        entry = segment.indexes(cache).times.lookup(timestamp)
    except IndexError:
        # The loop may be appending to the index of the active segment, whose columns grow one after the other.
        return 0
    if entry.timestamp < 0 or not segment.base_offset <= entry.offset < segment.end_offset:
        return 0
    place = segment.locate(entry.offset, cache)
    header = read_header(segment.file.read_at(place.position, HEADER_SIZE))
    return place.position if header.max_timestamp == entry.timestamp else 0
