"""Declared gaps in a local log, found after each opening by reading a few headers.

A gap is appended while a log opens, before any other batch of its leader epoch, so only the first batches of an epoch
can be gaps. An unreadable batch does not count as a gap. Manifests name the gaps of copied ranges.
"""

from __future__ import annotations

from typing import Final

from hotstore.errors import DamagedLog
from hotstore.log.partition_log import PartitionLog
from logformat.errors import InvalidRequest, Retryable, StorageFailed
from logformat.gap import gap_range

EPOCHS_MAX: Final = 1000  # number of the newest epochs that are searched
_READ_BYTES: Final = 256  # a gap batch has fewer bytes


def local_gaps(log: PartitionLog) -> tuple[tuple[int, int], ...]:
    """[first, end) of each gap, in order. Blocking."""
    found: list[tuple[int, int]] = []
    for entry in log.epochs.entries[-EPOCHS_MAX:]:
        offset = entry.start_offset
        while log.local_log_start_offset <= offset < log.log_end_offset:
            gap = _gap_at(log, offset)
            if gap is None:
                break
            if found and found[-1][1] == gap[0]:
                found[-1] = (found[-1][0], gap[1])
            else:
                found.append(gap)
            offset = gap[1]
    return tuple(found)


def _gap_at(log: PartitionLog, offset: int) -> tuple[int, int] | None:
    try:
        part = log.read(offset, _READ_BYTES, log.log_end_offset, min_one=False)
    except (DamagedLog, StorageFailed, InvalidRequest, Retryable, OSError):
        return None
    if part is None or not part.length:
        return None
    try:
        return gap_range(part.file.read_at(part.position, part.length))
    except OSError:
        return None


def all_gaps(
    in_bucket: tuple[tuple[int, int], ...], in_log: tuple[tuple[int, int], ...], log_start_offset: int
) -> tuple[tuple[int, int], ...]:
    """Gaps of manifest and local log, each once, in order, without those below the log start."""
    known = sorted({*in_bucket, *(gap for gap in in_log if not any(_holds(held, gap) for held in in_bucket))})
    return tuple(gap for gap in known if gap[1] > log_start_offset)


def _holds(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
