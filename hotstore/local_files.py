"""Files of a log directory: recognises segments and leftovers by name, and removes files in a crash-safe order.

Files with unknown names are not changed. A file is renamed to `.deleted` before it is unlinked. The renames of one
segment are durable before those of the next one begin, so a power cut leaves a contiguous run of segments. Removals
block. Source: Kafka's LocalLog.deleteSegmentFiles.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from hotstore.file_names import (
    DELETED,
    LOG,
    OFFSET_SUFFIXES,
    PRODUCERS,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    is_leftover,
    offset_file,
    parse_offset_file,
)
from seams import crash_points
from seams.files.disk import Directory


def drop_segment_files(directory: Directory, bases: Iterable[int], *, new_end: int = -1) -> None:
    """Remove the segments with these base offsets in the given order: oldest first for retention, newest first for a
    truncation. Missing files are skipped. `new_end`: end of a truncated log; producer files of that offset stay. Raises
    OSError."""
    for base in bases:
        suffixes = SEGMENT_SUFFIXES if base == new_end else OFFSET_SUFFIXES
        names = [offset_file(base, suffix) for suffix in suffixes]
        present = [name for name in names if directory.stat(name) is not None]
        for name in present:
            directory.rename(name, name + DELETED)
        directory.sync()
        for name in present:
            directory.unlink(name + DELETED)
            crash_points.reach("expire.local_unlinked")


def remove_files(directory: Directory, names: Iterable[str]) -> None:
    """Unlink the files that exist, durably. Raises OSError."""
    found = False
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            directory.unlink(name)
            found = True
    if found:
        directory.sync()


def producer_file_offsets(names: Iterable[str], suffixes: tuple[str, ...] = (SNAPSHOT, PRODUCERS)) -> list[int]:
    """Offsets with a producer file, greatest first, without duplicates."""
    found = {place[0] for name in names if (place := parse_offset_file(name)) is not None and place[1] in suffixes}
    return sorted(found, reverse=True)


def producer_files_above(names: Iterable[str], offset: int) -> list[str]:
    """Names of producer files above `offset`."""
    return [
        name
        for name in names
        if (place := parse_offset_file(name)) is not None and place[1] in (SNAPSHOT, PRODUCERS) and place[0] > offset
    ]


class DirectoryPlan(NamedTuple):
    """The files of a log directory. `bases`: base offsets of the segments, lowest first. `leftovers`: files of
    interrupted writes and deletions, and index files without a log file."""

    bases: list[int]
    leftovers: list[str]


def plan_directory(names: Sequence[str]) -> DirectoryPlan:
    """The files at a start, after interrupted swaps were finished (`recovery.segment_swap`)."""
    places = {name: place for name in names if (place := parse_offset_file(name)) is not None}
    bases = sorted(offset for offset, suffix in places.values() if suffix == LOG)
    orphans = [n for n, (offset, suffix) in places.items() if suffix in SEGMENT_SUFFIXES and offset not in bases]
    return DirectoryPlan(bases, [*(name for name in names if is_leftover(name)), *orphans])


def stray_producer_files(names: Sequence[str], bases: Collection[int], log_end: int) -> list[str]:
    """Producer files without a segment, except the newest one at or below the log's end (Kafka's
    removeStraySnapshots)."""
    offsets = [offset for offset in producer_file_offsets(names) if offset <= log_end]
    wanted = {*bases, *offsets[:1]}
    return [
        name
        for name in names
        if (place := parse_offset_file(name)) is not None
        and place[1] in (SNAPSHOT, PRODUCERS)
        and place[0] not in wanted
    ]
