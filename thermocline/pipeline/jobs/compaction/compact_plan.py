"""Groups of small archive files to merge. Pure.

A group has at least two files of one Kafka partition and one partition of the table, in offset order without overlap,
and is at most about as large as wanted. Overlapping files were not written by an archive and are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

TARGET_BYTES: Final = 128 << 20  # Parquet in one file, which most engines read in one task
_SMALL: Final = 0.75  # share of the target: a merge of larger files rewrites much and saves little


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A data file of the table: rows of Kafka partition `partition` with offsets from `first` to `last`.

    `place`: its partition of the table, as text; files of two places are never merged.
    """

    location: str
    size: int
    rows: int
    place: str
    partition: int
    first: int
    last: int


def groups(files: Iterable[StoredFile], target_bytes: int = TARGET_BYTES) -> list[tuple[StoredFile, ...]]:
    """Each group becomes one file."""
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
