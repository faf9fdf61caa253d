"""Builds the offset and time index of consecutive batches, with entries exactly where Kafka puts them.

Appends, recovery and the copier use it. The copier's range may begin inside a local file, so the copier passes its own
base offset and positions. The same batches always give the same bytes. A batch gets an entry if more than
index.interval.bytes were written between the last entry and the batch; the time index then gets an entry with the
greatest timestamp so far. Source: Kafka's LogSegment.append and LogSegment.recover.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from logformat.indexes.offset_index import OffsetIndex
from logformat.indexes.time_index import TimeIndex
from logformat.record_batch import (
    LAST_OFFSET_DELTA,
    LENGTH,
    LOG_OVERHEAD,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
    Fields,
)

INDEX_INTERVAL_BYTES: Final = 4096  # Kafka's default of index.interval.bytes


class SegmentIndexer:
    """Both growing indexes of one segment. Hot path: at most 1 µs per batch (with an entry for every fifth batch)."""

    __slots__ = (
        "_interval_bytes",
        "_since_entry_bytes",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "time_index",
    )

    def __init__(self, base_offset: int, interval_bytes: int = INDEX_INTERVAL_BYTES) -> None:
        self.offset_index = OffsetIndex(base_offset)
        self.time_index = TimeIndex(base_offset)
        self.max_timestamp = NO_TIMESTAMP
        """Greatest timestamp so far, ms; −1 if none."""
        self.max_timestamp_offset = base_offset
        """Last offset of the first batch that has `max_timestamp`."""
        self._interval_bytes = interval_bytes
        self._since_entry_bytes = 0

    @classmethod
    def resume(
        cls, offset_index: OffsetIndex, time_index: TimeIndex, size: int, interval_bytes: int = INDEX_INTERVAL_BYTES
    ) -> SegmentIndexer:
        """Continue after a clean stop, with both indexes as `seal` left them and the segment `size` bytes long."""
        self = cls(offset_index.base_offset, interval_bytes)
        self.offset_index, self.time_index = offset_index, time_index
        self.max_timestamp, self.max_timestamp_offset = time_index.last
        self._since_entry_bytes = size - offset_index.last.position
        return self

    def add_run(self, headers: Sequence[Fields], base_offset: int, position: int, append_time_ms: int = -1) -> None:
        """Add the next contiguous batches, which begin at `position`. Their offsets count from `base_offset`, not from
        the headers. `append_time_ms` ≥ 0 replaces their timestamps.

        Their last offsets must fit (`offset_index.fits`): the caller rolls the segment before a batch that does not
        fit."""
        newest, newest_offset = self.max_timestamp, self.max_timestamp_offset
        since, interval = self._since_entry_bytes, self._interval_bytes
        last_offset = base_offset - 1
        for header in headers:
            last_offset += header[LAST_OFFSET_DELTA] + 1
            timestamp = header[MAX_TIMESTAMP] if append_time_ms < 0 else append_time_ms
            if timestamp > newest:
                newest, newest_offset = timestamp, last_offset
            if since > interval:
                self.offset_index.append(last_offset, position)
                self.time_index.maybe_append(newest, newest_offset)
                since = 0
            size = header[LENGTH] + LOG_OVERHEAD
            since += size
            position += size
        self.max_timestamp, self.max_timestamp_offset = newest, newest_offset
        self._since_entry_bytes = since

    def is_full(self, bytes_max: int) -> bool:
        """Whether either index reached segment.index.bytes: the segment rolls before the next batch."""
        return self.offset_index.is_full(bytes_max) or self.time_index.is_full(bytes_max)

    def seal(self) -> None:
        """Write the time index's last entry, when the segment rolls, closes or was recovered. May be repeated."""
        self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
