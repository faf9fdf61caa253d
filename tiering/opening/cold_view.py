"""Cold reads of a partition that another broker leads.

The root is read at the first cold read, and when the known manifest lacks an offset. The view neither claims the root
nor verifies objects (R6). Reads with an old manifest are correct, because objects are immutable and hold only
committed records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import msgspec

from coldstore.manifest.manifest_store import ManifestStore
from tiering.reading.batch_slices import ColdSlice
from tiering.reading.cold_reader import ColdReader


class ColdView(msgspec.Struct, frozen=True, eq=False):
    """The cold view of one partition. `end` returns the exclusive end of the offsets known to be in the bucket."""

    topic_id: UUID
    partition: int
    manifests: ManifestStore
    cold: ColdReader
    end: Callable[[], int]

    @property
    def remote_end_offset(self) -> int:
        return self.end()

    @property
    def enabled(self) -> bool:
        """Whether this broker reports the partition's tier status. Never, because the leader reports it."""
        return False

    @property
    def max_timestamp_ms(self) -> int:
        """Greatest timestamp in the manifest that was read last; −1 before the first read."""
        manifest = self.manifests.manifest
        return -1 if manifest is None else manifest.max_timestamp_ms

    async def offset_for_timestamp(self, timestamp_ms: int, before_offset: int) -> tuple[int, int] | None:
        """See `PartitionTier`."""
        await self.manifests.reload_if_changed()
        return await self.cold.offset_for_timestamp(self.manifests, timestamp_ms, before_offset)

    def read(self, offset: int, bytes_max: int, *, min_one: bool) -> ColdSlice | asyncio.Future[None]:
        """Cold bytes from the batch that holds `offset`, or a future; ask again when the future is done. Raises as
        `ColdReader.read`."""
        if self.manifests.manifest is None:
            return self.cold.find(self.manifests, self.topic_id, self.partition, offset)
        return self.cold.read(self.manifests, offset, bytes_max, min_one=min_one)
