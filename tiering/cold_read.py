"""Reading what only the bucket holds: an answer from chunks at hand, or a future to wait for them.

Owns the way from an offset to ranges of files, and reading ahead of sequential readers. Always true: `read` never
blocks and never awaits; an answer begins with the batch that holds the offset, ends where a batch ends, crosses chunk
and segment borders, and holds only bytes that were checked and brought into the page cache in this process (C25, G11);
a future carries no error, the next `read` raises it with topic and offset; a read that nobody waits for any more goes
on until its chunk is at hand. Must not know the wire, local logs, or why an offset is cold.

Hot path: an answer of 1 MiB from chunks at hand costs about 30 µs on a busy machine.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import Final, NamedTuple

from coldstore.chunk_cache import ChunkCache
from coldstore.keys import SegmentKey
from coldstore.manifest import Manifest
from coldstore.object_store import AccessRefused, ObjectMissing, ObjectStore
from coldstore.segment_reader import FooterCache
from coldstore.stores.metered import LATENCY_BOUNDS_MS
from logformat.errors import Corrupt, InvalidRequest, Retryable, ThermoclineError
from seams.clock import Clock
from seams.disk import FileRange
from seams.rng import Rng
from seams.tasks import Tasks
from seams.workers import Workers
from seams.world import World
from tiering.cold_hold import ChunkId, LogPlace
from tiering.cold_loader import ColdLimits, ColdLoader, ManifestView
from tiering.cold_slice import NOTHING, PLACE_BYTES, ColdSlice, HeldChunk, OpenSegment, Place, TooLarge, cut
from tiering.cold_source import RANGE_BYTES_MAX, ColdSource
from tiering.cold_time import TimestampOffset, find_by_timestamp
from tiering.prefetch import ChunkState, Streams, Unread, to_load
from tiering.tier_config import TierLimits

__all__ = ["ColdLimits", "ColdReader", "ColdSlice", "ManifestView", "cold_limits", "open_cold_reader"]

DEFAULT_LIMITS: Final = ColdLimits()
OPEN_AHEAD_MAX: Final = 4  # footers asked for at once, ahead of a reader of small segments
_KEEP_UNREAD_S: Final = 30.0


class _Missing(NamedTuple):
    """The chunk without which there is no answer."""

    opened: OpenSegment
    chunk: int


class ColdReader:
    """Cold bytes of every partition of a broker. `cache` may be None where the bucket is a directory."""

    def __init__(
        self,
        store: ObjectStore,
        cache: ChunkCache | None,
        footers: FooterCache,
        workers: Workers,
        tasks: Tasks,
        clock: Clock,
        rng: Rng,
        limits: ColdLimits = DEFAULT_LIMITS,
    ) -> None:
        self.hits = 0
        self.misses = 0
        self.sent_bytes = 0
        self.latency_buckets = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self._cache = cache
        self._tasks = tasks
        self._clock = clock
        self._streams = Streams(limits.prefetch_chunks)
        self._unread = Unread(limits.unread_bytes_max, _KEEP_UNREAD_S)
        self._source = ColdSource(store, cache, workers)
        self._loader = ColdLoader(self._source, footers, workers, tasks, clock, rng, limits)
        self._loader.on_loaded = self._note_latency
        self._loader.on_ahead = self._note_ahead
        self._loader.chunks.on_drop = self._unread.read
        self._workers = workers

    async def start(self) -> None:
        """Empty the chunk cache's directory. OSError."""
        if self._cache is not None:
            await self._cache.start()

    @property
    def cached_bytes(self) -> int:
        """Bytes of chunks on disk."""
        return 0 if self._cache is None else self._cache.nbytes

    @property
    def cache_limit_bytes(self) -> int:
        """The limit of `cached_bytes` now."""
        return 0 if self._cache is None else self._cache.bytes_max

    async def resize_cache(self, bytes_max: int) -> None:
        """Another limit for the chunk cache; what is over it goes at once. OSError."""
        if self._cache is not None:
            await self._cache.resize(bytes_max)

    async def close(self) -> None:
        """Stop loading. The tasks it was made with are their owner's to close."""
        if self._cache is not None:
            await self._cache.close()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────
    def read(
        self, manifests: ManifestView, offset: int, bytes_max: int, *, min_one: bool = False
    ) -> ColdSlice | asyncio.Future[None]:
        """Whole batches from the one that holds `offset`, at most `bytes_max` bytes; a first larger one if `min_one`.

        A future when that has to be loaded first: ask again when it is done. An empty slice when the first batch is
        larger than `bytes_max`. Raises what loading met: ObjectMissing, Corrupt, AccessRefused, Retryable (also: queue
        full, or the offset is not cold any more); asking again tries again.
        """
        manifest = manifests.manifest
        if manifest is None:
            raise Retryable(f"offset {offset}: the manifest is not loaded yet; fetch again")
        try:
            return self._read(manifests, manifest, offset, bytes_max, min_one)
        except ThermoclineError as failure:
            raise _of(manifest, offset, failure) from failure

    def _read(
        self, manifests: ManifestView, manifest: Manifest, offset: int, bytes_max: int, min_one: bool
    ) -> ColdSlice | asyncio.Future[None]:
        stream = (manifest.topic_id, manifest.partition, offset)
        place = self._loader.place(stream)
        if place is None:
            self.misses += 1
            return self._loader.want_place(manifests, stream)
        opened, position = place
        found = self._slice(opened, position, offset, bytes_max, min_one)
        if isinstance(found, _Missing):
            if not self._loader.is_loading((found.opened.entry.uuid, found.chunk)):
                self.misses += 1
            waiting = self._loader.want_chunk(manifests, found.opened, found.chunk)
            self._read_on(manifests, opened, position, self._streams.window(stream))
            return waiting
        answer, opened, end = found
        if answer.length:
            self.hits += 1
            self.sent_bytes += answer.length
            self._streams.served(stream, end.offset)
            following = (stream[0], stream[1], end.offset)
            if end.position < opened.footer.log_bytes:
                self._loader.places.add(following, opened.entry.uuid, end.position)
            self._read_on(manifests, opened, end.position, self._streams.window(following))
        return answer

    def _slice(
        self, opened: OpenSegment, position: int, offset: int, bytes_max: int, min_one: bool
    ) -> tuple[ColdSlice, OpenSegment, Place] | _Missing:
        """As much as is at hand, from one segment into the next; the segment and place where it ends."""
        ranges: list[FileRange] = []
        total = 0
        end = Place(position, offset)
        while True:
            part = self._part(opened, end.position, bytes_max - total, first=not total, min_one=min_one)
            if isinstance(part, _Missing):
                return part
            if part is None:
                break
            self._collect(opened, end.position, part.position, ranges)
            total += part.position - end.position
            end = part
            if end.position < opened.footer.log_bytes or total >= bytes_max:
                break
            following = self._loader.segments.beginning_at((opened.key.topic_id, opened.key.partition, end.offset))
            if following is None:
                break
            opened, end = following, Place(0, end.offset)
        return (ColdSlice(total, tuple(ranges)) if total else NOTHING), opened, end

    def _part(
        self, opened: OpenSegment, start: int, room: int, *, first: bool, min_one: bool
    ) -> Place | _Missing | None:
        """Where an answer from `start` ends in this segment; None when nothing fits; what is missing for the first."""
        force = first and min_one
        if room <= 0 and not force:
            return None
        # A header is looked at even where it does not fit: it says how large the batch is.
        want = min(start + max(room, PLACE_BYTES), opened.footer.log_bytes)
        at_hand, missing = self._at_hand(opened, start, want)
        if at_hand == start:
            return _Missing(opened, missing) if first else None
        found = cut(opened, start, min(want, at_hand), lambda at, length: self._read_at_hand(opened, at, length))
        if isinstance(found, Place):
            return found if found.position - start <= room or force else None
        if found is None:  # the header itself crosses into the next chunk
            return _Missing(opened, missing) if first else None
        return self._first_batch(opened, start, room, found, first=first, force=force)

    def _first_batch(
        self, opened: OpenSegment, start: int, room: int, batch: TooLarge, *, first: bool, force: bool
    ) -> Place | _Missing | None:
        """A batch that ends beyond what was looked at: all of it, or nothing."""
        if batch.end - start > room and not force:
            return None
        if batch.end - start > self._loader.chunks.batch_bytes_max:
            raise InvalidRequest(f"a batch of {batch.end - start} bytes is more than cold reads hold at once")
        at_hand, missing = self._at_hand(opened, start, batch.end)
        if at_hand < batch.end:
            return _Missing(opened, missing) if first else None
        return Place(batch.end, batch.next_offset)

    def _at_hand(self, opened: OpenSegment, start: int, want: int) -> tuple[int, int]:
        """Up to where the log bytes from `start` on are at hand (to the end of a chunk); the number of the next one."""
        index = opened.chunk_at(start)
        at = start
        while at < want:
            held = self._loader.chunk(opened, index)
            if held is None:
                break
            at = index * opened.footer.chunk_bytes + held.length
            index += 1
        return at, index

    def _read_at_hand(self, opened: OpenSegment, position: int, length: int) -> bytes:
        """Log bytes of chunks at hand: from the page cache, on the loop."""
        parts: list[bytes] = []
        end = position + length
        while position < end:
            held, start = self._held(opened, position)
            count = min(held.length - start, end - position)
            data = held.file.read_at(held.position + start, count)
            if len(data) != count:
                raise Retryable(f"{opened.key} ended early at {position}; fetch again")
            parts.append(data)
            position += count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _collect(self, opened: OpenSegment, start: int, end: int, ranges: list[FileRange]) -> None:
        """The ranges of log bytes [start, end), all at hand; chunks that are read to their end may go."""
        while start < end:
            held, skip = self._held(opened, start)
            chunk_id = (opened.entry.uuid, opened.chunk_at(start))
            count = min(held.length - skip, end - start)
            ranges.append(FileRange(held.file, held.position + skip, count))
            self._loader.chunks.read(chunk_id)
            self._unread.read(chunk_id)
            if skip + count == held.length:
                self._loader.chunks.used_up(chunk_id)
            start += count

    def _held(self, opened: OpenSegment, position: int) -> tuple[HeldChunk, int]:
        index = opened.chunk_at(position)
        held = self._loader.chunks.peek((opened.entry.uuid, index))
        assert held is not None, "looked at in this turn of the loop"
        return held, position - index * opened.footer.chunk_bytes

    # ── reading ahead ────────────────────────────────────────────────────────────────────────────────────────────
    def _read_on(self, manifests: ManifestView, opened: OpenSegment, position: int, window: int) -> None:
        """Somebody reads in order, and will ask for `position` next: load `window` chunks behind that one's."""
        if window:
            index = opened.chunk_at(min(position, opened.footer.log_bytes - 1))
            self._look_ahead(manifests, opened, index, window + 1)

    def _look_ahead(self, manifests: ManifestView, opened: OpenSegment, index: int, count: int) -> None:
        """Begin to load `count` chunks from chunk `index` of a segment on, and to open the segments they reach into."""
        free = self._loader.slots.free_ahead()
        if not free:
            return
        ahead: list[tuple[OpenSegment, int]] = []
        while len(ahead) < count:
            if index < len(opened.footer.chunk_crcs):
                ahead.append((opened, index))
                index += 1
                continue
            place = (opened.key.topic_id, opened.key.partition, opened.entry.end_offset)
            following = self._loader.segments.beginning_at(place)
            if following is None:
                self._open_ahead(manifests, place, count - len(ahead), opened.footer.chunk_bytes)
                break
            opened, index = following, 0
        room = self._unread.room(self._clock.monotonic_s())
        states = [self._state(segment, number) for segment, number in ahead]
        for number in to_load(states, room_bytes=room, places=free):
            self._loader.load_ahead(manifests, *ahead[number])

    def _open_ahead(self, manifests: ManifestView, place: LogPlace, count: int, chunk_bytes: int) -> None:
        """Open the segment at `place`, then load `count` chunks from there; meanwhile open small ones behind it."""
        manifest = manifests.manifest
        if manifest is None or not manifest.coverage_start <= place[2] < manifest.remote_end_offset:
            return

        def opened() -> None:
            segment = self._loader.segments.beginning_at(place)
            if segment is not None:
                self._look_ahead(manifests, segment, 0, count)

        self._loader.open_ahead(manifests, place, opened)
        at = manifest.tail_index(place[2])  # what pages hold is opened one after the other
        for entry in manifest.tail[at : at + OPEN_AHEAD_MAX]:
            if count <= 0:
                break
            if entry.base_offset > place[2]:
                self._loader.open_ahead(manifests, (place[0], place[1], entry.base_offset), _nothing)
            count -= -(-entry.log_bytes // chunk_bytes)

    def _state(self, opened: OpenSegment, index: int) -> tuple[ChunkState, int]:
        chunk_id = (opened.entry.uuid, index)
        length = min(opened.footer.chunk_bytes, opened.footer.log_bytes - index * opened.footer.chunk_bytes)
        if chunk_id in self._loader.chunks:
            return ChunkState.HELD, length
        if self._loader.is_loading(chunk_id):
            return ChunkState.LOADING, length
        return (ChunkState.FAILED if self._loader.has_failed(chunk_id) else ChunkState.ABSENT), length

    # ── times ────────────────────────────────────────────────────────────────────────────────────────────────────
    async def offset_for_timestamp(
        self, manifests: ManifestView, timestamp_ms: int, before_offset: int
    ) -> TimestampOffset | None:
        """The first cold record below `before_offset` that is not older than `timestamp_ms`: (timestamp, offset).

        None when there is none. Raises as `read`.
        """
        manifest = manifests.manifest
        if manifest is None:
            raise Retryable("the manifest is not loaded yet; ask again")
        try:
            return await find_by_timestamp(
                self._loader, manifests, self._workers, timestamp_ms, manifest.log_start_offset, before_offset
            )
        except ThermoclineError as failure:
            raise _of(manifest, manifest.log_start_offset, failure) from failure

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────
    async def forget(self, key: SegmentKey) -> None:
        """The object was deleted: give back what is kept of it."""
        self._loader.forget(key)
        if self._cache is not None:
            await self._cache.drop_segment(str(key))

    @property
    def waiting(self) -> int:
        """Loads that somebody waits for, running or queued."""
        return self._loader.waited_for

    def figures(self) -> dict[str, float]:
        """Counters by the names they have in /metrics."""
        counts = self._loader.counts
        cache = self._cache
        return {
            "cold_cache_hits": self.hits,
            "cold_cache_misses": self.misses,
            "cold_read_bytes": self.sent_bytes,
            "cold_fetched_bytes": self._source.fetched_bytes,
            "cold_fetch_requests": self._source.requests,
            "cold_loads": counts.loads,
            "cold_read_errors": counts.errors,
            "cold_read_retries": counts.retries,
            "cold_queue_full": counts.queue_full,
            "cold_reads_waiting": self.waiting,
            "cold_read_seconds": counts.seconds,
            "prefetched_chunks": counts.prefetched,
            "cold_cache_bytes": self.cached_bytes,
            "cold_cache_limit_bytes": self.cache_limit_bytes,
            "cold_cache_evictions": 0 if cache is None else cache.counts.evictions,
            "cold_cache_refused_chunks": 0 if cache is None else cache.counts.uncached,
        }

    def _note_latency(self, seconds: float) -> None:
        self.latency_buckets[bisect_left(LATENCY_BOUNDS_MS, seconds * 1000)] += 1

    def _note_ahead(self, chunk_id: ChunkId, nbytes: int) -> None:
        self._unread.add(chunk_id, nbytes, self._clock.monotonic_s())


def cold_limits(limits: TierLimits) -> ColdLimits:
    """A broker's limits as its cold reads take them.

    A chunk at hand keeps its file's disk space even when the cache evicted it: so at most a quarter of the cache is at
    hand, and half of that loaded ahead; but never less than one answer and somebody else's next chunk, however small
    the cache.
    """
    answer = -(-limits.answer_bytes_max // RANGE_BYTES_MAX) * RANGE_BYTES_MAX
    hold = min(DEFAULT_LIMITS.hold_bytes, max(limits.cache_bytes_max // 4, answer + RANGE_BYTES_MAX))
    return ColdLimits(
        queue_max=limits.cold_reads_waiting_max,
        concurrency=limits.cold_reads_max,
        prefetch_chunks=limits.prefetch_bytes // RANGE_BYTES_MAX,
        deadline_s=limits.store_timeout_s,
        hold_bytes=hold,
        unread_bytes_max=hold // 2,
    )


def open_cold_reader(
    store: ObjectStore, world: World, tasks: Tasks, cache_directory: str, limits: TierLimits
) -> ColdReader:
    """A broker's reader, with its chunk cache in `cache_directory` (absolute). `start` first; `close` last."""
    cache = ChunkCache(world.disk, world.workers, cache_directory, limits.cache_bytes_max)
    footers = FooterCache(store)
    return ColdReader(store, cache, footers, world.workers, tasks, world.clock, world.rng, cold_limits(limits))


def _nothing() -> None:
    """What follows when a segment was opened that nobody reads yet."""


def _of(manifest: Manifest, offset: int, failure: ThermoclineError) -> ThermoclineError:
    """The same kind of failure, saying for which partition and offset."""
    message = f"{manifest.topic}-{manifest.partition} offset {offset}: {failure}"
    for kind in (ObjectMissing, AccessRefused, Corrupt, Retryable, InvalidRequest):
        if isinstance(failure, kind):
            return kind(message)
    return failure
