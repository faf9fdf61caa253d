"""Sets of offsets as sorted ranges: union, difference, and their JSON in a snapshot's properties.

The ranges `[first, end)` of a partition are non-empty, sorted, disjoint and not adjacent, so equal sets are equal
values. No partition has an empty list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from logformat.errors import Corrupt

Range = tuple[int, int]
Ranges = tuple[Range, ...]
OffsetRanges = Mapping[int, Ranges]  # by partition

_DECODER: Final = msgspec.json.Decoder(dict[int, tuple[Range, ...]])
_ENCODER: Final = msgspec.json.Encoder()


def normal(ranges: Iterable[Range]) -> Ranges:
    """The same set, sorted, without overlap, adjacent ranges joined."""
    joined: list[Range] = []
    for first, end in sorted(r for r in ranges if r[0] < r[1]):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((first, end))
    return tuple(joined)


def minus(ranges: Iterable[Range], other: Iterable[Range]) -> Ranges:
    """Offsets of `ranges` that are not in `other`."""
    left: list[Range] = []
    taken = normal(other)
    for first, end in normal(ranges):
        for start, stop in taken:
            if stop <= first or start >= end:
                continue
            if first < start:
                left.append((first, start))
            first = stop
        if first < end:
            left.append((first, end))
    return tuple(left)


def overlap(ranges: Iterable[Range], other: Iterable[Range]) -> Ranges:
    one = normal(ranges)
    return minus(one, minus(one, other))


def union(one: OffsetRanges, other: OffsetRanges) -> dict[int, Ranges]:
    return _tidy({p: normal((*one.get(p, ()), *other.get(p, ()))) for p in sorted({*one, *other})})


def difference(one: OffsetRanges, other: OffsetRanges) -> dict[int, Ranges]:
    """Offsets of `one` that are not in `other`, by partition."""
    return _tidy({p: minus(ranges, other.get(p, ())) for p, ranges in sorted(one.items())})


def common(one: OffsetRanges, other: OffsetRanges) -> dict[int, Ranges]:
    return _tidy({p: overlap(ranges, other.get(p, ())) for p, ranges in sorted(one.items())})


def size(offsets: OffsetRanges) -> int:
    return sum(end - first for ranges in offsets.values() for first, end in ranges)


def encode(offsets: OffsetRanges) -> str:
    """JSON: `{"0":[[0,1000]],"1":[[0,980],[1000,1200]]}`, partitions in order."""
    return _ENCODER.encode({p: offsets[p] for p in sorted(offsets)}).decode()


def decode(text: str) -> dict[int, Ranges]:
    """Reads what `encode` wrote. Raises Corrupt."""
    try:
        found = _DECODER.decode(text)
    except msgspec.MsgspecError as broken:
        raise Corrupt(f"archived offsets {text[:200]!r} are not readable: {broken}") from broken
    for partition, ranges in found.items():
        if partition < 0 or not ranges or normal(ranges) != ranges or ranges[0][0] < 0:
            raise Corrupt(f"archived offsets of partition {partition} are {ranges[:8]}: out of order")
    return found


def _tidy(offsets: dict[int, Ranges]) -> dict[int, Ranges]:
    return {partition: ranges for partition, ranges in offsets.items() if ranges}
