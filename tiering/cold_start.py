"""The state a log begins with where the bucket has what lies below: its lineage of leader epochs and its producers.

Owns where that state is read: in the footer of the last object. Always true: it names nothing at or above that offset,
also where the object reaches further; where the bucket holds nothing it is empty. Must not know what begins there, or
why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

from coldstore.manifest_store import ManifestStore
from coldstore.object_store import ObjectStore, StoreUnavailable
from coldstore.segment_reader import fetch_footer
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerEntry


async def state_at(
    store: ObjectStore, manifests: ManifestStore, of: tuple[UUID, int], offset: int, deadline_s: float
) -> tuple[LeaderEpochs, Iterable[ProducerEntry]]:
    """At `offset`, by what the loaded manifest names below it. Of an object that reaches further, its producers' last
    batches are left out where they come later: who copies what follows meets them again.

    Raises Retryable (StoreUnavailable), ObjectMissing, Corrupt."""
    entry = await manifests.find(offset - 1) if offset else None
    if entry is None:
        return LeaderEpochs(), ()
    key = entry.key(*of)
    try:
        async with asyncio.timeout(deadline_s):
            footer = await fetch_footer(store, key, entry.object_bytes, entry.log_bytes)
    except TimeoutError as late:
        raise StoreUnavailable(f"GET {key}: no answer in {deadline_s} s") from late
    return footer.lineage.truncate_from_end(offset), footer.producer_state().as_of(offset)
