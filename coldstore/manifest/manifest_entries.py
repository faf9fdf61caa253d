"""Entries of a manifest: segments, pages, snapshots, and sums over them.

`check_*` raise Corrupt for a damaged or hostile entry. They check that its numbers are in range and in order, and that
no list in it is longer than `RANGES_MAX`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from coldstore.keys import PageKey, SegmentKey, SnapshotKey
from logformat.errors import Corrupt
from logformat.record_batch import INT32_MAX, INT64_MAX, NO_TIMESTAMP

HASH_MODULUS: Final = 2**128
ZERO_HASH: Final = "0" * 32
RANGES_MAX: Final = 1024  # epochs or gaps of one segment: an entry must always fit a root
GAPS_IN_ROOT_MAX: Final = 256  # gaps in the root itself; older ones are only in their segments' entries
REPLACED_MAX: Final = 256  # replaced objects in their grace: about 20 KB of a root


class RemoteSegment(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One segment object: offsets `[base_offset, end_offset)`. `log_bytes`: size of the batches. `object_bytes`: size
    with the footer.

    `leader_epoch`: the epoch of the writer, as in the object's key. `decided`: number of transactions in section 7 of
    the object's footer. If it is above 0, a reader of committed records needs the footer (TX45). `epochs`: (epoch,
    start offset) of the batches; the first start is raised to the base. `gaps` are declared gaps, `[first, end)`
    (design 6).
    """

    uuid: UUID
    base_offset: int
    end_offset: int
    leader_epoch: int
    log_bytes: int
    object_bytes: int
    records: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    crc32c: int
    epochs: tuple[tuple[int, int], ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()
    decided: int = 0

    def key(self, topic_id: UUID, partition: int) -> SegmentKey:
        return SegmentKey(topic_id, partition, self.base_offset, self.leader_epoch, self.uuid)

    def identity_hash(self) -> int:
        """A 128-bit hash of the object's identity. Two objects have different hashes, even if they have the same size
        and range."""
        text = f"{self.uuid} {self.base_offset} {self.end_offset} {self.leader_epoch} {self.object_bytes} {self.crc32c}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")


class PagePointer(msgspec.Struct, frozen=True, kw_only=True):
    """A pointer to an immutable page. A page of level 0 has segments, a page of level 1 has pointers to pages of level
    0. `entries`: their number.

    Sums and ranges are over all segments below it, expired ones included. `length` and `crc32c` are those of the
    object.
    """

    uuid: UUID
    level: int
    epoch: int
    first_offset: int
    end_offset: int
    entries: int
    segments: int
    log_bytes: int
    object_bytes: int
    records: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    min_leader_epoch: int
    max_leader_epoch: int
    length: int
    crc32c: int

    def key(self, topic_id: UUID, partition: int) -> PageKey:
        return PageKey(topic_id, partition, self.first_offset, self.end_offset, self.epoch, self.uuid)


class SnapshotPointer(msgspec.Struct, frozen=True, kw_only=True):
    """A pointer to the live state of an internal topic after all offsets below `end_offset`."""

    uuid: UUID
    epoch: int
    end_offset: int
    length: int
    crc32c: int

    def key(self, topic_id: UUID, partition: int) -> SnapshotKey:
        return SnapshotKey(topic_id, partition, self.end_offset, self.epoch, self.uuid)


class ReplacedObject(msgspec.Struct, frozen=True, array_like=True):
    """A segment object that compaction replaced at `since_ms` (wall clock). Readers of older roots may still need it.

    Base offset and epoch are those of its key."""

    uuid: UUID
    base_offset: int
    leader_epoch: int
    object_bytes: int
    since_ms: int

    def key(self, topic_id: UUID, partition: int) -> SegmentKey:
        return SegmentKey(topic_id, partition, self.base_offset, self.leader_epoch, self.uuid)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over segments. A manifest has three of them: added, removed and live."""

    log_bytes: int = 0
    object_bytes: int = 0
    records: int = 0
    segments: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            log_bytes=self.log_bytes + other.log_bytes,
            object_bytes=self.object_bytes + other.object_bytes,
            records=self.records + other.records,
            segments=self.segments + other.segments,
        )

    def __sub__(self, other: Totals) -> Totals:
        return Totals(
            log_bytes=self.log_bytes - other.log_bytes,
            object_bytes=self.object_bytes - other.object_bytes,
            records=self.records - other.records,
            segments=self.segments - other.segments,
        )

    @property
    def any_negative(self) -> bool:
        return min(self.log_bytes, self.object_bytes, self.records, self.segments) < 0


def totals_of(segments: Sequence[RemoteSegment]) -> Totals:
    return Totals(
        log_bytes=sum(s.log_bytes for s in segments),
        object_bytes=sum(s.object_bytes for s in segments),
        records=sum(s.records for s in segments),
        segments=len(segments),
    )


def hash_of(segments: Sequence[RemoteSegment]) -> str:
    """The sum of the entries' hashes modulo 2^128, as 32 hex digits. It does not depend on their order."""
    return f"{sum(s.identity_hash() for s in segments) % HASH_MODULUS:032x}"


def totals_of_pages(pages: Sequence[PagePointer]) -> Totals:
    return Totals(
        log_bytes=sum(p.log_bytes for p in pages),
        object_bytes=sum(p.object_bytes for p in pages),
        records=sum(p.records for p in pages),
        segments=sum(p.segments for p in pages),
    )


def join_gaps(known: tuple[tuple[int, int], ...], more: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The gaps of `known` and the later `more`, with adjacent gaps joined."""
    joined = list(known)
    for first, end in more:
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((first, end))
    return tuple(joined)


def check_segment(segment: RemoteSegment) -> None:
    """Raise Corrupt unless the entry describes a possible segment object."""
    name = f"segment {segment.uuid}"
    if not 0 <= segment.base_offset < segment.end_offset <= INT64_MAX or not 0 <= segment.leader_epoch <= INT32_MAX:
        raise Corrupt(f"{name}: offsets [{segment.base_offset}, {segment.end_offset}) or the epoch are out of range")
    if not 0 < segment.log_bytes < segment.object_bytes <= INT64_MAX or not 0 <= segment.crc32c < 2**32:
        raise Corrupt(f"{name}: {segment.log_bytes} log bytes do not fit an object of {segment.object_bytes} bytes")
    if not 0 <= segment.records <= segment.end_offset - segment.base_offset:
        raise Corrupt(
            f"{name}: offsets [{segment.base_offset}, {segment.end_offset}) cannot hold {segment.records} records"
        )
    if not NO_TIMESTAMP <= segment.min_timestamp_ms <= segment.max_timestamp_ms <= INT64_MAX:
        raise Corrupt(f"{name}: timestamps {segment.min_timestamp_ms}..{segment.max_timestamp_ms} are out of range")
    if segment.decided < 0:
        raise Corrupt(f"{name}: {segment.decided} decided transactions is out of range")
    check_ranges(segment.gaps, segment.base_offset, segment.end_offset, f"gaps of {name}")
    _check_epochs(segment)


def check_replaced(replaced: Sequence[ReplacedObject], name: str) -> None:
    """Raise Corrupt unless the list of replaced objects is possible."""
    if len(replaced) > REPLACED_MAX or len({each.uuid for each in replaced}) != len(replaced):
        raise Corrupt(f"{name}: {len(replaced)} replaced objects are too many, or one is listed twice")
    for each in replaced:
        numbers = (each.base_offset, each.object_bytes, each.since_ms)
        if not all(0 <= number <= INT64_MAX for number in numbers) or not 0 <= each.leader_epoch <= INT32_MAX:
            raise Corrupt(f"{name}: replaced object {each} is out of range")


def _check_epochs(segment: RemoteSegment) -> None:
    epochs = segment.epochs
    if len(epochs) > RANGES_MAX:
        raise Corrupt(
            f"segment {segment.uuid}: {len(epochs)} epochs, but at most {RANGES_MAX} are allowed; seal more often"
        )
    before = (-1, segment.base_offset - 1)
    for entry in epochs:
        if entry[0] <= before[0] or entry[1] <= before[1] or entry[1] >= segment.end_offset or entry[0] > INT32_MAX:
            raise Corrupt(f"segment {segment.uuid}: epochs {epochs[:8]} are out of order")
        before = entry


def check_ranges(ranges: Sequence[tuple[int, int]], first: int, end: int, name: str) -> None:
    """Raise Corrupt unless `ranges` are non-empty, in order, without overlap, within `[first, end)`."""
    if len(ranges) > RANGES_MAX:
        raise Corrupt(f"{name}: {len(ranges)} ranges, but at most {RANGES_MAX} are allowed")
    at = first
    for start, stop in ranges:
        if not at <= start < stop <= end:
            raise Corrupt(f"{name}: [{start}, {stop}) is out of order or outside [{first}, {end})")
        at = stop


def check_page(page: PagePointer) -> None:
    """Raise Corrupt unless the pointer describes a possible page."""
    counts = (page.entries, page.segments, page.log_bytes, page.object_bytes, page.records, page.length)
    if page.level not in (0, 1) or not 0 <= page.first_offset < page.end_offset <= INT64_MAX or min(counts) < 0:
        raise Corrupt(
            f"page {page.uuid}: level {page.level}, [{page.first_offset}, {page.end_offset}) or counts {counts} are "
            "out of range"
        )
    if not 0 < page.entries <= page.segments or not 0 <= page.epoch <= INT32_MAX or not 0 <= page.crc32c < 2**32:
        raise Corrupt(
            f"page {page.uuid}: {page.entries} entries, {page.segments} segments, epoch {page.epoch} or its CRC are "
            "out of range"
        )
