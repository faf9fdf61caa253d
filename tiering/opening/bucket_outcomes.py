"""Finds in the bucket the outcome of transactions whose marker may be in a gap (TX10).

Every transaction in the bucket was decided before its copy (TX5), and readers may have seen the outcome, so it is
final. The footer of the last object names every transaction that is open at its end, and how it ended.
"""

from __future__ import annotations

from coldstore.object_store import ObjectMissing, answered_within
from coldstore.segments.segment_object import DecidedTransaction
from coldstore.segments.segment_reader import fetch_committed_footer
from tiering.opening.cold_start import is_below_start
from tiering.partition_state import TieredPartition


async def decided_in_bucket(partition: TieredPartition) -> tuple[DecidedTransaction, ...]:
    """The transactions in the last object's footer; none if no object was copied. At most two requests. Raises
    Retryable, Fenced, ObjectMissing, Corrupt."""
    manifest = await partition.claim()
    end_offset = manifest.remote_end_offset
    entry = await partition.manifests.find(end_offset - 1) if end_offset else None
    if entry is None or not entry.decided:
        return ()
    key = entry.key(partition.topic_id, partition.partition)
    try:
        async with answered_within(partition.limits.store_timeout_s, f"GET {key}"):
            footer = await fetch_committed_footer(partition.store, key, entry)
    except ObjectMissing:
        if not is_below_start(partition.manifest, entry):
            raise
        return ()
    return footer.transactions
