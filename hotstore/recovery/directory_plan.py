"""What the names in a log's directory mean, before anything in it is opened.

Owns which names are segments, and which go. Always true: a name that means nothing is left alone; what Kafka was
compacting is refused. Pure. Must not know what the files hold.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hotstore.errors import DamagedLog
from hotstore.file_names import LOG, PRODUCERS, SEGMENT_SUFFIXES, SNAPSHOT, is_leftover, is_swap, parse_offset_file
from hotstore.local_files import producer_file_offsets


class DirectoryPlan(NamedTuple):
    """Base offsets of the segments, lowest first; and names of interrupted writes and deletes, and of index files
    without a log."""

    bases: list[int]
    leftovers: list[str]


def plan_directory(path: str, names: Sequence[str]) -> DirectoryPlan:
    """Raises DamagedLog for `.swap`."""
    swaps = [name for name in names if is_swap(name)]
    if swaps:
        raise DamagedLog(
            f"{path}/{swaps[0]}",
            0,
            0,
            "Kafka was compacting this log",
            "start and stop Kafka on it once, then come back",
        )
    places = {name: place for name in names if (place := parse_offset_file(name)) is not None}
    bases = sorted(offset for offset, suffix in places.values() if suffix == LOG)
    orphans = [n for n, (offset, suffix) in places.items() if suffix in SEGMENT_SUFFIXES and offset not in bases]
    return DirectoryPlan(bases, [*(name for name in names if is_leftover(name)), *orphans])


def stray_producer_files(names: Sequence[str], bases: Collection[int], log_end: int) -> list[str]:
    """Producer files of no segment, but for the newest below the log's end (Kafka: removeStraySnapshots)."""
    offsets = [offset for offset in producer_file_offsets(names) if offset <= log_end]
    wanted = {*bases, *offsets[:1]}
    return [
        name
        for name in names
        if (place := parse_offset_file(name)) is not None
        and place[1] in (SNAPSHOT, PRODUCERS)
        and place[0] not in wanted
    ]
