"""Bringing cold things to hand: segments with their footers, checked chunks, exact places of offsets.

Owns what is at hand and the bounded work that adds to it. Always true: a chunk and a segment are loaded once however
many want them; at most `concurrency` loads run, holding at most `bytes_in_flight_max`, and at most `queue_max` more
that somebody waits for; a load goes on when its reader gave up; each ends by its deadline, and its failure is kept for
the next asker. An object that is missing makes the manifest be read again: it may have been expired or replaced (T4).
Must not know how answers are cut, nor who reads on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from coldstore.keys import SegmentKey
from coldstore.manifest import Manifest, RemoteSegment
from coldstore.object_store import ObjectMissing
from coldstore.retry import RetryBudget, with_retry
from coldstore.segment_object import tail_bytes
from coldstore.segment_reader import BLOCK_BYTES, FooterCache, LocatedBatch, find_in_block, index_position
from logformat.errors import Corrupt, Retryable, ThermoclineError
from logformat.record_batch import HEADER_SIZE
from seams.clock import Clock
from seams.rng import Rng
from seams.tasks import Tasks
from seams.workers import Lane, Workers
from tiering.cold_hold import ChunkId, HeldChunks, LogPlace, OpenSegments, Places
from tiering.cold_jobs import Jobs, Slots
from tiering.cold_slice import HeldChunk, OpenSegment
from tiering.cold_source import ColdSource

MIB: Final = 1 << 20
# How long a name on a directory bucket is believed to lead to its object: a stat in a worker four times a second and
# segment in use, so that an object moved aside fails its readers at once even where its chunks are at hand.
RECHECK_S: Final = 0.25

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class ManifestView(Protocol):
    """What a cold read asks of a partition's manifest (`ManifestStore`)."""

    @property
    def manifest(self) -> Manifest | None: ...
    async def find(self, offset: int) -> RemoteSegment | None: ...
    async def find_by_timestamp(self, timestamp_ms: int, from_offset: int) -> RemoteSegment | None: ...
    async def reload_if_changed(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ColdLimits:
    """Bounds of one broker's cold reads.

    `hold_bytes`: of chunks believed to stay in the page cache (the memory is the kernel's); `unread_bytes_max`: of
    chunks loaded ahead of readers, a share of that and of the chunk cache; `pin_s`: how long a chunk is kept for the
    reader that was told of it.
    """

    queue_max: int = 100
    concurrency: int = 10
    prefetch_chunks: int = 8
    bytes_in_flight_max: int = 64 * MIB
    deadline_s: float = 30.0
    hold_bytes: int = 256 * MIB
    unread_bytes_max: int = 128 * MIB
    pin_s: float = 30.0


@dataclass(slots=True)
class LoadCounts:
    """What happened so far. `seconds` is the time of loads that somebody waited for."""

    loads: int = 0
    retries: int = 0
    errors: int = 0
    queue_full: int = 0
    prefetched: int = 0
    seconds: float = 0.0


class ColdLoader:
    """See the module. Shared by all partitions of a broker."""

    def __init__(
        self,
        source: ColdSource,
        footers: FooterCache,
        workers: Workers,
        tasks: Tasks,
        clock: Clock,
        rng: Rng,
        limits: ColdLimits,
    ) -> None:
        self.counts = LoadCounts()
        self.chunks = HeldChunks(limits.hold_bytes, limits.pin_s)
        self.segments = OpenSegments()
        self.places = Places()
        self.slots = Slots(limits.concurrency, limits.bytes_in_flight_max)
        self.on_loaded: Callable[[float], None] = lambda _seconds: None
        self.on_ahead: Callable[[ChunkId, int], None] = lambda _chunk, _bytes: None
        self._source = source
        self._footers = footers
        self._workers = workers
        self._clock = clock
        self._rng = rng
        self._retry_budget = RetryBudget()  # of all readers: many that wait for a store that is away do not storm it
        self._limits = limits
        self._chunk_jobs: Jobs[ChunkId] = Jobs(tasks, clock, "cold chunk")
        self._place_jobs: Jobs[LogPlace] = Jobs(tasks, clock, "cold offset")

    @property
    def waited_for(self) -> int:
        """Loads a reader waits for: queued or running."""
        return len(self._place_jobs.asked) + len(self._chunk_jobs.asked)

    # ── chunks ───────────────────────────────────────────────────────────────────────────────────────────────────
    def chunk(self, opened: OpenSegment, index: int) -> HeldChunk | None:
        """The chunk if its bytes may be sent now. On a directory bucket also: its object was there a moment ago."""
        chunk_id = (opened.entry.uuid, index)
        if chunk_id not in self.chunks or not self._fresh(opened):
            return None
        return self.chunks.peek(chunk_id)

    def is_loading(self, chunk_id: ChunkId) -> bool:
        return chunk_id in self._chunk_jobs

    def has_failed(self, chunk_id: ChunkId) -> bool:
        return self._chunk_jobs.failed(chunk_id)

    def want_chunk(self, manifests: ManifestView, opened: OpenSegment, index: int) -> asyncio.Future[None]:
        """A future that is done when the chunk is there, or its loading failed. Raises the last failure, if untold."""
        chunk_id = (opened.entry.uuid, index)
        return self._want(self._chunk_jobs, chunk_id, lambda: self._load(manifests, opened, index))

    def load_ahead(self, manifests: ManifestView, opened: OpenSegment, index: int) -> None:
        """Load a chunk nobody waits for yet. The caller asked `slots.free_ahead`."""
        self.counts.prefetched += 1
        self._chunk_jobs.start((opened.entry.uuid, index), lambda: self._load(manifests, opened, index))

    async def read(self, manifests: ManifestView, opened: OpenSegment, position: int, length: int) -> bytes:
        """Log bytes of a segment, off the loop, loading what is not at hand. Raises what loading raises."""
        parts: list[bytes] = []
        end = position + length
        while position < end:
            index = opened.chunk_at(position)
            held = await self._hold(manifests, opened, index)
            start = position - index * opened.footer.chunk_bytes
            count = min(held.length - start, end - position)
            data = await self._workers.run(held.file.read_at, held.position + start, count, lane=Lane.COLD_READ)
            if len(data) != count:
                raise Retryable(f"chunk {index} of {opened.key} ended early; fetch again")
            parts.append(data)
            position += count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fresh(self, opened: OpenSegment) -> bool:
        if not self._source.is_directory:
            return True
        return self.segments.unseen_s(opened.entry.uuid, self._clock.monotonic_s()) <= RECHECK_S

    async def _hold(self, manifests: ManifestView, opened: OpenSegment, index: int) -> HeldChunk:
        chunk_id = (opened.entry.uuid, index)
        held = self.chunks.peek(chunk_id)
        if held is None or not self._fresh(opened):
            await self._chunk_jobs.finished(chunk_id, lambda: self._load(manifests, opened, index))
            held = self.chunks.peek(chunk_id)
        if held is None:
            raise Retryable(f"chunk {index} of {opened.key} was pushed out at once; fetch again")
        return held

    async def _load(self, manifests: ManifestView, opened: OpenSegment, index: int) -> None:
        chunk_id = (opened.entry.uuid, index)
        began_s = self._clock.monotonic_s()
        try:
            if chunk_id in self.chunks:
                await self._in_time(lambda: self._source.still_there(opened), 0)
            else:
                length = min(opened.footer.chunk_bytes, opened.footer.log_bytes)
                held = await self._in_time(lambda: self._load_checked(opened, index), length)
                self.counts.loads += 1
                asked = chunk_id in self._chunk_jobs.asked
                if not asked:
                    self.on_ahead(chunk_id, held.length)
                self.chunks.add(chunk_id, held, self._clock.monotonic_s(), pinned=asked)
            self.segments.seen(opened.entry.uuid, self._clock.monotonic_s())
        except ObjectMissing:
            await self._forget_missing(manifests, opened)
            raise
        finally:
            self._note_time(chunk_id in self._chunk_jobs.asked, began_s)

    async def _load_checked(self, opened: OpenSegment, index: int) -> HeldChunk:
        try:
            return await self._source.load(opened, index)
        except Corrupt:
            # A bit that flipped on the way is right the second time; one that flipped at rest is not.
            self.counts.retries += 1
            return await self._source.load(opened, index)

    # ── places and segments ──────────────────────────────────────────────────────────────────────────────────────
    def place(self, place: LogPlace) -> tuple[OpenSegment, int] | None:
        """Where the batch that holds the offset begins, if that is known without asking anybody."""
        known = self.places.get(place)
        if known is not None:
            opened = self.segments.get(known[0])
            if opened is not None:
                return opened, known[1]
            self.places.drop(place)
        beginning = self.segments.beginning_at(place)
        return None if beginning is None else (beginning, 0)

    def want_place(self, manifests: ManifestView, place: LogPlace) -> asyncio.Future[None]:
        """A future that is done when `place` is known and its first chunk is there, or this failed."""
        return self._want(self._place_jobs, place, lambda: self._locate(manifests, place))

    def open_ahead(self, manifests: ManifestView, place: LogPlace, then: Callable[[], None]) -> None:
        """Open the segment that begins at `place` before somebody waits for it."""
        if place not in self._place_jobs and not self._place_jobs.failed(place):
            self._place_jobs.start(place, lambda: self._open_only(manifests, place, then))

    async def open_at(self, manifests: ManifestView, offset: int) -> OpenSegment:
        """The segment that holds `offset`, with its footer. Raises Retryable when the manifest has none."""
        entry = await manifests.find(offset)
        if entry is None:
            await manifests.reload_if_changed()
            entry = await manifests.find(offset)
        if entry is None:
            raise Retryable(f"no cold segment holds offset {offset} (any more); fetch again")
        return await self.open(manifests, entry)

    async def open(self, manifests: ManifestView, entry: RemoteSegment) -> OpenSegment:
        """The segment that a manifest names by `entry`."""
        opened = self.segments.get(entry.uuid)
        if opened is None:
            manifest = manifests.manifest
            assert manifest is not None, "an entry came from it"
            key = entry.key(manifest.topic_id, manifest.partition)
            footer = await self._in_time(lambda: self._footers.get(key, entry), tail_bytes(entry.object_bytes))
            opened = OpenSegment(key, entry, footer)
            self.segments.add(opened)
        return opened

    def forget(self, key: SegmentKey) -> None:
        """The object is gone, or will be: nothing of it is at hand any more."""
        self.segments.drop(key.uuid)
        self.chunks.drop_segment(key.uuid)
        self._footers.drop(key)

    async def _open_only(self, manifests: ManifestView, place: LogPlace, then: Callable[[], None]) -> None:
        await self.open_at(manifests, place[2])
        then()

    async def _locate(self, manifests: ManifestView, place: LogPlace) -> None:
        began_s = self._clock.monotonic_s()
        try:
            opened = await self.open_at(manifests, place[2])
            position = await self._position(manifests, opened, place[2])
            self.places.add(place, opened.entry.uuid, position)
            self.chunks.pin((opened.entry.uuid, opened.chunk_at(position)), self._clock.monotonic_s())
        finally:
            self._note_time(place in self._place_jobs.asked, began_s)

    async def _position(self, manifests: ManifestView, opened: OpenSegment, offset: int) -> int:
        """Where the batch that holds `offset` begins: the index, then headers, chunk by chunk: a damaged chunk must not
        fail what lies before it."""
        footer = opened.footer
        position = index_position(footer, offset)
        while position + HEADER_SIZE <= footer.log_bytes:
            left = footer.chunk_bytes - position % footer.chunk_bytes
            length = min(BLOCK_BYTES, footer.log_bytes - position, left if left >= HEADER_SIZE else BLOCK_BYTES)
            block = await self.read(manifests, opened, position, length)
            found = await self._workers.run(find_in_block, block, position, offset, lane=Lane.COLD_READ)
            if isinstance(found, LocatedBatch):
                return found.position
            position = found
        raise Corrupt(f"{opened.key}: no batch holds offset {offset}")

    async def _forget_missing(self, manifests: ManifestView, opened: OpenSegment) -> None:
        """A 404 may mean that the manifest moved on. If it did, the next read starts from the new one."""
        self.chunks.drop_segment(opened.entry.uuid)
        try:
            if await manifests.reload_if_changed():
                self.forget(opened.key)
        except ThermoclineError:
            return  # the 404 is what the reader is told

    # ── the work ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _want(self, jobs: Jobs[K], key: K, run: Callable[[], Awaitable[None]]) -> asyncio.Future[None]:
        failure = jobs.take_failure(key)
        if failure is not None:
            raise failure
        if key not in jobs.asked and self.waited_for >= self._limits.concurrency + self._limits.queue_max:
            self.counts.queue_full += 1
            raise Retryable("cold queue full; fetch again")
        return jobs.start(key, run, asked=True)

    def _note_time(self, asked: bool, began_s: float) -> None:
        if asked:
            seconds = self._clock.monotonic_s() - began_s
            self.counts.seconds += seconds
            self.on_loaded(seconds)

    async def _in_time(self, attempt: Callable[[], Awaitable[T]], nbytes: int) -> T:
        """`attempt` in a place of its own, again after failures that may pass, until the deadline."""
        deadline_s = self._limits.deadline_s

        async def placed() -> T:
            await self.slots.take(nbytes)
            try:
                return await attempt()
            finally:
                self.slots.give_back(nbytes)

        try:
            async with asyncio.timeout(deadline_s):
                return await with_retry(
                    placed,
                    clock=self._clock,
                    rng=self._rng,
                    deadline_s=deadline_s,
                    budget=self._retry_budget,
                    failed=self._retried,
                )
        except TimeoutError:
            self.counts.errors += 1
            raise Retryable(f"the cold store did not answer within {deadline_s:.0f} s; fetch again") from None
        except ThermoclineError:
            self.counts.errors += 1
            raise

    def _retried(self, _failure: Retryable) -> None:
        self.counts.retries += 1
