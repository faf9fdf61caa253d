"""Protects an orphan from deletion if it may be the only copy of some records.

It reads the footers of orphans and writes nothing. The caller's `Holds` tells whether a log (or, without a log, the
manifest) holds records. An object is kept if this is not proved, or if the object cannot be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeAlias
from uuid import UUID

from msgspec.structs import replace

from coldstore.inspection.audit import GcPlan, bucket_holds
from coldstore.keys import PageKey, SegmentKey, SnapshotKey, parse_key
from coldstore.manifest.manifest import Manifest
from coldstore.manifest.manifest_reader import ManifestReader
from coldstore.object_store import ObjectInfo, ObjectMissing, ReadStore
from coldstore.segments.segment_reader import fetch_committed_footer, fetch_footer
from logformat.errors import Corrupt
from logformat.leader_epochs import LeaderEpochs
from logformat.values import NewerFormat
from seams.loop.workers import Workers

Holds: TypeAlias = Callable[[int, int], bool]
"""(leader epoch, offset): whether all records that the epoch's leader had below the offset are held elsewhere or no
longer needed."""


async def keep_only_copies(store: ReadStore, plan: GcPlan, holds: Holds, *, deadline_s: float | None = None) -> GcPlan:
    """Move objects to `kept` unless `holds` confirms that all their records exist elsewhere.

    The end of a segment is read from its footer, by one request within `deadline_s`. A segment whose first record is
    not held is kept without a request. A segment that cannot be read is kept. Raises StoreError, TimeoutError."""
    deletable: list[ObjectInfo] = []
    kept: list[ObjectInfo] = []
    for info in plan.deletable:
        key = parse_key(info.key)
        assert isinstance(key, SegmentKey | PageKey | SnapshotKey), info.key
        try:
            async with _within(deadline_s):
                is_held = await _is_held(store, key, info.size, holds)
        except ObjectMissing:
            continue  # deleted meanwhile
        (deletable if is_held else kept).append(info)
    return replace(plan, deletable=tuple(deletable), kept=(*plan.kept, *kept))


async def keep_by_manifest(
    store: ReadStore, topic_id: UUID, partition: int, plan: GcPlan, workers: Workers | None = None
) -> GcPlan:
    """Like `keep_only_copies`, without a log. The current manifest gives the offsets that the bucket holds. The footer
    of its last segment gives their leader epochs. Raises Corrupt, NewerFormat, ObjectMissing (a page is gone),
    StoreError.

    Without `workers` no event loop is needed, unless `store` needs one.
    """
    if not plan.deletable:
        return plan
    reader = ManifestReader(store, topic_id, partition, workers=workers)
    manifest = await reader.load()
    if manifest is None:  # the root was deleted meanwhile
        return replace(plan, deletable=(), kept=(*plan.kept, *plan.deletable))
    lineage = await _lineage(store, reader, manifest)
    return await keep_only_copies(store, plan, lambda epoch, end: bucket_holds(manifest, lineage, epoch, end))


async def _lineage(store: ReadStore, reader: ManifestReader, manifest: Manifest) -> LeaderEpochs | None:
    """Epochs of the segments in `manifest`; None if it is empty, or its last segment cannot be read."""
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
    except Corrupt:  # also NewerFormat
        return False
    return holds(key.epoch, footer.statistics.end_offset)


def _within(deadline_s: float | None) -> AbstractAsyncContextManager[Any]:
    return nullcontext() if deadline_s is None else asyncio.timeout(deadline_s)
