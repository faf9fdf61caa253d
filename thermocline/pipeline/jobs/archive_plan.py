"""What an archive run does next, given what the bucket holds and what the tables say is archived: pure.

Owns the choice of one step (the offsets of one commit). Always true of a step: it overlaps nothing archived; it is
entirely of offsets whose bad rows are already committed, or entirely of others (`dead_letters_stand`), so that two
tables without a common transaction stay exactly once; each partition gives at most one range; it is bounded by
`bytes_max`, but for a first segment that alone is larger. Must not know tables, files, Spark or how bytes are read.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coldstore.manifest.manifest_entries import RemoteSegment
from thermocline.pipeline.jobs.offset_ranges import OffsetRanges, Range, common, difference, minus

BYTES_MAX: Final = 4 << 30  # of log, one commit: minutes of work to lose, and a year of 1 GB/h is 2 200 commits


@dataclass(frozen=True, slots=True)
class BucketPartition:
    """What the bucket holds of one partition: offsets `[log_start, end)` in `segments`, in order."""

    partition: int
    log_start: int
    end: int
    segments: Sequence[RemoteSegment]


@dataclass(frozen=True, slots=True)
class Expired:
    """Offsets that left the bucket before they were archived: no run can bring them back."""

    partition: int
    first: int
    end: int

    def __str__(self) -> str:
        return f"partition {self.partition}: [{self.first}, {self.end})"


@dataclass(frozen=True, slots=True)
class ArchiveStep:
    """The offsets of one commit, a range a partition. `records` is what the manifests count in it, or None where the
    range does not consist of whole segments. `dead_letters_stand`: bad rows of it are in the dead-letter table."""

    ranges: Mapping[int, Range]
    log_bytes: int
    records: int | None
    dead_letters_stand: bool

    @property
    def offsets(self) -> dict[int, tuple[Range, ...]]:
        return {partition: (found,) for partition, found in sorted(self.ranges.items())}


def remaining(logs: Sequence[BucketPartition], archived: OffsetRanges) -> dict[int, tuple[Range, ...]]:
    """Offsets that are in the bucket and not in the table."""
    return difference({log.partition: ((log.log_start, log.end),) for log in logs if log.log_start < log.end}, archived)


def lost(logs: Sequence[BucketPartition], archived: OffsetRanges, begun: Mapping[int, int] | None) -> list[Expired]:
    """Offsets between the end of a partition's archive and the log start that has passed it.

    Where nothing is archived yet, that is from the log start in `begun` (when the archive began), or from 0 of a
    partition added since. `begun` None: the archive begins now, where the log does, and has lost nothing.
    """
    found = []
    for log in logs:
        ranges = archived.get(log.partition)
        begin = log.log_start if begun is None else begun.get(log.partition, 0)
        end = ranges[-1][1] if ranges else begin
        if end < log.log_start:
            found.append(Expired(log.partition, end, log.log_start))
    return found


def next_step(
    logs: Sequence[BucketPartition], archived: OffsetRanges, dead_lettered: OffsetRanges, bytes_max: int = BYTES_MAX
) -> ArchiveStep | None:
    """The next commit, None when everything is archived. `dead_lettered`: what the dead-letter table covers.

    Segments are taken in the order of their newest timestamp over all partitions, so that a back-fill grows in time
    and not partition by partition.
    """
    left = remaining(logs, archived)
    if not left:
        return None
    # A run that died between its two commits left dead letters ahead of the table: those offsets come first, alone.
    ahead = common(left, dead_lettered)
    chosen, stand = (ahead, True) if ahead else (left, False)
    candidates = {log.partition: _spans(log, chosen[log.partition][0]) for log in logs if chosen.get(log.partition)}
    return _fill(candidates, bytes_max, stand)


@dataclass(frozen=True, slots=True)
class _Span:
    """The part of a segment inside a partition's range."""

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
        # What the manifest leaves out above the log start (nothing ever should) is the reader's to refuse: the range
        # stays contiguous, so that a hole fails the job instead of vanishing from the books.
        whole = first == segment.base_offset and end == segment.end_offset
        share = segment.log_bytes * (end - first) // (segment.end_offset - segment.base_offset)
        spans.append(_Span(at, end, share, segment.records if whole else None, segment.max_timestamp_ms))
        at = end
    return spans


def _fill(candidates: Mapping[int, list[_Span]], bytes_max: int, dead_letters_stand: bool) -> ArchiveStep | None:
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
    return ArchiveStep(ranges, log_bytes, records, dead_letters_stand) if ranges else None


def only_new(step: ArchiveStep, archived: OffsetRanges) -> bool:
    """Whether no offset of the step is archived: asserted before each commit."""
    return all(minus((found,), archived.get(partition, ())) == (found,) for partition, found in step.ranges.items())
