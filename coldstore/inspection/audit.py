"""Findings of `bucket verify` and the plan of `bucket gc`.

Pure: it compares values that `bucket_inspection` read. For a plan, the listing has to be read before root and pages. An
object is deletable if the root does not name it and its key has an epoch below the root's. No root will name it later,
because a commit adds only objects of the root's own epoch (C2). Unnamed objects of the root's own epoch are pending and
stay. Objects with a foreign name are unknown, and stay too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from coldstore.keys import CLUSTER_KEY, MetadataKey, RootKey, SegmentKey, parse_key
from coldstore.manifest.manifest import Manifest, RemoteSegment
from coldstore.manifest.manifest_entries import ZERO_HASH, hash_of, totals_of
from coldstore.object_store import ObjectInfo
from coldstore.segments.segment_object import SegmentFooter, entry_from_footer
from coldstore.segments.segment_scanner import Scan
from logformat.errors import Corrupt
from logformat.leader_epochs import LeaderEpochs


class FindingKind(Enum):
    """Kind of a finding. `bucket verify` exits with 5 if a finding `is_damage`."""

    MISSING = "missing"  # a manifest names the object, but the listing does not have it
    WRONG_SIZE = "wrong size"
    DAMAGED = "damaged"  # footer, checksum or chunk differs from the committed one
    OVERLAP = "overlap"
    UNDECLARED_GAP = "undeclared gap"  # some offsets at or above the log start are in no segment
    BOOKS = "books do not balance"  # wrong totals or live hash
    UNREADABLE = "unreadable"  # a root or page cannot be read
    DECLARED_GAP = "declared gap"
    ORPHAN_DELETABLE = "orphan, deletable"
    ORPHAN_PENDING = "orphan, pending"
    ORPHAN_KEPT = "orphan, kept"  # perhaps the only copy of some records
    UNKNOWN = "unknown object"

    @property
    def is_damage(self) -> bool:
        return self in _DAMAGE


_DAMAGE = frozenset(
    {
        FindingKind.MISSING,
        FindingKind.WRONG_SIZE,
        FindingKind.DAMAGED,
        FindingKind.OVERLAP,
        FindingKind.UNDECLARED_GAP,
        FindingKind.BOOKS,
        FindingKind.UNREADABLE,
    }
)


class Finding(msgspec.Struct, frozen=True):
    """One finding. `key`: the object; None for the whole partition. `offset`: the place in the log, if it is known."""

    kind: FindingKind
    key: str | None
    offset: int | None
    detail: str


CLUSTER_GONE: Final = Finding(
    FindingKind.MISSING, CLUSTER_KEY, None, "the object that lists all topics is missing: no broker serves this bucket"
)
"""The finding for a bucket with our objects but no `cluster.json`, which is created before any topic and never
deleted."""


class NamedKeys(msgspec.Struct, frozen=True):
    """The keys that a root of `epoch` and its pages name. These objects must exist and stay."""

    epoch: int
    keys: frozenset[str]


class GcPlan(msgspec.Struct, frozen=True):
    """The unnamed objects. `pending`: a root may still name them. `unknown`: the name is foreign. `kept`: no root can
    name them any more, but they may be the only copies of records."""

    deletable: tuple[ObjectInfo, ...]
    pending: tuple[ObjectInfo, ...]
    unknown: tuple[ObjectInfo, ...]
    kept: tuple[ObjectInfo, ...] = ()

    def __add__(self, other: GcPlan) -> GcPlan:
        return GcPlan(
            self.deletable + other.deletable,
            self.pending + other.pending,
            self.unknown + other.unknown,
            self.kept + other.kept,
        )

    @property
    def deletable_bytes(self) -> int:
        return sum(info.size for info in self.deletable)

    @property
    def kept_bytes(self) -> int:
        return sum(info.size for info in self.kept)

    @property
    def with_kept(self) -> GcPlan:
        """The plan that also deletes the kept objects."""
        return replace(self, deletable=self.deletable + self.kept, kept=())


def named_by(manifest: Manifest, live: Iterable[RemoteSegment], page_keys: Iterable[str]) -> NamedKeys:
    """All keys that `manifest` names: its `live` segments (tail and pages), its pages, its snapshot, and the objects
    that compaction replaced, until their grace ends. Segments between the deletion cursor and the log start are live:
    only the claimed writer deletes them."""
    place = (manifest.topic_id, manifest.partition)
    keys = {str(segment.key(*place)) for segment in live} | set(page_keys)
    keys |= {str(each.key(*place)) for each in manifest.replaced}
    if manifest.snapshot is not None:
        keys.add(str(manifest.snapshot.key(*place)))
    return NamedKeys(manifest.leader_epoch, frozenset(keys))


def gc_plan(listing: Iterable[ObjectInfo], named: NamedKeys | None) -> GcPlan:
    """Sort the objects under one partition's prefix into a plan. `listing` was read first, `named` after it (C2).

    Without a root (None) all objects are pending. Roots are never garbage."""
    deletable: list[ObjectInfo] = []
    pending: list[ObjectInfo] = []
    unknown: list[ObjectInfo] = []
    for info in listing:
        key = parse_key(info.key)
        if key is None:
            unknown.append(info)
        elif isinstance(key, RootKey) or (named is not None and info.key in named.keys):
            continue
        elif named is not None and key.epoch < named.epoch:
            deletable.append(info)
        else:
            pending.append(info)
    return GcPlan(tuple(deletable), tuple(pending), tuple(unknown))


def bucket_holds(manifest: Manifest, lineage: LeaderEpochs | None, epoch: int, end_offset: int) -> bool:
    """Whether the objects in `manifest` hold all records below `end_offset` of the leader of `epoch`. Records below the
    log start are not needed. `lineage`: epochs of the log up to the manifest's end, None if unknown. It shows whether
    later leaders have other records, or a gap, at the same offsets."""
    if lineage is None:
        return end_offset <= manifest.log_start_offset
    shared_end = lineage.shared_end(epoch, manifest.remote_end_offset)
    return end_offset <= max(min(shared_end, manifest.remote_end_offset), manifest.log_start_offset)


def audit_manifest(manifest: Manifest, live: Sequence[RemoteSegment]) -> list[Finding]:
    """Check offsets and sums. `live` has the segments of tail and pages above the deletion cursor, in order."""
    place = (manifest.topic_id, manifest.partition)
    findings: list[Finding] = []
    end = live[0].base_offset if live else manifest.remote_end_offset
    if live and end > max(manifest.log_start_offset, manifest.deletion_cursor):
        first = max(manifest.log_start_offset, manifest.deletion_cursor)
        findings.append(Finding(FindingKind.UNDECLARED_GAP, None, first, f"[{first}, {end}) is in no segment"))
    for segment in live:
        key = str(segment.key(*place))
        base = segment.base_offset
        if base < end:
            findings.append(
                Finding(FindingKind.OVERLAP, key, base, f"begins at {base}, but the one before ends at {end}")
            )
        elif base > end and base > manifest.log_start_offset:
            findings.append(Finding(FindingKind.UNDECLARED_GAP, key, end, f"[{end}, {base}) is in no segment"))
        findings += [
            Finding(FindingKind.DECLARED_GAP, key, first, f"[{first}, {stop}) holds no records")
            for first, stop in segment.gaps
        ]
        end = max(end, segment.end_offset)
    if end != manifest.remote_end_offset:
        text = f"segments end at {end}, but the remote end is {manifest.remote_end_offset}"
        findings.append(Finding(FindingKind.BOOKS, None, end, text))
    return findings + _audit_books(manifest, live)


def _audit_books(manifest: Manifest, live: Sequence[RemoteSegment]) -> list[Finding]:
    found = totals_of(live)
    findings: list[Finding] = []
    if manifest.added - manifest.removed != manifest.live or found != manifest.live:
        text = (
            f"the manifest counts {manifest.added} added, {manifest.removed} removed and {manifest.live} live; its "
            f"entries are {found}"
        )
        findings.append(Finding(FindingKind.BOOKS, None, None, text))
    if (hash_of(live) if live else ZERO_HASH) != manifest.live_hash:
        text = (
            f"the live segments hash to {hash_of(live)}, but the manifest says {manifest.live_hash}: one was replaced"
        )
        findings.append(Finding(FindingKind.BOOKS, None, None, text))
    return findings


def audit_listing(
    manifest: Manifest, live: Sequence[RemoteSegment], page_sizes: Mapping[str, int], listing: Sequence[ObjectInfo]
) -> list[Finding]:
    """Compare the named objects with the listing. `page_sizes`: length of every named page, by key.

    A commit of a running broker may cause a finding. The caller then reads the root again and repeats this. A missing
    object below the log start is not a finding: objects are deleted before the cursor moves, and the broker may have
    stopped in between.
    """
    place = (manifest.topic_id, manifest.partition)
    listed = {info.key: info.size for info in listing}
    wanted: dict[str, tuple[int, int | None]] = {
        str(segment.key(*place)): (segment.object_bytes, segment.base_offset) for segment in live
    }
    wanted |= {key: (size, None) for key, size in page_sizes.items()}
    if manifest.snapshot is not None:
        wanted[str(manifest.snapshot.key(*place))] = (manifest.snapshot.length, None)
    expired = {str(s.key(*place)) for s in live if s.end_offset <= manifest.log_start_offset}
    findings: list[Finding] = []
    for key, (size, offset) in wanted.items():
        if key not in listed and key in expired:
            continue
        if key not in listed:
            text = f"the manifest names an object of {size} bytes, but it is missing"
            findings.append(Finding(FindingKind.MISSING, key, offset, text))
        elif listed[key] != size:
            text = f"the object has {listed[key]} bytes, but the manifest says {size}"
            findings.append(Finding(FindingKind.WRONG_SIZE, key, offset, text))
    return findings


def orphan_findings(plan: GcPlan) -> list[Finding]:
    """The plan as findings, for a report."""
    sorts = (
        (FindingKind.ORPHAN_DELETABLE, plan.deletable),
        (FindingKind.ORPHAN_KEPT, plan.kept),
        (FindingKind.ORPHAN_PENDING, plan.pending),
        (FindingKind.UNKNOWN, plan.unknown),
    )
    return [
        Finding(kind, info.key, _base_offset(info.key), f"{info.size} bytes") for kind, infos in sorts for info in infos
    ]


def audit_footer(key: SegmentKey, entry: RemoteSegment, footer: SegmentFooter) -> list[Finding]:
    """Compare the object under `key` with the manifest's `entry`."""
    try:
        found = entry_from_footer(footer, key)
    except Corrupt as broken:
        return [Finding(FindingKind.DAMAGED, str(key), entry.base_offset, str(broken))]
    differing = [name for name in RemoteSegment.__struct_fields__ if getattr(found, name) != getattr(entry, name)]
    if not differing:
        return []
    text = f"the object and the manifest differ in {', '.join(differing)}"
    return [Finding(FindingKind.DAMAGED, str(key), entry.base_offset, text)]


def audit_chunks(key: SegmentKey, footer: SegmentFooter, crcs: Sequence[int]) -> list[Finding]:
    """Compare the CRC32C of every chunk (`crcs`, as read now) with the footer."""
    findings: list[Finding] = []
    for index, (found, written) in enumerate(zip(crcs, footer.chunk_crcs, strict=True)):
        if found != written:
            position = index * footer.chunk_bytes
            offset = footer.offset_index.lookup_position(position).offset
            text = f"chunk {index} at byte {position} has CRC {found:#010x}, but the footer says {written:#010x}"
            findings.append(Finding(FindingKind.DAMAGED, str(key), offset, text))
    return findings


_SCANNED: Final = (
    "log_bytes",
    "log_crc32c",
    "batches",
    "records",
    "min_timestamp_ms",
    "max_timestamp_ms",
    "gaps",
    "epochs",
)


def audit_scan(key: SegmentKey, footer: SegmentFooter, scan: Scan) -> list[Finding]:
    """Compare the footer's statistics with a scan of all log bytes."""
    said = footer.statistics
    differing = [name for name in _SCANNED if getattr(scan, name) != getattr(said, name)]
    if not differing:
        return []
    text = f"the log bytes and the footer differ in {', '.join(differing)}"
    return [Finding(FindingKind.DAMAGED, str(key), said.base_offset, text)]


def rootless(findings: Iterable[Finding]) -> list[Finding]:
    """The finding that a partition has segments but no root. There is no finding without segments, because the topic is
    being created or deleted."""
    if not any(finding.key and isinstance(parse_key(finding.key), SegmentKey) for finding in findings):
        return []
    return [Finding(FindingKind.MISSING, None, None, "there are segments, but no manifest: brokers do not serve them")]


def partitions_in(keys: Iterable[str]) -> Collection[tuple[UUID, int]]:
    """The partitions (topic id, index) to which keys of a listing belong, sorted."""
    found: set[tuple[UUID, int]] = set()
    for text in keys:
        key = parse_key(text)
        if key is None or isinstance(key, MetadataKey) or key.topic_id is None or key.partition is None:
            continue
        found.add((key.topic_id, key.partition))
    return sorted(found)


def _base_offset(text: str) -> int | None:
    key = parse_key(text)
    return key.base_offset if isinstance(key, SegmentKey) else None
