"""Snapshots of an internal topic's live state, stored beside its root (design 5).

The object is written first, then the root that names it. Reads check length and CRC. Only the claimed leader writes
one.
"""

from __future__ import annotations

from crc32c import crc32c

from coldstore.manifest.manifest import SnapshotPointer
from coldstore.object_store import Upload, answered_within
from logformat.errors import Corrupt
from seams.crash_points import reach
from tiering.partition_state import TieredPartition


async def commit_snapshot(partition: TieredPartition, end_offset: int, data: bytes) -> None:
    """Commit `data` as the live state after every offset below `end_offset`. Raises Retryable, Fenced."""
    await partition.claim()
    pointer = SnapshotPointer(
        uuid=partition.world.rng.uuid(),
        epoch=partition.epoch,
        end_offset=end_offset,
        length=len(data),
        crc32c=crc32c(data),
    )
    key = str(pointer.key(partition.topic_id, partition.partition))
    async with answered_within(partition.limits.upload_timeout_s, f"PUT {key}"):
        await partition.store.put_segment(key, Upload(len(data), pointer.crc32c, lambda: iter((data,))))
    reach("offsets.snapshot")
    await partition.commit(lambda m: m.set_snapshot(pointer))


async def read_snapshot(partition: TieredPartition) -> tuple[int, bytes] | None:
    """(end offset, state) of the newest committed snapshot; None if there is none. Raises Retryable, Corrupt,
    ObjectMissing."""
    manifest = await partition.claim()
    pointer = manifest.snapshot
    if pointer is None:
        return None
    key = str(pointer.key(partition.topic_id, partition.partition))
    async with answered_within(partition.limits.store_timeout_s, f"GET {key}"):
        got = await partition.store.get(key)
    if len(got.data) != pointer.length or crc32c(got.data) != pointer.crc32c:
        raise Corrupt(f"snapshot {key} is not what was written: {len(got.data)} bytes of {pointer.length}")
    return pointer.end_offset, got.data
