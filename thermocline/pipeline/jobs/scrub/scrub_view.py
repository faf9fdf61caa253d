"""Inspects roots, pages and the listing of a bucket for a scrub: the objects to read, and findings without reading
them.

A damaged page does not hide the segments of other pages. The listing is taken before the roots that it is compared
with. Damage is confirmed by reading the root again until it stays the same, because a live broker commits meanwhile.
Data of a newer version raises NewerFormat and is never called damaged. The checks are in `coldstore.inspection.audit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from coldstore.inspection.audit import (
    CLUSTER_GONE,
    Finding,
    FindingKind,
    GcPlan,
    NamedKeys,
    audit_listing,
    audit_manifest,
    gc_plan,
    named_by,
    orphan_findings,
    partitions_in,
    rootless,
)
from coldstore.inspection.orphan_safety import keep_by_manifest
from coldstore.keys import CLUSTER_KEY, LEASE_KEY, METADATA_PREFIX, TOPICS_PREFIX, manifest_key, partition_prefix
from coldstore.manifest.manifest import Manifest
from coldstore.manifest.manifest_entries import PagePointer, RemoteSegment
from coldstore.manifest.manifest_format import MANIFEST_FORMAT
from coldstore.manifest.manifest_reader import check_manifest_root
from coldstore.manifest.page_reader import PageCache, PageReader
from coldstore.object_store import Got, ObjectInfo, ObjectMissing
from coldstore.roots.root_format import Root, RootCodec
from coldstore.roots.root_reading import read_root
from logformat.errors import Corrupt, InvalidRequest
from logformat.values import NewerFormat
from thermocline.pipeline.arrow_store import ArrowStore, finished
from thermocline.pipeline.jobs.scrub.scrub_worker import Blob
from thermocline.pipeline.topics import CLUSTER_FORMAT

T = TypeVar("T", bound=msgspec.Struct)

_TRIES: Final = 3

Place = tuple[UUID, int]


@dataclass(slots=True)
class PartitionInspection:
    """A partition by its root, pages and listing. `unnamed`: other objects in the listing, if that is certain."""

    topic_id: UUID
    partition: int
    topic: str | None = None
    manifest: Manifest | None = None
    live: list[RemoteSegment] = field(default_factory=list)
    page_sizes: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unnamed: GcPlan = field(default_factory=lambda: GcPlan((), (), ()))

    @property
    def damaged(self) -> bool:
        return any(finding.kind.is_damage for finding in self.findings)

    @property
    def named(self) -> NamedKeys | None:
        return None if self.manifest is None else named_by(self.manifest, self.live, self.page_sizes)

    @property
    def segments(self) -> list[RemoteSegment]:
        """Segments to read: live, above the log start, and whole in the listing."""
        known = {finding.key for finding in self.findings if finding.kind.is_damage}
        start = 0 if self.manifest is None else self.manifest.log_start_offset
        place = (self.topic_id, self.partition)
        return [one for one in self.live if one.end_offset > start and str(one.key(*place)) not in known]

    @property
    def snapshots(self) -> list[Blob]:
        if self.manifest is None or self.manifest.snapshot is None:
            return []
        snapshot = self.manifest.snapshot
        key = str(snapshot.key(self.topic_id, self.partition))
        if key in {finding.key for finding in self.findings if finding.kind.is_damage}:
            return []
        return [Blob(key, snapshot.length, snapshot.crc32c)]


# ── partitions ───────────────────────────────────────────────────────────────────────────────────────────────────────
def places(store: ArrowStore) -> tuple[dict[Place, list[ObjectInfo]], list[ObjectInfo]]:
    """The listing of every partition below `topics/`, and the objects that belong to none. One listing."""
    listing = _listed(store, TOPICS_PREFIX)
    found: dict[Place, list[ObjectInfo]] = {place: [] for place in partitions_in(info.key for info in listing)}
    by_prefix = {partition_prefix(*place): infos for place, infos in found.items()}
    others: list[ObjectInfo] = []
    for info in listing:
        prefix = "/".join(info.key.split("/")[:3]) + "/"
        by_prefix.get(prefix, others).append(info)
    return found, others


def check_ours(store: ArrowStore) -> None:
    """Raises InvalidRequest for a bucket that no broker ever used: "nothing scrubbed" must not look like "nothing
    damaged".
    """
    try:
        finished(store.head(CLUSTER_KEY))
    except ObjectMissing:
        if not {TOPICS_PREFIX, METADATA_PREFIX} & {f"{name}/" for name in store.children("")}:
            raise InvalidRequest(
                f"{store.url} holds no objects of Thermocline: nothing was scrubbed; check the "
                "bucket's name and the prefix"
            ) from None
    except Corrupt:
        pass  # an encrypted file: `inspect_metadata` reports the damage


def inspect_partition(store: ArrowStore, place: Place, listing: Sequence[ObjectInfo] | None) -> PartitionInspection:
    """Inspect a partition. If there is damage, inspect it again with a new listing, until the root stays the same."""
    seen = _inspect_once(store, place, listing)
    for _ in range(_TRIES - 1):
        if not seen.damaged:
            break
        before, seen = seen, _inspect_once(store, place, None)
        if before.manifest == seen.manifest:
            break
    seen.findings += orphan_findings(finished(keep_by_manifest(store, *place, seen.unnamed)))
    return seen


def _inspect_once(store: ArrowStore, place: Place, listing: Sequence[ObjectInfo] | None) -> PartitionInspection:
    seen = PartitionInspection(*place)
    if listing is None:
        listing = _listed(store, partition_prefix(*place))
    key = manifest_key(*place)
    try:
        seen.manifest = _read_root(store, key, place)
    except NewerFormat:
        raise
    except (Corrupt, ObjectMissing) as broken:
        if isinstance(broken, ObjectMissing):
            seen.unnamed = gc_plan(listing, None)
            seen.findings = rootless(orphan_findings(seen.unnamed))
        else:
            seen.findings = [Finding(FindingKind.UNREADABLE, key, None, str(broken))]
        return seen
    seen.topic = seen.manifest.topic
    _read_pages(store, seen)
    if not seen.damaged:  # a damaged page would only cause follow-up findings
        seen.findings += audit_manifest(seen.manifest, seen.live)
    compared = audit_listing(seen.manifest, seen.live, seen.page_sizes, listing)
    known = {finding.key for finding in seen.findings}
    if not seen.damaged:  # objects that an unreadable page names would look like orphans
        seen.unnamed = gc_plan(listing, seen.named)
    seen.findings += [found for found in compared if found.key not in known]
    return seen


def _read_root(store: ArrowStore, key: str, place: Place) -> Manifest:
    def check(root: Root[Manifest]) -> None:
        check_manifest_root(key, root, *place)

    return _decoded(RootCodec(MANIFEST_FORMAT, check), store, key).content


def _decoded(codec: RootCodec[T], store: ArrowStore, key: str) -> Root[T]:
    """The root under `key`. Its bytes must be exactly what a writer produces. Raises Corrupt."""

    def exact(key: str, got: Got) -> Root[T]:
        root = codec.decode(key, got)
        if not codec.is_as_written(got.data):
            raise Corrupt(
                f"root {key} holds an unknown field: the name of the field is damaged, or a newer version wrote it"
            )
        return root

    return finished(read_root(store, key, exact))


def _read_pages(store: ArrowStore, seen: PartitionInspection) -> None:
    """Live segments of every readable page, then of the tail; a finding for each unreadable page."""
    assert seen.manifest is not None
    place = (seen.topic_id, seen.partition)
    pages = PageReader(store, *place, PageCache(0), None)
    cursor = seen.manifest.deletion_cursor
    leaves: list[PagePointer] = []
    for pointer in seen.manifest.pages:
        seen.page_sizes[str(pointer.key(*place))] = pointer.length
        if not pointer.level:
            leaves.append(pointer)
            continue
        try:
            leaves += finished(pages.pointers(pointer)).pointers
        except NewerFormat:
            raise
        except (Corrupt, ObjectMissing) as broken:
            seen.findings.append(_page_finding(pointer, place, broken))
    for leaf in leaves:
        if leaf.end_offset <= cursor:
            continue  # everything below the cursor may be deleted
        seen.page_sizes[str(leaf.key(*place))] = leaf.length
        try:
            page = finished(pages.segments(leaf))
        except NewerFormat:
            raise
        except (Corrupt, ObjectMissing) as broken:
            seen.findings.append(_page_finding(leaf, place, broken))
            continue
        seen.live += [segment for segment in page.rows(page.index(cursor)) if segment.end_offset > cursor]
    seen.live += [segment for segment in seen.manifest.tail if segment.end_offset > cursor]


def _page_finding(pointer: PagePointer, place: Place, broken: Exception) -> Finding:
    kind = FindingKind.MISSING if isinstance(broken, ObjectMissing) else FindingKind.UNREADABLE
    return Finding(kind, str(pointer.key(*place)), pointer.first_offset, str(broken))


# ── the cluster's metadata ───────────────────────────────────────────────────────────────────────────────────────────
class _Anything(msgspec.Struct, frozen=True):
    pass


def inspect_metadata(store: ArrowStore) -> tuple[list[Finding], list[Blob]]:
    """Inspect `cluster.json`, `lease.json` and the listing of `metadata/`. Returns findings, and the named page to
    read.
    """
    listing = _listed(store, METADATA_PREFIX)
    findings: list[Finding] = []
    try:
        root = _decoded(RootCodec(CLUSTER_FORMAT), store, CLUSTER_KEY)
    except ObjectMissing:
        return [CLUSTER_GONE, *orphan_findings(gc_plan(listing, None))], []
    except NewerFormat:
        raise
    except Corrupt as broken:
        return [Finding(FindingKind.UNREADABLE, CLUSTER_KEY, None, str(broken))], []
    try:
        _decoded(RootCodec(_Anything), store, LEASE_KEY)
    except ObjectMissing:
        pass  # no broker has served the bucket yet
    except NewerFormat:
        raise
    except Corrupt as broken:
        findings.append(Finding(FindingKind.UNREADABLE, LEASE_KEY, None, str(broken)))
    page = root.content.page
    named = NamedKeys(root.epoch, frozenset(() if page is None else (page.key,)))
    findings += orphan_findings(gc_plan(listing, named))
    return findings, [] if page is None else [Blob(page.key, page.size, page.crc32c)]


def still_named(store: ArrowStore, place: Place, findings: Iterable[Finding]) -> list[Finding]:
    """The findings without damage of objects that are no longer named, because they expired while they were read."""
    seen = _inspect_once(store, place, None)
    if seen.named is None or any(found.kind is FindingKind.UNREADABLE for found in seen.findings):
        return list(findings)
    start = 0 if seen.manifest is None else seen.manifest.log_start_offset
    expired = {str(one.key(*place)) for one in seen.live if one.end_offset <= start}
    kept = seen.named.keys - expired
    return [one for one in findings if not one.kind.is_damage or one.key is None or one.key in kept]


def _listed(store: ArrowStore, prefix: str) -> list[ObjectInfo]:
    async def every() -> list[ObjectInfo]:
        return [info async for info in store.list(prefix)]

    return finished(every())
