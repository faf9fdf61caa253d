"""A partition that is served only from the bucket, and its loaded manifest. The high watermark is the end in the
bucket, or the log start if that is higher.

High watermark and log start never decrease in one process, even if a root has lower values. When one of them moves,
waiters are woken. 10 000 partitions without requests take 3 MB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from uuid import UUID

from broker.fetch_sessions.session import Target
from broker.partition.leading.delayed_operations import DelayedOperations
from broker.partition.readable import ReadableLog, ReadableTier
from coldstore.manifest.manifest import Manifest, RemoteSegment
from coldstore.manifest.manifest_store import ManifestStore
from hotstore.host.residency import Residency
from hotstore.log.locator import LogSlice
from logformat.leader_epochs import EpochEnd, LeaderEpochs
from tiering.reading.batch_slices import ColdSlice
from tiering.reading.cold_reader import ColdReader

if TYPE_CHECKING:
    from broker.read_only.root_cache import RootCache


class NothingLocal:
    """A `broker.partition.local_reads.LocalReads` without local data."""

    def read(self, residency: Residency, offset: int, bytes_max: int, end_offset: int, *, min_one: bool) -> None:
        return None

    def aborted_in(self, found: LogSlice, offset: int, end_offset: int) -> tuple[()]:
        return ()

    async def max_timestamp(self) -> None:
        return None

    async def offset_for_timestamp(self, timestamp_ms: int) -> None:
        return None


_NOTHING_LOCAL: Final = NothingLocal()


class ArchivedPartition:
    """A `broker.partition.readable.Readable` in the bucket. `used_s`: time of the last request, by the monotonic
    clock."""

    __slots__ = (
        "_roots",
        "_waiters",
        "fetched_answers",
        "fetched_bytes",
        "high_watermark",
        "index",
        "is_deleted",
        "leader_epoch",
        "log_start_offset",
        "topic",
        "topic_id",
        "used_s",
    )

    def __init__(self, topic: str, topic_id: UUID, index: int, leader_epoch: int, roots: RootCache) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.leader_epoch = leader_epoch
        self.high_watermark = -1
        self.log_start_offset = -1
        self.fetched_answers = self.fetched_bytes = 0
        self.is_deleted = False
        self.used_s = float("-inf")
        self._roots = roots
        self._waiters: DelayedOperations | None = None  # takes 1 KB; most partitions never need it

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    def read(self, manifest: Manifest) -> None:
        """Update the offsets from the manifest."""
        end = max(manifest.remote_end_offset, manifest.log_start_offset, self.high_watermark)
        start = max(manifest.log_start_offset, self.log_start_offset)
        if (end, start) != (self.high_watermark, self.log_start_offset):
            self.high_watermark, self.log_start_offset = end, start
            self.wake()

    def wake(self) -> None:
        if self._waiters is not None:
            self._waiters.wake()

    def is_waited_for(self) -> bool:
        """Whether a client waits now."""
        return self._waiters is not None and self._waiters.awaits_flush()

    # ── what is read ─────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def last_stable_offset(self) -> int:
        """The end in the bucket, because undecided transactions are not uploaded."""
        return self.high_watermark

    @property
    def is_end_known(self) -> bool:
        """Always true: the bucket holds only committed records."""
        return True

    @property
    def log(self) -> ReadableLog:
        return self._roots.of(self).log

    @property
    def tier(self) -> ReadableTier:
        return self._roots.of(self).tier

    @property
    def local(self) -> NothingLocal:
        return _NOTHING_LOCAL

    def lacks(self, offset: int) -> bool:
        """Whether the manifest has the records below `offset`, but they do not count before a newer image is read. A
        client may have read them already, because compaction may merge them with earlier records."""
        return self.high_watermark < offset <= self._roots.of(self).manifest.remote_end_offset

    def epoch_end(self, epoch: int) -> EpochEnd:
        return self._roots.epochs_of(self).end_offset_for(epoch, self.high_watermark)

    def end_visible(self, wait_s: float) -> asyncio.Future[None] | None:
        """Always None: nothing is being flushed here."""
        return None

    # ── waiters ──────────────────────────────────────────────────────────────────────────────────────────────────
    def watch(self, watcher: Callable[[], None], *, at_tail: bool = False) -> None:
        self._waiting().watch(watcher, at_tail=at_tail)
        self._roots.keep_polled(self)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        self._waiting().unwatch(watcher)

    def tell_once(self, reader: Target) -> None:
        self._waiting().tell_once(reader)

    def forget(self, reader: Target) -> None:
        self._waiting().forget(reader)

    def hurry(self) -> None:
        """Poll the partition: a client returned to its fetch session, which has no waiter."""
        self._roots.keep_polled(self)

    def _waiting(self) -> DelayedOperations:
        if self._waiters is None:
            self._waiters = DelayedOperations()
        return self._waiters


class KnownRoot:
    """The loaded manifest of `partition`, its lineage, and the log and tier made from it. `read_s`: boot time of the
    last read.

    After each new read of the manifest (by a poll, or because an object was missing) the partition's offsets are
    updated.
    """

    __slots__ = ("_cold", "_partition", "lineage", "lineage_end", "log", "manifests", "read_s", "tier")

    def __init__(self, partition: ArchivedPartition, manifests: ManifestStore, cold: ColdReader) -> None:
        self._partition = partition
        self._cold = cold
        self.manifests = manifests
        self.read_s = float("-inf")
        self.lineage = LeaderEpochs()
        self.lineage_end = -1  # the lineage covers every epoch up to this one; −1: not read
        self.log = ArchivedLog(partition, self)
        self.tier = ArchivedTier(partition, self)

    @property
    def manifest(self) -> Manifest:
        manifest = self.manifests.manifest
        assert manifest is not None, "it was loaded"
        return manifest

    @property
    def weight(self) -> int:
        """Approximate number of the manifest's entries."""
        manifest = self.manifest
        return 1 + len(manifest.tail) + len(manifest.pages)

    @property
    def is_traced(self) -> bool:
        """Whether the lineage covers every epoch of the manifest."""
        return self.lineage_end >= self.manifest.remote_end_offset

    def update_partition(self) -> None:
        self._partition.read(self.manifest)

    def _update_named(self) -> None:
        """Update the partition, unless the manifest's leader epoch is not in the image yet. Then the next poll reads a
        newer image first."""
        if self.manifest.leader_epoch <= self._partition.leader_epoch:
            self.update_partition()

    @property
    def cold(self) -> ColdReader:
        return self._cold

    # ── `ManifestView`, for cold reads ───────────────────────────────────────────────────────────────────────────
    async def find(self, offset: int) -> RemoteSegment | None:
        found = await self.manifests.find(offset)
        self._update_named()  # if a page was missing, `find` has read the root again
        return found

    async def find_by_timestamp(self, timestamp_ms: int, from_offset: int) -> RemoteSegment | None:
        return await self.manifests.find_by_timestamp(timestamp_ms, from_offset)

    async def reload_if_changed(self) -> bool:
        changed = await self.manifests.reload_if_changed()
        self._update_named()
        return changed


class ArchivedLog:
    """A `ReadableLog`: an empty local log that starts at the end in the bucket."""

    __slots__ = ("_partition", "_root")

    def __init__(self, partition: ArchivedPartition, root: KnownRoot) -> None:
        self._partition = partition
        self._root = root

    @property
    def local_log_start_offset(self) -> int:
        """The end in the bucket by the current root. Reads below it are served from the bucket. If tiering was switched
        off, a root drops objects, and this end is below the log end. Reads between the two wait."""
        manifest = self._root.manifest
        return min(max(manifest.remote_end_offset, manifest.log_start_offset), self._partition.high_watermark)

    @property
    def log_end_offset(self) -> int:
        return self._partition.high_watermark

    @property
    def epochs(self) -> LeaderEpochs:
        """The lineage; empty if only an older root's lineage is known. The older lineage would give newer offsets an
        epoch that ended below them, and a client would assume that the log was truncated."""
        return self._root.lineage if self._root.is_traced else LeaderEpochs()


class ArchivedTier:
    """A `ReadableTier` by the manifest, up to the partition's high watermark: while a newer image is awaited, the
    manifest may name later objects."""

    __slots__ = ("_partition", "_root")

    def __init__(self, partition: ArchivedPartition, root: KnownRoot) -> None:
        self._partition = partition
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
        end_offset = self._partition.high_watermark
        return self._root.cold.read(self._root, offset, bytes_max, min_one=min_one, end_offset=end_offset)

    async def offset_for_timestamp(self, timestamp_ms: int, before_offset: int) -> tuple[int, int] | None:
        return await self._root.cold.offset_for_timestamp(self._root, timestamp_ms, before_offset)
