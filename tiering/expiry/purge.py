"""Deleting the objects of a deleted topic's partition.

Owns the order: the root goes last, so that whatever cuts the deletion off leaves a partition that says whose objects
these are. Always true: only names that parse as this partition's are deleted. Must not know who decided it, nor when.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from coldstore.keys import PageKey, RootKey, SegmentKey, SnapshotKey, parse_key, partition_prefix
from coldstore.object_store import ObjectStore
from logformat.errors import Retryable
from tiering.reading.cold_reader import ColdReader

DELETE_KEYS: Final = 500


async def purge_partition(store: ObjectStore, cold: ColdReader, topic_id: UUID, partition: int) -> None:
    """Raises Retryable while some are left. `cold` forgets what it has of them."""
    prefix = partition_prefix(topic_id, partition)
    # Twice: what a late upload or a store that lies about deletes left is seen by the second listing.
    for _ in range(2):
        found = [info.key async for info in store.list(prefix)]
        ours = [(key, parse_key(key)) for key in found]
        for kind in (SegmentKey, PageKey, SnapshotKey, RootKey):
            keys = [key for key, parsed in ours if isinstance(parsed, kind)]
            for at in range(0, len(keys), DELETE_KEYS):
                await store.delete(keys[at : at + DELETE_KEYS])
        await cold.forget([parsed for _, parsed in ours if isinstance(parsed, SegmentKey)])
        if not any(parsed is not None for _, parsed in ours):
            return
    left = [info.key async for info in store.list(prefix) if parse_key(info.key) is not None]
    if left:
        raise Retryable(f"{prefix}: {len(left)} objects are still listed after their deletion, e.g. {left[0]}")
