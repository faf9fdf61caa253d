"""Cold reads of a partition that another broker leads.

The root is read at the first cold read, when it is `ROOT_AGE_MAX_S` old, and when the known manifest lacks an offset.
The view neither claims the root nor verifies objects (R6). A reader sees compaction at most `ROOT_AGE_MAX_S` late:
with an older manifest it could read a record from a replaced object, and its tombstone would be removed already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import UUID

from coldstore.manifest.manifest_store import ManifestStore
from logformat.errors import Retryable
from seams.clock import Clock
from tiering.reading.batch_slices import ColdSlice
from tiering.reading.cold_reader import ColdReader

ROOT_AGE_MAX_S: Final = 30.0


class ColdView:
    """The cold view of one partition. `end` returns the exclusive end of the offsets known to be in the bucket."""

    def __init__(
        self,
        topic_id: UUID,
        partition: int,
        manifests: ManifestStore,
        cold: ColdReader,
        end: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._place = topic_id, partition
        self._manifests = manifests
        self._cold = cold
        self._end = end
        self._clock = clock
        self._read_s = float("-inf")  # the known root is not older; by the boot clock, which includes sleep

    @property
    def remote_end_offset(self) -> int:
        return self._end()

    @property
    def known_end_offset(self) -> int:
        """Exclusive end of the offsets in the bucket by the root that was read last; 0 before the first read."""
        manifest = self._manifests.manifest
        return 0 if manifest is None else manifest.remote_end_offset

    @property
    def enabled(self) -> bool:
        """Whether this broker reports the partition's tier status. Never, because the leader reports it."""
        return False

    @property
    def max_timestamp_ms(self) -> int:
        """Greatest timestamp in the manifest that was read last; −1 before the first read."""
        manifest = self._manifests.manifest
        return -1 if manifest is None else manifest.max_timestamp_ms

    async def offset_for_timestamp(self, timestamp_ms: int, before_offset: int) -> tuple[int, int] | None:
        """See `PartitionTier`."""
        await self._read_root()
        return await self._cold.offset_for_timestamp(self._manifests, timestamp_ms, before_offset)

    def read(self, offset: int, bytes_max: int, *, min_one: bool) -> ColdSlice | asyncio.Future[None]:
        """Cold bytes from the batch that holds `offset`, or a future; ask again when the future is done. Raises as
        `ColdReader.read`."""
        if self._clock.boottime_s() - self._read_s > ROOT_AGE_MAX_S:
            return self._cold.want_root(*self._place, self._read_root)
        return self._cold.read(self._manifests, offset, bytes_max, min_one=min_one)

    async def _read_root(self) -> None:
        """Read the root if it changed. Raises the errors of `ManifestStore.load`, and Retryable if there is none."""
        began_s = self._clock.boottime_s()
        await self._manifests.reload_if_changed()
        if self._manifests.manifest is None:
            topic_id, partition = self._place
            raise Retryable(f"partition {partition} of topic {topic_id} has no manifest in the bucket yet; fetch again")
        self._read_s = began_s
