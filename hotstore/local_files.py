"""Removing the files of segments so that a crash at any point leaves a log that opens.

Always true: a file is renamed to `.deleted` before it is unlinked; the names of one segment are durable before the next
segment's are touched, so what is left after a power cut is a contiguous run of segments. All functions block.
Must not know: why segments go. Source: Kafka's LocalLog.deleteSegmentFiles (suffixes, order).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from hotstore.file_names import DELETED, OFFSET_SUFFIXES, PRODUCERS, SNAPSHOT, offset_file, parse_offset_file
from seams import crash_points
from seams.disk import Directory


def drop_segment_files(directory: Directory, bases: Iterable[int]) -> None:
    """Remove the segments of these base offsets, in the order given: oldest first for retention, newest first for a
    truncation. What is gone already is fine. Raises OSError."""
    for base in bases:
        names = [offset_file(base, suffix) for suffix in OFFSET_SUFFIXES]
        present = [name for name in names if directory.stat(name) is not None]
        for name in present:
            directory.rename(name, name + DELETED)
        directory.sync()
        for name in present:
            directory.unlink(name + DELETED)
            crash_points.reach("expire.local_unlinked")


def remove_files(directory: Directory, names: Iterable[str]) -> None:
    """Unlink files by name, those that are there, and make that durable. Raises OSError."""
    found = False
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            directory.unlink(name)
            found = True
    if found:
        directory.sync()


def producer_file_offsets(names: Iterable[str], suffixes: tuple[str, ...] = (SNAPSHOT, PRODUCERS)) -> list[int]:
    """Offsets for which there is a producer file, greatest first, each once."""
    found = {place[0] for name in names if (place := parse_offset_file(name)) is not None and place[1] in suffixes}
    return sorted(found, reverse=True)


def producer_files_above(names: Iterable[str], offset: int) -> list[str]:
    """Names of producer files that describe a state beyond `offset`."""
    return [
        name
        for name in names
        if (place := parse_offset_file(name)) is not None and place[1] in (SNAPSHOT, PRODUCERS) and place[0] > offset
    ]
