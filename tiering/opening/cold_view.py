"""What the bucket holds of a partition that another broker leads, for those who read it here.

Owns when the root is read: at the first cold read, and when the manifest at hand does not hold what is asked for.
Always true: it reads and never writes, neither claims nor verifies (R6); a manifest that is behind shows nothing wrong,
for objects are immutable and hold committed records only; it is one flight a place, in the bounds of all cold reads
(`reading.flights`). Must not know leaders, local logs, nor where a partition's log starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from coldstore.manifest.manifest_store import ManifestStore
from tiering.reading.batch_slices import ColdSlice
from tiering.reading.cold_reader import ColdReader


class ColdView:
    """Of one partition. `end`: below which the bucket is known to hold what the local log does not, exclusive."""

    __slots__ = ("_cold", "_end", "_manifests", "_partition", "_topic_id")

    def __init__(
        self, topic_id: UUID, partition: int, manifests: ManifestStore, cold: ColdReader, end: Callable[[], int]
    ) -> None:
        self._topic_id = topic_id
        self._partition = partition
        self._manifests = manifests
        self._cold = cold
        self._end = end

    @property
    def remote_end_offset(self) -> int:
        return self._end()

    @property
    def enabled(self) -> bool:
        """Whether what is copied is told: its leader does."""
        return False

    @property
    def max_timestamp_ms(self) -> int:
        """Greatest timestamp in the bucket, as of the last look; −1 before one."""
        manifest = self._manifests.manifest
        return -1 if manifest is None else manifest.max_timestamp_ms

    async def offset_for_timestamp(self, timestamp_ms: int, before_offset: int) -> tuple[int, int] | None:
        """See `PartitionTier`."""
        await self._manifests.reload_if_changed()
        return await self._cold.offset_for_timestamp(self._manifests, timestamp_ms, before_offset)

    def read(self, offset: int, bytes_max: int, *, min_one: bool) -> ColdSlice | asyncio.Future[None]:
        """Cold bytes from the batch that holds `offset`, or a future that is done when asking again may give them.
        Raises as `ColdReader.read`."""
        if self._manifests.manifest is None:
            return self._cold.find(self._manifests, self._topic_id, self._partition, offset)
        return self._cold.read(self._manifests, offset, bytes_max, min_one=min_one)
