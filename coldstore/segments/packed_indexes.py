"""Packed indexes of a segment: the payload of the footer's optional section 8 (docs/formats/segment-object.md).

Both indexes are stored as columns of differences, split into byte planes and compressed by zlib. An entry takes 2 to 7
bytes instead of 20, so an entry every 16 KiB does not cost more than an unpacked entry every 64 KiB. Thin indexes are
stored too, for older readers. The log's size bounds the memory of `unpack`, whatever counts the payload has.
"""

from __future__ import annotations

import operator
import struct
import sys
import zlib
from array import array
from bisect import bisect_right
from itertools import accumulate, islice
from typing import Final

from logformat.errors import Corrupt
from logformat.indexes.offset_index import OffsetIndex
from logformat.indexes.time_index import TimeIndex
from logformat.record_batch import Buffer

PACKED_ENTRIES_MIN: Final = 256  # fewer entries (5 KiB) are not packed
THIN_BYTES: Final = 1024 * 1024  # log bytes between entries of the thin indexes, which an older reader has to scan
_LOG_BYTES_MIN: Final = 4096  # least log bytes for each entry (Kafka's interval); bounds the memory of `unpack`

_COUNTS: Final = struct.Struct(">II")  # numbers of entries of the offset index and of the time index
_OFFSET_BYTES: Final = 8
_TIME_BYTES: Final = 12
_BIG: Final = sys.byteorder == "big"


def is_worth_packing(offset_index: OffsetIndex, log_bytes: int) -> bool:
    """Whether the index is long enough to be packed, and not longer than `unpack` accepts."""
    return PACKED_ENTRIES_MIN <= len(offset_index) <= log_bytes // _LOG_BYTES_MIN


def thinned(
    offset_index: OffsetIndex, time_index: TimeIndex, apart: int | None = None
) -> tuple[OffsetIndex, TimeIndex]:
    """The indexes with entries at least `apart` bytes (by default `THIN_BYTES`) from one another, as a scan with a
    wider interval makes them."""
    offsets, positions = offset_index.columns
    timestamps, time_offsets = time_index.columns
    kept: list[int] = []
    last = 0
    apart = THIN_BYTES if apart is None else apart
    for slot, position in enumerate(positions):
        if position - last >= apart:
            kept.append(slot)
            last = position
    # The last time entry at or below an offset has the greatest timestamp up to this offset.
    times = {bisect_right(time_offsets, offsets[slot]) - 1 for slot in kept} | {len(timestamps) - 1}
    chosen = sorted(slot for slot in times if slot >= 0)
    return (
        OffsetIndex.from_columns(
            offset_index.base_offset,
            array("i", [offsets[slot] for slot in kept]),
            array("i", [positions[slot] for slot in kept]),
        ),
        TimeIndex.from_columns(
            time_index.base_offset,
            array("q", [timestamps[slot] for slot in chosen]),
            array("i", [time_offsets[slot] for slot in chosen]),
        ),
    )


def pack(offset_index: OffsetIndex, time_index: TimeIndex) -> bytes:
    """The section's payload."""
    columns = (*offset_index.columns, *time_index.columns)
    planes = b"".join(map(_planes, columns))
    return _COUNTS.pack(len(offset_index), len(time_index)) + zlib.compress(planes)


def unpack(payload: Buffer, base_offset: int, log_bytes: int) -> tuple[OffsetIndex, TimeIndex]:
    """The indexes of `log_bytes` of log from `base_offset` on. Raises Corrupt."""
    view = memoryview(payload)
    if len(view) < _COUNTS.size:
        raise Corrupt(f"packed indexes of {base_offset}: {len(view)} bytes are too few")
    entries, times = _COUNTS.unpack_from(view)
    if entries > log_bytes // _LOG_BYTES_MIN or times > entries + 1:
        raise Corrupt(f"packed indexes of {base_offset} claim {entries} and {times} entries in {log_bytes} log bytes")
    size = _OFFSET_BYTES * entries + _TIME_BYTES * times
    try:
        inflater = zlib.decompressobj()
        planes = inflater.decompress(view[_COUNTS.size :], size + 1)
    except zlib.error as broken:
        raise Corrupt(f"packed indexes of {base_offset} are not readable: {broken}") from broken
    if len(planes) != size or not inflater.eof or inflater.unused_data:
        raise Corrupt(f"packed indexes of {base_offset}: {len(planes)} bytes are not {entries} and {times} entries")
    columns: list[array[int]] = []
    at = 0
    for kind, count in (("i", entries), ("i", entries), ("q", times), ("i", times)):
        column, at = _column(kind, count, planes, at, base_offset)
        columns.append(column)
    return OffsetIndex.from_columns(base_offset, *columns[:2]), TimeIndex.from_columns(base_offset, *columns[2:])


def _planes(column: array[int]) -> bytes:
    """The differences between entries as big-endian planes: the highest byte of each difference, then the next byte of
    each.
    """
    steps = array("Q" if column.typecode == "q" else "I", column[:1])
    steps.extend(map(operator.sub, islice(column, 1, None), column))
    width, raw = steps.itemsize, steps.tobytes()
    return b"".join(raw[place::width] for place in _places(width))


def _column(kind: str, count: int, planes: bytes, at: int, base_offset: int) -> tuple[array[int], int]:
    """The column of `count` entries whose planes begin at `at`, and the position where they end."""
    steps = array("Q" if kind == "q" else "I")
    width = steps.itemsize
    raw = bytearray(width * count)
    for place in _places(width):
        raw[place::width] = planes[at : at + count]
        at += count
    steps.frombytes(raw)
    try:
        return array(kind, accumulate(steps)), at
    except OverflowError as beyond:
        raise Corrupt(f"packed indexes of {base_offset}: an entry is out of range") from beyond


def _places(width: int) -> range:
    return range(width) if _BIG else range(width - 1, -1, -1)
