"""Which unnamed objects may be the only copies of records: the footers that must be read to know it.

Owns the asking; what holds an object's records is the caller's word (`Holds`): a log where there is one, the manifest
where nobody has a log. Always true: what nobody shows to be held elsewhere is kept, so is what cannot be read. Writes
nothing. Must not know brokers, nor who deletes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypeAlias
from uuid import UUID

from coldstore.inspection.audit import GcPlan, bucket_holds
from coldstore.keys import PageKey, SegmentKey, SnapshotKey, parse_key
from coldstore.manifest.manifest import Manifest
from coldstore.manifest.manifest_reader import ManifestReader
from coldstore.object_store import ObjectInfo, ObjectMissing, ReadStore
from coldstore.segments.segment_reader import fetch_committed_footer, fetch_footer
from logformat.errors import Corrupt
from logformat.leader_epochs import LeaderEpochs
from logformat.values import NewerFormat
from seams.workers import Workers

Holds: TypeAlias = Callable[[int, int], bool]
"""Whether all that a leader of this epoch had below this offset is held, or needed no more."""


async def keep_only_copies(store: ReadStore, plan: GcPlan, holds: Holds, *, deadline_s: float | None = None) -> GcPlan:
    """The plan without what may be nobody else's: an object of which `holds` does not say that all it has below its end
    is held elsewhere. A segment object says in its footer where it ends (a request each, in `deadline_s`): one that
    begins too high is not asked, one that cannot be read is kept. Raises StoreError, TimeoutError."""
    deletable: list[ObjectInfo] = []
    kept: list[ObjectInfo] = []
    for info in plan.deletable:
        key = parse_key(info.key)
        assert isinstance(key, SegmentKey | PageKey | SnapshotKey), info.key
        try:
            async with _within(deadline_s):
                is_held = await _is_held(store, key, info.size, holds)
        except ObjectMissing:
            continue  # somebody else deleted it
        (deletable if is_held else kept).append(info)
    return replace(plan, deletable=tuple(deletable), kept=(*plan.kept, *kept))


async def keep_by_manifest(
    store: ReadStore, topic_id: UUID, partition: int, plan: GcPlan, workers: Workers | None = None
) -> GcPlan:
    """`keep_only_copies` where no log can be asked: the manifest as it stands now says what the bucket has, and the
    footer of its last segment by which leaders. Raises Corrupt, NewerFormat, ObjectMissing (a page is gone),
    StoreError. Without `workers` it waits for no event loop but in `store`."""
    if not plan.deletable:
        return plan
    reader = ManifestReader(store, topic_id, partition, workers=workers)
    manifest = await reader.load()
    if manifest is None:  # deleted meanwhile, and it names nothing
        return replace(plan, deletable=(), kept=(*plan.kept, *plan.deletable))
    lineage = await _lineage(store, reader, manifest)
    return await keep_only_copies(store, plan, lambda epoch, end: bucket_holds(manifest, lineage, epoch, end))


async def _lineage(store: ReadStore, reader: ManifestReader, manifest: Manifest) -> LeaderEpochs | None:
    """Of all that `manifest` names; None where it names nothing, or what it names last cannot be read."""
    end = manifest.remote_end_offset
    try:
        live = (await reader.segments(manifest, end - 1, end)).segments
        if not live:
            return None
        key = live[-1].key(manifest.topic_id, manifest.partition)
        return (await fetch_committed_footer(store, key, live[-1])).lineage
    except NewerFormat:
        raise
    except (Corrupt, ObjectMissing):
        return None


async def _is_held(store: ReadStore, key: SegmentKey | PageKey | SnapshotKey, size: int, holds: Holds) -> bool:
    if not isinstance(key, SegmentKey):
        return holds(key.epoch, key.end_offset)
    if not holds(key.epoch, key.base_offset + 1):
        return False
    try:
        footer = await fetch_footer(store, key, size)
    except Corrupt:  # or of a newer format
        return False
    return holds(key.epoch, footer.statistics.end_offset)


def _within(deadline_s: float | None) -> AbstractAsyncContextManager[Any]:
    return nullcontext() if deadline_s is None else asyncio.timeout(deadline_s)
