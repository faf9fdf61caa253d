"""Cold reader of a broker: answers from loaded chunks, or gives a future to wait for them.

`read` never blocks or awaits. Its bytes were checked and read into the page cache by this process (C25, G11). A future
carries no error: the next `read` raises it with topic and offset. A load continues even if its reader gave up.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from uuid import UUID

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest import Manifest
from coldstore.object_store import AccessRefused, ObjectMissing, ObjectStore
from coldstore.segments.chunk_cache import ChunkCache
from coldstore.stores.metered import LATENCY_BOUNDS_MS
from logformat.errors import Corrupt, InvalidRequest, Retryable, ThermoclineError
from logformat.indexes.time_index import TimestampOffset
from logformat.record_batch import INT64_MAX
from seams.clock import Clock
from seams.loop.tasks import Tasks
from seams.loop.workers import Workers
from seams.rng import Rng
from seams.world import World
from tiering.reading.batch_slices import ColdSlice
from tiering.reading.by_time import find_by_timestamp
from tiering.reading.chunk_table import ChunkTable
from tiering.reading.limits import ReadLimits, read_limits
from tiering.reading.loader import MOVES_MAX, ROOT, Loader, ManifestView, Moved
from tiering.reading.plan import Missing, answer
from tiering.reading.prefetch import Prefetcher
from tiering.reading.source import ChunkSource
from tiering.tier_config import TierLimits


class ColdReader:
    """Cold bytes of every partition of a broker. `start` first; `close` last."""

    def __init__(
        self,
        store: ObjectStore,
        cache: ChunkCache,
        workers: Workers,
        tasks: Tasks,
        clock: Clock,
        rng: Rng,
        limits: ReadLimits,
    ) -> None:
        self.hits = 0
        self.misses = 0
        self.sent_bytes = 0
        self.latency_buckets = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self._cache = cache
        self._workers = workers
        self._clock = clock
        self._source = ChunkSource(store, cache, workers)
        self._table = ChunkTable(limits.hold_bytes, limits.unread_bytes_max, limits.pin_s)
        self._loader = Loader(
            self._table, self._source, workers, tasks, clock, rng, limits, on_loaded=self._note_latency
        )
        self._prefetcher = Prefetcher(self._table, self._loader, clock, limits.prefetch_chunks)

    async def start(self) -> None:
        """Empty the chunk cache's directory. Raises OSError."""
        await self._cache.start()

    async def close(self) -> None:
        """Close the cache's files. The owner of the reading tasks must have closed the tasks already."""
        self._cache.close()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────
    def read(
        self,
        manifests: ManifestView,
        offset: int,
        bytes_max: int,
        *,
        min_one: bool = False,
        end_offset: int = INT64_MAX,
    ) -> ColdSlice | asyncio.Future[None]:
        """Whole batches from the one that holds `offset`, at most `bytes_max` bytes; if `min_one`, the first batch may
        be larger. `end_offset`: no segment that begins there or above is added.

        Returns a future if data must be loaded first: read again when it is done. Returns an empty slice if the first
        batch is larger than `bytes_max`. Raises the errors of loading: ObjectMissing, Corrupt, AccessRefused, Retryable
        (also for a full queue, or if the offset is no longer cold). Another read tries again."""
        manifest = manifests.manifest
        if manifest is None:
            raise Retryable(f"offset {offset}: the manifest is not loaded yet; fetch again")
        place = (manifest.topic_id.int, manifest.partition, offset)
        try:
            found = answer(self._table, manifest, place, bytes_max, min_one, self._clock.monotonic_s(), end_offset)
            if isinstance(found, Missing):
                return self._load(manifests, found)
        except ThermoclineError as failure:
            raise _of(manifest, offset, failure) from failure
        if found.found.length:
            self.hits += 1
            self.sent_bytes += found.found.length
            opened, end = found.opened, found.end
            following = (place[0], place[1], end.offset)
            if end.position < opened.footer.log_bytes:
                self._table.places.add(following, opened.entry.uuid.int, end.position)
            self._prefetcher.served(manifests, place, following, opened, end.position)
        return found.found

    def want_root(self, topic_id: UUID, partition: int, read: Callable[[], Awaitable[None]]) -> asyncio.Future[None]:
        """A future that is done when `read` has read the partition's root. Raises as `read`."""
        return self._loader.want_root((topic_id.int, partition, ROOT), read)

    def _load(self, manifests: ManifestView, missing: Missing) -> asyncio.Future[None]:
        opened, index = missing.opened, missing.chunk
        if opened is None:
            self.misses += 1
            return self._loader.want_place(manifests, missing.place)
        if (opened.entry.uuid.int, index) not in self._loader.flights:
            self.misses += 1
        waiting = self._loader.want_chunk(manifests, opened, index)
        self._prefetcher.read_on(manifests, missing.place, opened, index)
        return waiting

    async def offset_for_timestamp(
        self, manifests: ManifestView, timestamp_ms: int, before_offset: int
    ) -> TimestampOffset | None:
        """(timestamp, offset) of the first cold record below `before_offset` not older than `timestamp_ms`; None if
        there is none. Raises as `read`."""
        manifest = manifests.manifest
        if manifest is None:
            raise Retryable("the manifest is not loaded yet; ask again")
        try:
            start = manifest.log_start_offset
            for _ in range(MOVES_MAX):
                with suppress(Moved):
                    return await find_by_timestamp(
                        self._loader, manifests, self._workers, timestamp_ms, start, before_offset
                    )
            return await find_by_timestamp(self._loader, manifests, self._workers, timestamp_ms, start, before_offset)
        except ThermoclineError as failure:
            raise _of(manifest, manifest.log_start_offset, failure) from failure

    async def forget(self, keys: Collection[SegmentKey]) -> None:
        """The objects were deleted: drop their loaded data, including the disk space of a directory bucket's open
        files."""
        self._table.forget({key.uuid.int for key in keys})
        await self._cache.drop_segments({str(key) for key in keys})

    # ── the chunk cache's room, and figures ──────────────────────────────────────────────────────────────────────
    @property
    def cached_bytes(self) -> int:
        """Bytes of chunks on disk."""
        return self._cache.nbytes

    @property
    def cache_limit_bytes(self) -> int:
        """Current limit of `cached_bytes`."""
        return self._cache.bytes_max

    async def resize_cache(self, bytes_max: int) -> None:
        """Set another limit for the chunk cache; the excess is evicted at once. Raises OSError."""
        await self._cache.resize(bytes_max)

    @property
    def waiting(self) -> int:
        """Loads that readers wait for, running or queued."""
        return len(self._loader.flights.asked)

    def figures(self) -> dict[str, float]:
        """Counters by their names in /metrics."""
        counts, flights = self._loader.counts, self._loader.flights
        return {
            "cold_cache_hits": self.hits,
            "cold_cache_misses": self.misses,
            "cold_read_bytes": self.sent_bytes,
            "cold_fetched_bytes": self._source.fetched_bytes,
            "cold_fetch_requests": self._source.requests,
            "cold_loads": counts.loads,
            "cold_read_errors": flights.errors,
            "cold_read_retries": flights.retries + self._source.retries,
            "cold_queue_full": flights.queue_full,
            "cold_reads_waiting": self.waiting,
            "cold_read_seconds": counts.seconds,
            "prefetched_chunks": counts.prefetched,
            "cold_cache_bytes": self.cached_bytes,
            "cold_cache_limit_bytes": self.cache_limit_bytes,
            "cold_cache_evictions": self._cache.counts.evictions,
            "cold_cache_refused_chunks": self._cache.counts.uncached,
        }

    def _note_latency(self, seconds: float) -> None:
        self.latency_buckets[bisect_left(LATENCY_BOUNDS_MS, seconds * 1000)] += 1


def open_cold_reader(
    store: ObjectStore, world: World, tasks: Tasks, cache_directory: str, limits: TierLimits
) -> ColdReader:
    """A broker's reader, with its chunk cache in `cache_directory` (absolute). `start` first; `close` last."""
    cache = ChunkCache(world.disk, world.workers, cache_directory, limits.cache_bytes_max)
    return ColdReader(store, cache, world.workers, tasks, world.clock, world.rng, read_limits(limits))


def _of(manifest: Manifest, offset: int, failure: ThermoclineError) -> ThermoclineError:
    """The same kind of failure, with partition and offset."""
    message = f"{manifest.topic}-{manifest.partition} offset {offset}: {failure}"
    for kind in (ObjectMissing, AccessRefused, Corrupt, Retryable, InvalidRequest):
        if isinstance(failure, kind):
            return kind(message)
    return failure
