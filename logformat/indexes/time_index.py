"""Kafka's `.timeindex`: a sparse map from timestamps to offsets in a segment, 12-byte entries.

An entry is a big-endian int64 timestamp in ms and an int32 offset relative to the base. The timestamp is the greatest
of the segment up to the offset, and the batch that ends at the offset is the first with this timestamp. Timestamps grow
strictly and offsets never fall, so every record before the batch of a found entry is older than the target. An entry is
added with each entry of the offset index if the greatest timestamp grew, and once more when the segment rolls or
closes. There is no checksum: an index that fails `check` is rebuilt.
"""

from __future__ import annotations

import operator
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from logformat.errors import Corrupt
from logformat.record_batch import INT32_MAX, NO_TIMESTAMP, Buffer

ENTRY_SIZE: Final = 12
_ENTRY: Final = struct.Struct(">qi")


class TimestampOffset(NamedTuple):
    """A timestamp in ms and an absolute offset."""

    timestamp: int
    offset: int


class TimeIndex:
    """Entries of one segment, in memory (12 bytes each); offsets are relative to `base_offset`."""

    __slots__ = ("_offsets", "_timestamps", "base_offset")

    def __init__(self, base_offset: int, buffer: Buffer = b"") -> None:
        """Raises Corrupt if `buffer` is not a valid index file."""
        if len(buffer) % ENTRY_SIZE:
            raise Corrupt(f"time index of {base_offset}: {len(buffer)} bytes is not a multiple of {ENTRY_SIZE}")
        self.base_offset = base_offset
        self._timestamps: array[int] = array("q")
        self._offsets: array[int] = array("i")
        for timestamp, relative in _ENTRY.iter_unpack(buffer):
            self._timestamps.append(timestamp)
            self._offsets.append(relative)
        self.check()

    @classmethod
    def from_columns(cls, base_offset: int, timestamps: array[int], offsets: array[int]) -> TimeIndex:
        """An index that takes over these arrays of timestamps (int64) and relative offsets (int32). Raises Corrupt like
        `check`."""
        self = cls(base_offset)
        self._timestamps, self._offsets = timestamps, offsets
        self.check()
        return self

    @property
    def columns(self) -> tuple[array[int], array[int]]:
        """Timestamps and relative offsets; read only."""
        return self._timestamps, self._offsets

    def __len__(self) -> int:
        return len(self._timestamps)

    def check(self) -> None:
        """Raises Corrupt unless timestamps grow strictly and offsets never fall."""
        timestamps, offsets = self._timestamps, self._offsets
        if not timestamps:
            return
        rising = all(map(operator.lt, timestamps, timestamps[1:])) and all(map(operator.le, offsets, offsets[1:]))
        if not rising or timestamps[0] < 0 or offsets[0] < 0:
            raise Corrupt(f"time index of {self.base_offset}: entries are not in order; rebuild it from the log")

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The entry with the greatest timestamp ≤ `timestamp`, or (−1, base offset).

        The first record that is not older than `timestamp` is in the batch that ends at the found offset, or in a later
        one."""
        return self._at(bisect_right(self._timestamps, timestamp) - 1)

    def first_at(self, timestamp: int) -> TimestampOffset | None:
        """The entry with the smallest timestamp ≥ `timestamp`; None if all are smaller.

        Every record before the batch that ends at the entry's offset is older than the entry. Records between the
        previous entry and this batch may have a timestamp ≥ `timestamp`."""
        slot = bisect_left(self._timestamps, timestamp)
        return self._at(slot) if slot < len(self._timestamps) else None

    def is_full(self, bytes_max: int) -> bool:
        """As `OffsetIndex.is_full`, with one slot reserved for the entry that rolling writes."""
        return len(self._timestamps) >= bytes_max // ENTRY_SIZE - 1

    def maybe_append(self, timestamp: int, offset: int) -> bool:
        """Add an entry if `timestamp` is greater than the last entry's and not −1; returns whether an entry was added.

        `offset` must fit (`OffsetIndex.fits`) and must not be below the last entry's."""
        timestamps, offsets = self._timestamps, self._offsets
        if timestamp <= (timestamps[-1] if timestamps else NO_TIMESTAMP):
            return False
        relative = offset - self.base_offset
        assert 0 <= relative <= INT32_MAX, (self.base_offset, offset)
        assert not offsets or relative >= offsets[-1], (timestamp, offset)
        timestamps.append(timestamp)
        offsets.append(relative)
        return True

    @property
    def last(self) -> TimestampOffset:
        """The last entry, or (−1, base offset) of an empty index."""
        return self._at(len(self._timestamps) - 1)

    def entries(self) -> Iterator[TimestampOffset]:
        base = self.base_offset
        return (TimestampOffset(t, base + o) for t, o in zip(self._timestamps, self._offsets, strict=True))

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        return b"".join(map(_ENTRY.pack, self._timestamps, self._offsets))

    def _at(self, slot: int) -> TimestampOffset:
        if slot < 0:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        return TimestampOffset(self._timestamps[slot], self.base_offset + self._offsets[slot])
