"""The next step of an archive run, from the bucket's content and the archived offsets. Pure.

A step (the offsets of one commit) has no archived offset. The dead letters of its offsets are either all committed or
none (`dead_letters_committed`). The two tables thus hold each record exactly once, although they have no common
transaction. Each partition has at most one range. `bytes_max` bounds a step, unless its first segment alone is larger.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coldstore.manifest.manifest_entries import RemoteSegment
from thermocline.pipeline.jobs.offset_ranges import OffsetRanges, Range, common, difference, minus

BYTES_MAX: Final = 4 << 30  # bytes of log in one commit; a crash loses minutes of work; 1 GB/h: 2 200 commits a year


@dataclass(frozen=True, slots=True)
class BucketPartition:
    """One partition in the bucket: offsets `[log_start, end)` in `segments`, in order."""

    partition: int
    log_start: int
    end: int
    segments: Sequence[RemoteSegment]


@dataclass(frozen=True, slots=True)
class Expired:
    """Offsets that left the bucket before they were archived; they are lost."""

    partition: int
    first: int
    end: int

    def __str__(self) -> str:
        return f"partition {self.partition}: [{self.first}, {self.end})"


@dataclass(frozen=True, slots=True)
class ArchiveStep:
    """The offsets of one commit, one range per partition.

    `records`: the manifests' count, None where a range has parts of segments. `dead_letters_committed`: the dead-letter
    table already has its bad rows.
    """

    ranges: Mapping[int, Range]
    log_bytes: int
    records: int | None
    dead_letters_committed: bool

    @property
    def offsets(self) -> dict[int, tuple[Range, ...]]:
        return {partition: (found,) for partition, found in sorted(self.ranges.items())}


def remaining(logs: Sequence[BucketPartition], archived: OffsetRanges) -> dict[int, tuple[Range, ...]]:
    """Offsets in the bucket that are not in the table."""
    return difference({log.partition: ((log.log_start, log.end),) for log in logs if log.log_start < log.end}, archived)


def lost(logs: Sequence[BucketPartition], archived: OffsetRanges, initial: Mapping[int, int] | None) -> list[Expired]:
    """Offsets between the end of a partition's archive and a later log start.

    `initial` has the log starts at the creation of the table. If nothing of a partition is archived, its lost offsets
    begin at its log start in `initial`, or at 0 if the partition was added later. `initial` None: there is no table
    yet, so nothing is lost.
    """
    found = []
    for log in logs:
        ranges = archived.get(log.partition)
        begin = log.log_start if initial is None else initial.get(log.partition, 0)
        end = ranges[-1][1] if ranges else begin
        if end < log.log_start:
            found.append(Expired(log.partition, end, log.log_start))
    return found


def next_step(
    logs: Sequence[BucketPartition], archived: OffsetRanges, dead_lettered: OffsetRanges, bytes_max: int = BYTES_MAX
) -> ArchiveStep | None:
    """The next commit, None when everything is archived. `dead_lettered`: offsets that the dead-letter table covers.

    Segments of all partitions are taken in the order of their newest timestamps, so that a back-fill follows time.
    """
    left = remaining(logs, archived)
    if not left:
        return None
    # A run that died between its two commits left dead letters ahead of the table. Those offsets come first, alone.
    ahead = common(left, dead_lettered)
    chosen, stand = (ahead, True) if ahead else (left, False)
    candidates = {log.partition: _spans(log, chosen[log.partition][0]) for log in logs if chosen.get(log.partition)}
    return _fill(candidates, bytes_max, stand)


@dataclass(frozen=True, slots=True)
class _Span:
    """A segment's part inside a partition's range."""

    first: int
    end: int
    log_bytes: int
    records: int | None
    newest_ms: int


def _spans(log: BucketPartition, wanted: Range) -> list[_Span]:
    spans = []
    at = wanted[0]
    for segment in log.segments:
        first, end = max(at, segment.base_offset), min(wanted[1], segment.end_offset)
        if first >= end:
            continue
        # The range stays contiguous across a hole in the manifest (there should be none), so that the reader fails
        # there.
        whole = first == segment.base_offset and end == segment.end_offset
        share = segment.log_bytes * (end - first) // (segment.end_offset - segment.base_offset)
        spans.append(_Span(at, end, share, segment.records if whole else None, segment.max_timestamp_ms))
        at = end
    return spans


def _fill(candidates: Mapping[int, list[_Span]], bytes_max: int, dead_letters_committed: bool) -> ArchiveStep | None:
    heap = [(spans[0].newest_ms, partition, 0) for partition, spans in candidates.items() if spans]
    heapq.heapify(heap)
    ranges: dict[int, Range] = {}
    log_bytes = 0
    records: int | None = 0
    while heap:
        _, partition, index = heapq.heappop(heap)
        span = candidates[partition][index]
        if ranges and log_bytes + span.log_bytes > bytes_max:
            break
        ranges[partition] = (ranges.get(partition, (span.first, 0))[0], span.end)
        log_bytes += span.log_bytes
        records = None if records is None or span.records is None else records + span.records
        if index + 1 < len(candidates[partition]):
            heapq.heappush(heap, (candidates[partition][index + 1].newest_ms, partition, index + 1))
    return ArchiveStep(ranges, log_bytes, records, dead_letters_committed) if ranges else None


def only_new(step: ArchiveStep, archived: OffsetRanges) -> bool:
    """Whether no offset of the step is archived; asserted before each commit."""
    return all(minus((found,), archived.get(partition, ())) == (found,) for partition, found in step.ranges.items())
