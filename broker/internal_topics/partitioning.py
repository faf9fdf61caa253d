"""Maps a group or transactional id to its partition of an internal topic. Pure.

A client chooses the id, of up to 32 KB: a step for each character would hold the event loop for tens of milliseconds.
"""

from __future__ import annotations

import sys
from operator import mul
from typing import Final

_UTF_16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_BLOCK: Final = 1024
_MASK: Final = 0xFFFFFFFF
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in range(_BLOCK, -1, -1))
"""Powers of 31, the base of Java's hash, from `_BLOCK` down to 0."""
_CHARS_PER_ROW: Final = 100


def partition_of(key: str, partitions: int) -> int:
    """Kafka's partition of a group or transactional id: the magnitude of Java's String.hashCode (Utils.abs), modulo
    `partitions`."""
    units = memoryview(key.encode(_UTF_16, "surrogatepass")).cast("H")
    value = 0
    for start in range(0, len(units), _BLOCK):
        block = units[start : start + _BLOCK]
        power = _BLOCK - len(block)
        value = (value * _POWERS[power] + sum(map(mul, block, _POWERS[power + 1 :]))) & _MASK
    # As Utils.abs: the magnitude as an int32; 0 for the least int32, which has no magnitude.
    magnitude = value if value < 0x80000000 else (0x100000000 - value) & 0x7FFFFFFF
    return magnitude % partitions


def rows_of(key: str) -> int:
    """Cost of a look-up of the key, in rows of a turn (`seams.loop.turns`)."""
    return 1 + len(key) // _CHARS_PER_ROW
