"""Kafka's `.index`: a sparse map from offsets to positions in a segment, 8-byte entries.

An entry has the last offset of a batch relative to the segment's base offset, and the position of that batch's first
byte. Both are big-endian int32. Both columns grow strictly, so a lookup is a bisection. The batch with the wanted
offset begins at the found position or after it. There is no checksum: an index that fails `check` is rebuilt from the
log. In memory an entry takes 8 bytes (two int32 arrays).
"""

from __future__ import annotations

import operator
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from logformat.errors import Corrupt
from logformat.record_batch import INT32_MAX, Buffer

ENTRY_SIZE: Final = 8
_SWAP: Final = sys.byteorder == "little"


class OffsetPosition(NamedTuple):
    """An absolute offset, and the position in the segment of the batch that ends with it."""

    offset: int
    position: int


def int32_column(values: Buffer) -> array[int]:
    """An array of int32 from big-endian bytes (`array` promises only 2 bytes for 'i', but has 4 on every platform)."""
    column: array[int] = array("i")
    assert column.itemsize == 4
    column.frombytes(values)
    if _SWAP:
        column.byteswap()
    return column


class OffsetIndex:
    """Entries of one segment, in memory; offsets are relative to `base_offset`."""

    __slots__ = ("_offsets", "_positions", "base_offset")

    def __init__(self, base_offset: int, buffer: Buffer = b"") -> None:
        """Raises Corrupt if `buffer` is not a valid index file."""
        if len(buffer) % ENTRY_SIZE:
            raise Corrupt(f"offset index of {base_offset}: {len(buffer)} bytes is not a multiple of {ENTRY_SIZE}")
        both = int32_column(buffer)
        self.base_offset = base_offset
        self._offsets = both[0::2]
        self._positions = both[1::2]
        self.check()

    @classmethod
    def from_columns(cls, base_offset: int, offsets: array[int], positions: array[int]) -> OffsetIndex:
        """An index that takes over these arrays of relative offsets and positions (int32). Raises Corrupt like
        `check`."""
        self = cls(base_offset)
        self._offsets, self._positions = offsets, positions
        self.check()
        return self

    @property
    def columns(self) -> tuple[array[int], array[int]]:
        """Relative offsets and positions; read only."""
        return self._offsets, self._positions

    def __len__(self) -> int:
        return len(self._offsets)

    def check(self) -> None:
        """Raises Corrupt unless both columns are non-negative and grow strictly."""
        offsets, positions = self._offsets, self._positions
        if not offsets:
            return
        rising = all(map(operator.lt, offsets, offsets[1:])) and all(map(operator.lt, positions, positions[1:]))
        if not rising or offsets[0] < 0 or positions[0] < 0:
            raise Corrupt(f"offset index of {self.base_offset}: entries are not in order; rebuild it from the log")

    def lookup(self, target: int) -> OffsetPosition:
        """The entry with the greatest offset ≤ `target`, or (base offset, 0). Scan the log from its position on."""
        # bisect compares Python ints, so a target beyond int32 needs no special case.
        return self._at(bisect_right(self._offsets, target - self.base_offset) - 1)

    def lookup_position(self, position: int) -> OffsetPosition:
        """The entry with the greatest position ≤ `position`, or (base offset, 0)."""
        return self._at(bisect_right(self._positions, position) - 1)

    def fits(self, offset: int) -> bool:
        """Whether `offset` can be stored relative to the base; a segment rolls before the first batch that does not
        fit."""
        return 0 <= offset - self.base_offset <= INT32_MAX

    def is_full(self, bytes_max: int) -> bool:
        """Whether another entry would exceed segment.index.bytes: then the segment rolls."""
        return len(self._offsets) >= bytes_max // ENTRY_SIZE

    def append(self, offset: int, position: int) -> None:
        """Add an entry. Requires `fits(offset)`, and an offset and a position above the last entry's."""
        relative = offset - self.base_offset
        offsets, positions = self._offsets, self._positions
        assert 0 <= relative <= INT32_MAX and position <= INT32_MAX, (self.base_offset, offset, position)
        assert not offsets or (relative > offsets[-1] and position > positions[-1]), (offset, position)
        offsets.append(relative)
        positions.append(position)

    @property
    def last(self) -> OffsetPosition:
        """The last entry, or (base offset, 0) of an empty index."""
        return self._at(len(self._offsets) - 1)

    def entries(self) -> Iterator[OffsetPosition]:
        base = self.base_offset
        return (OffsetPosition(base + o, p) for o, p in zip(self._offsets, self._positions, strict=True))

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        both: array[int] = array("i", bytes(ENTRY_SIZE * len(self)))
        both[0::2] = self._offsets
        both[1::2] = self._positions
        if _SWAP:
            both.byteswap()
        return both.tobytes()

    def _at(self, slot: int) -> OffsetPosition:
        if slot < 0:
            return OffsetPosition(self.base_offset, 0)
        return OffsetPosition(self.base_offset + self._offsets[slot], self._positions[slot])
