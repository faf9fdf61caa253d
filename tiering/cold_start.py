"""The state a log begins with where the bucket ends: its lineage of leader epochs and its producers.

Owns where that state is read: in the footer of the last object. Always true: it is what the log had at exactly that
offset when the object was made; where the bucket holds nothing it is empty. Must not know what begins there, or why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from coldstore.manifest import Manifest
from coldstore.object_store import StoreUnavailable
from coldstore.segment_reader import fetch_footer
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerEntry
from tiering.partition_state import TieredPartition


async def state_at_remote_end(
    partition: TieredPartition, manifest: Manifest
) -> tuple[LeaderEpochs, Iterable[ProducerEntry]]:
    """Raises Retryable (StoreUnavailable), ObjectMissing, Corrupt."""
    end, deadline_s = manifest.remote_end_offset, partition.limits.store_timeout_s
    entry = await partition.manifests.find(end - 1) if end else None
    if entry is None:
        return LeaderEpochs(), ()
    key = entry.key(partition.topic_id, partition.partition)
    try:
        async with asyncio.timeout(deadline_s):
            footer = await fetch_footer(partition.store, key, entry.object_bytes, entry.log_bytes)
    except TimeoutError as late:
        raise StoreUnavailable(f"GET {key}: no answer in {deadline_s} s") from late
    return footer.lineage, footer.producer_state().producers
