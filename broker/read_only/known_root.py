"""A partition's manifest at hand, as the handlers read by it: where the log ends, and its cold bytes.

Owns the manifest of one partition that was read lately, and its lineage. Always true: whatever makes the manifest be
read again (a poll, an object that is gone) is told to the partition before anybody reads by it, where Metadata named
its leader epoch; nothing is local. Must not know when it is read again.
"""

from __future__ import annotations

import asyncio

from broker.read_only.archived_partition import ArchivedPartition
from coldstore.manifest.manifest import Manifest, RemoteSegment
from coldstore.manifest.manifest_store import ManifestStore
from logformat.leader_epochs import LeaderEpochs
from tiering.reading.batch_slices import ColdSlice
from tiering.reading.cold_reader import ColdReader


class KnownRoot:
    """Of `partition`; loaded. `read_s`: when it was read last, by the monotonic clock."""

    __slots__ = ("_cold", "_partition", "lineage", "lineage_end", "log", "manifests", "read_s", "tier")

    def __init__(self, partition: ArchivedPartition, manifests: ManifestStore, cold: ColdReader) -> None:
        self._partition = partition
        self._cold = cold
        self.manifests = manifests
        self.read_s = float("-inf")
        self.lineage = LeaderEpochs()
        self.lineage_end = -1  # it knows every epoch below; −1: nobody asked for it
        self.log = ArchivedLog(partition, self)
        self.tier = ArchivedTier(self)

    @property
    def manifest(self) -> Manifest:
        manifest = self.manifests.manifest
        assert manifest is not None, "it was loaded"
        return manifest

    @property
    def weight(self) -> int:
        """About how many entries it holds."""
        manifest = self.manifest
        return 1 + len(manifest.tail) + len(manifest.pages)

    @property
    def is_traced(self) -> bool:
        """Whether the lineage knows every epoch of what the manifest names."""
        return self.lineage_end >= self.manifest.remote_end_offset

    def tell(self) -> None:
        """Let the partition know what the manifest says."""
        self._partition.read(self.manifest)

    def _tell_named(self) -> None:
        """The same of what was read meanwhile, but for a leader epoch that Metadata did not name yet: who looks after
        the root reads a newer image first."""
        if self.manifest.leader_epoch <= self._partition.leader_epoch:
            self.tell()

    @property
    def cold(self) -> ColdReader:
        return self._cold

    # ── `ManifestView`, for cold reads ───────────────────────────────────────────────────────────────────────────
    async def find(self, offset: int) -> RemoteSegment | None:
        found = await self.manifests.find(offset)
        self._tell_named()  # a page that was gone made it read the root
        return found

    async def find_by_timestamp(self, timestamp_ms: int, from_offset: int) -> RemoteSegment | None:
        return await self.manifests.find_by_timestamp(timestamp_ms, from_offset)

    async def reload_if_changed(self) -> bool:
        changed = await self.manifests.reload_if_changed()
        self._tell_named()
        return changed


class ArchivedLog:
    """`ReadableLog`: an empty local log at the end of what the bucket holds."""

    __slots__ = ("_partition", "_root")

    def __init__(self, partition: ArchivedPartition, root: KnownRoot) -> None:
        self._partition = partition
        self._root = root

    @property
    def local_log_start_offset(self) -> int:
        """Below it reads go to the bucket; between it and the end, where a root gave up what it named (tiering was
        switched off), readers wait."""
        manifest = self._root.manifest
        return min(max(manifest.remote_end_offset, manifest.log_start_offset), self._partition.high_watermark)

    @property
    def log_end_offset(self) -> int:
        return self._partition.high_watermark

    @property
    def epochs(self) -> LeaderEpochs:
        return self._root.lineage


class ArchivedTier:
    """`ReadableTier`."""

    __slots__ = ("_root",)

    def __init__(self, root: KnownRoot) -> None:
        self._root = root

    @property
    def enabled(self) -> bool:
        return True

    @property
    def remote_end_offset(self) -> int:
        return self._root.manifest.remote_end_offset

    @property
    def max_timestamp_ms(self) -> int:
        return self._root.manifest.max_timestamp_ms

    def read(self, offset: int, bytes_max: int, *, min_one: bool) -> ColdSlice | asyncio.Future[None]:
        return self._root.cold.read(self._root, offset, bytes_max, min_one=min_one)

    async def offset_for_timestamp(self, timestamp_ms: int, before_offset: int) -> tuple[int, int] | None:
        return await self._root.cold.offset_for_timestamp(self._root, timestamp_ms, before_offset)
