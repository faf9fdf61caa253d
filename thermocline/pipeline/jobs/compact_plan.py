"""Which small files of an archive become one: pure.

Owns the choice. Always true of a group: at least two files, of one Kafka partition and one partition of the table,
following one another in offsets without overlap, so that their rows one after the other are in offset order; together
about as large as wanted at most. What overlaps was not written by an archive and is left alone. Must not know files or
tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

TARGET_BYTES: Final = 128 << 20  # of Parquet: a file a task of most engines
_SMALL: Final = 0.75  # of the target: merging what is nearly as large rewrites much and wins little


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A data file of the table: rows of Kafka partition `partition` with offsets from `first` to `last`.

    `place` is its partition of the table, as text; files of two places are never merged.
    """

    location: str
    size: int
    rows: int
    place: str
    partition: int
    first: int
    last: int


def groups(files: Iterable[StoredFile], target_bytes: int = TARGET_BYTES) -> list[tuple[StoredFile, ...]]:
    """What is to be merged, each into one file."""
    found = []
    ordered = sorted(files, key=lambda file: (file.place, file.partition, file.first))
    for _, those in groupby(ordered, key=lambda file: (file.place, file.partition)):
        found += _groups(list(those), target_bytes)
    return found


def _groups(files: Sequence[StoredFile], target_bytes: int) -> list[tuple[StoredFile, ...]]:
    found: list[tuple[StoredFile, ...]] = []
    group: list[StoredFile] = []
    for file in files:
        fits = not group or (group[-1].last < file.first and sum(one.size for one in group) + file.size <= target_bytes)
        small = file.size < target_bytes * _SMALL
        if not (fits and small):
            found.append(tuple(group))
            group = []
        if small:
            group.append(file)
    found.append(tuple(group))
    return [group for group in found if len(group) > 1]
