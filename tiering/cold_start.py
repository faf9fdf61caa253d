"""The state a log begins with where the bucket has what lies below: its lineage of leader epochs and its producers.

Owns where that state is read: in the footer of the last object; two requests, a page of the manifest at most besides.
Always true: it names nothing at or above that offset, also where the object reaches further; where the bucket holds
nothing it is empty. Must not know what begins there, or why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from coldstore.manifest import Manifest
from coldstore.manifest_store import ManifestStore
from coldstore.object_store import ObjectStore, StoreUnavailable
from coldstore.segment_reader import fetch_footer
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerEntry


class ColdStart(NamedTuple):
    """`held_bytes`: about how many bytes of log the bucket holds below the offset, from another one on."""

    epochs: LeaderEpochs
    producers: Iterable[ProducerEntry]
    held_bytes: int = 0


async def state_at(
    store: ObjectStore, manifests: ManifestStore, of: tuple[UUID, int], offset: int, deadline_s: float, since: int = 0
) -> ColdStart:
    """At `offset`, by what the loaded manifest names below it. Of an object that reaches further, its producers' last
    batches are left out where they come later: who copies what follows meets them again.

    Raises Retryable (StoreUnavailable), ObjectMissing, Corrupt."""
    entry = await manifests.find(offset - 1) if offset else None
    if entry is None:
        return ColdStart(LeaderEpochs(), ())
    key = entry.key(*of)
    try:
        async with asyncio.timeout(deadline_s):
            footer = await fetch_footer(store, key, entry.object_bytes, entry.log_bytes)
    except TimeoutError as late:
        raise StoreUnavailable(f"GET {key}: no answer in {deadline_s} s") from late
    held_bytes = 0 if manifests.manifest is None else _held_between(manifests.manifest, since, offset)
    return ColdStart(footer.lineage.truncate_from_end(offset), footer.producer_state().as_of(offset), held_bytes)


def _held_between(manifest: Manifest, start: int, end: int) -> int:
    """Of an object, or a page, that reaches out of [start, end), its share by offsets."""
    start = max(start, manifest.coverage_start)
    held = [(segment.base_offset, segment.end_offset, segment.log_bytes) for segment in manifest.tail]
    held += [(page.first_offset, page.end_offset, page.log_bytes) for page in manifest.pages]
    common = ((min(last, end) - max(first, start), last - first, size) for first, last, size in held)
    return sum(size * offsets // span for offsets, span, size in common if offsets > 0)
