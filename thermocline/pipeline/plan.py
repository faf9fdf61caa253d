"""Plans a read: the bytes of the objects that hold the wanted rows, cut into splits. Pure.

Splits of a partition are in offset order and do not overlap. They cover the wanted offsets, except ranges that
`TimeRange` excludes. A hole between objects is an error, or is counted. Cuts may lie at any offset. The bytes of two
neighbours then overlap by at most an index interval and a batch, and the row filter gives each row to one of them.
An object whose footer is unknown is covered as a whole. `Plan.wanted` names the segments whose footers would make the
plan finer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final
from uuid import UUID

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest_entries import RemoteSegment
from coldstore.segments.segment_object import SegmentFooter
from coldstore.segments.segment_reader import scan_offset
from thermocline.pipeline.split import Loss, LossPolicy, RowFilter, Split, SplitPart

TARGET_BYTES: Final = 256 * 1024 * 1024  # a Spark task costs 16-45 ms: under a tenth of the time for 256 MiB
INDEX_WORTH_BYTES: Final = 512 * 1024  # a footer is not read to save less than this
_SNAP: Final = 8  # a cut within an eighth of the target from an object's border moves to the border
_TARGET_BYTES_MIN: Final = 64 * 1024  # some index intervals; smaller tasks cost more than they save

Footers = Mapping[UUID, SegmentFooter]  # by the segment's uuid


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Wanted timestamps `[min, max)` in ms, None = open.

    The time index holds the greatest timestamp so far, so segments that end before `min_ms` are skipped for certain. A
    record below `max_ms` may follow younger records, even in the same batch. `late_ms` is the greatest assumed lateness
    of such a record: objects that begin at `max_ms` + `late_ms` or later are left out, and a read of an object stops at
    a record of that time. With `late_ms` None, `max_ms` drops rows only.
    """

    min_ms: int | None = None
    max_ms: int | None = None
    late_ms: int | None = None

    @property
    def horizon_ms(self) -> int | None:
        """Objects whose batches all begin at this time or later are left out. None: no object is left out."""
        return None if self.max_ms is None or self.late_ms is None else self.max_ms + self.late_ms

    def may_hold(self, segment: RemoteSegment) -> bool:
        """Whether the segment may hold a wanted record. Its minimum timestamp is the least of its batches' first
        timestamps.
        """
        if self.min_ms is not None and segment.max_timestamp_ms < self.min_ms:
            return False
        return self.horizon_ms is None or segment.min_timestamp_ms < self.horizon_ms

    def cuts(self, segment: RemoteSegment) -> bool:
        """Whether the segment's indexes may exclude a part of it."""
        before = self.min_ms is not None and segment.min_timestamp_ms < self.min_ms
        return before or (self.horizon_ms is not None and segment.max_timestamp_ms >= self.horizon_ms)

    def trimmed(self, footer: SegmentFooter, first: int, after: int) -> tuple[int, int]:
        """`[first, after)` without the unwanted ends that the time index shows; may be empty."""
        if self.min_ms is not None:
            young = scan_offset(footer, self.min_ms)
            first = after if young is None else max(first, young)
        if self.horizon_ms is not None:
            entries = footer.time_index.entries()
            reached = next((entry.offset for entry in entries if entry.timestamp >= self.horizon_ms), None)
            after = after if reached is None else min(after, reached + 1)
        return first, after


ANY_TIME: Final = TimeRange()


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """Wanted offsets `[start_offset, end_offset)` of a partition, and its manifest's data about them.

    `segments` overlap the range, in order. `skipped`: offset ranges of pages that were not read, because of their
    times.
    """

    topic: str
    topic_id: UUID
    partition: int
    start_offset: int
    end_offset: int
    log_start: int
    remote_end: int
    segments: tuple[RemoteSegment, ...]
    skipped: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Splits by topic, partition and offset. `wanted`: segments whose footer would make the plan finer."""

    splits: tuple[Split, ...]
    wanted: Mapping[SegmentKey, RemoteSegment]


def plan(
    spans: Sequence[OffsetSpan],
    footers: Footers,
    times: TimeRange = ANY_TIME,
    *,
    target_bytes: int = TARGET_BYTES,
    min_partitions: int | None = None,
    max_records: int | None = None,
    fail_on_data_loss: bool = True,
    loss: Loss | None = None,
) -> Plan:
    """Cut `spans` into splits of about `target_bytes` of log each, at most `max_records` offsets each.

    `min_partitions` makes them smaller until there are about as many (a hint, as in Spark's Kafka source). Raises
    DataLoss for offsets that no object holds, or counts them in `loss`.
    """
    damage = LossPolicy(loss if loss is not None else Loss(), fail=fail_on_data_loss, quiet=True)
    wanted: dict[SegmentKey, RemoteSegment] = {}
    cutters = [
        _Cutter(span, _pieces(span, footers, times, damage, wanted), footers, times)
        for span in sorted(spans, key=lambda span: (span.topic, span.partition, span.start_offset))
    ]
    if min_partitions is not None:
        target_bytes = min(target_bytes, sum(cutter.log_bytes for cutter in cutters) // min_partitions)
    while True:
        target_bytes = max(target_bytes, _TARGET_BYTES_MIN if min_partitions is not None else 1)
        also_wanted: dict[SegmentKey, RemoteSegment] = {}
        splits = tuple(split for cutter in cutters for split in cutter.cut(target_bytes, max_records, also_wanted))
        if min_partitions is None or len(splits) >= min_partitions or target_bytes <= _TARGET_BYTES_MIN:
            return Plan(splits, wanted | also_wanted)
        target_bytes //= 2


# ── what there is ────────────────────────────────────────────────────────────────────────────────────────────────────
def _pieces(
    span: OffsetSpan, footers: Footers, times: TimeRange, damage: LossPolicy, wanted: dict[SegmentKey, RemoteSegment]
) -> list[SplitPart]:
    start, end = _readable(span, damage)
    for first, after in _holes(span, start, end):
        what = f"no object of the manifest holds them (log start {span.log_start}, remote end {span.remote_end})"
        damage.report(span.topic, span.partition, first, after, what)
    pieces = []
    for segment in span.segments:
        first, after = max(start, segment.base_offset), min(end, segment.end_offset)
        if first >= after or not times.may_hold(segment):
            continue
        footer = footers.get(segment.uuid)
        cut = times.cuts(segment) or (first, after) != (segment.base_offset, segment.end_offset)
        if cut and footer is None and segment.log_bytes > INDEX_WORTH_BYTES:
            wanted[segment.key(span.topic_id, span.partition)] = segment
        if footer is not None:
            first, after = times.trimmed(footer, first, after)
        if first < after:
            pieces.append(SplitPart(segment, first, after, *cover(segment, footer, first, after)))
    return pieces


def _readable(span: OffsetSpan, damage: LossPolicy) -> tuple[int, int]:
    start, end = span.start_offset, span.end_offset
    if start < min(end, span.log_start):
        what = f"the log starts at {span.log_start} now: retention or DeleteRecords removed the records below it"
        remedy = "start at the log start (earliest)"
        damage.report(span.topic, span.partition, start, min(end, span.log_start), what, remedy=remedy)
    if end > max(start, span.remote_end):
        what = f"the bucket ends at {span.remote_end}"
        remedy = "younger records are on the brokers' disks (`thermocline tier seal` copies them to the bucket)"
        damage.report(span.topic, span.partition, max(start, span.remote_end), end, what, remedy=remedy)
    return max(start, span.log_start), min(end, span.remote_end)


def _holes(span: OffsetSpan, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Parts of `[start, end)` that are in no segment and no skipped page."""
    held = [(segment.base_offset, segment.end_offset) for segment in span.segments]
    for first, after in sorted([*held, *span.skipped]):
        if first > start and start < end:
            yield start, min(first, end)
        start = max(start, after)
    if start < end:
        yield start, end


def cover(segment: RemoteSegment, footer: SegmentFooter | None, start: int, end: int) -> tuple[int, int]:
    """Positions, at batch borders, of log bytes with all offsets of `[start, end)` in the segment."""
    if footer is None:
        return 0, segment.log_bytes
    first = footer.offset_index.lookup(start).position if start > segment.base_offset else 0
    if end >= segment.end_offset:
        return first, segment.log_bytes
    entries = list(footer.offset_index.entries())
    # The first entry that ends at or after the last wanted offset: its batch or an earlier one holds that offset.
    at = bisect_left(entries, end - 1, key=lambda entry: entry.offset)
    return first, entries[at + 1].position if at + 1 < len(entries) else segment.log_bytes


# ── cutting ──────────────────────────────────────────────────────────────────────────────────────────────────────────
class _Cutter:
    def __init__(self, span: OffsetSpan, pieces: list[SplitPart], footers: Footers, times: TimeRange) -> None:
        self._span = span
        self._pieces = pieces
        self._footers = footers
        self._times = times
        self.log_bytes = sum(piece.log_end - piece.log_start for piece in pieces)

    def cut(
        self, target_bytes: int, max_records: int | None, wanted: dict[SegmentKey, RemoteSegment]
    ) -> Iterator[Split]:
        if not self._pieces:
            return
        cuts = self._cuts(target_bytes, wanted)
        if max_records is not None:
            cuts = _limited(cuts, max_records)
        at = 0
        for start, end in pairwise(cuts):
            while self._pieces[at].end_offset <= start:
                at += 1
            pieces = []
            for piece in islice(self._pieces, at, None):
                if piece.start_offset >= end:
                    break
                pieces.append(self._part(piece, start, end, wanted))
            if pieces:
                yield self._split(start, end, tuple(pieces))

    def _cuts(self, target_bytes: int, wanted: dict[SegmentKey, RemoteSegment]) -> list[int]:
        """Start offsets of splits, then the end: even shares of the bytes, snapped to nearby borders of objects."""
        cuts = [self._pieces[0].start_offset]
        shares = max(1, (self.log_bytes + target_bytes // 2) // target_bytes)
        before, number = 0, 1
        for piece in self._pieces:
            size = piece.log_end - piece.log_start
            while number < shares and number * self.log_bytes // shares < before + size:
                offset = self._cut_in(piece, number * self.log_bytes // shares - before, target_bytes, wanted)
                number += 1
                if cuts[-1] < offset < self._pieces[-1].end_offset:
                    cuts.append(offset)
            before += size
        return [*cuts, self._pieces[-1].end_offset]

    def _cut_in(self, piece: SplitPart, inside: int, target_bytes: int, wanted: dict[SegmentKey, RemoteSegment]) -> int:
        """The offset of a cut about `inside` bytes after the piece's start."""
        size = piece.log_end - piece.log_start
        near_start = inside < size - inside
        if min(inside, size - inside) > target_bytes // _SNAP:
            footer = self._footers.get(piece.segment.uuid)
            if footer is None:
                wanted[self._key(piece)] = piece.segment
            else:
                found = footer.offset_index.lookup_position(piece.log_start + inside)
                if piece.start_offset < found.offset < piece.end_offset - 1:
                    return found.offset + 1
        return piece.start_offset if near_start else piece.end_offset

    def _part(self, piece: SplitPart, start: int, end: int, wanted: dict[SegmentKey, RemoteSegment]) -> SplitPart:
        first, after = max(start, piece.start_offset), min(end, piece.end_offset)
        if (first, after) == (piece.start_offset, piece.end_offset):
            return piece
        footer = self._footers.get(piece.segment.uuid)
        if footer is None and piece.segment.log_bytes > INDEX_WORTH_BYTES:
            wanted[self._key(piece)] = piece.segment
        return SplitPart(piece.segment, first, after, *cover(piece.segment, footer, first, after))

    def _split(self, start: int, end: int, pieces: tuple[SplitPart, ...]) -> Split:
        span = self._span
        gaps = tuple(
            (max(start, first), min(end, after))
            for piece in pieces
            for first, after in piece.segment.gaps
            if first < end and after > start
        )
        rows = RowFilter(start, end, self._times.min_ms, self._times.max_ms)
        return Split(span.topic, span.topic_id, span.partition, rows, pieces, gaps)

    def _key(self, piece: SplitPart) -> SegmentKey:
        return piece.segment.key(self._span.topic_id, self._span.partition)


def _limited(cuts: list[int], max_records: int) -> list[int]:
    """More cuts, so that no part has more than `max_records` offsets; the parts of one range are even."""
    finer = [cuts[0]]
    for start, end in pairwise(cuts):
        parts = -(-(end - start) // max_records)
        finer += [start + (end - start) * number // parts for number in range(1, parts + 1)]
    return finer
