"""Loads of cold data into `chunk_table`: segments with their footers, checked chunks, positions of offsets.

Readers of the same data share one load. A load continues if its reader gave up, up to the first requested chunk. After
a missing object the manifest is read again, because the object may have expired or been replaced (T4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest import Manifest, RemoteSegment
from coldstore.object_store import ObjectMissing
from coldstore.segments.segment_object import tail_bytes
from coldstore.segments.segment_reader import BLOCK_BYTES, find_in_block, index_position
from logformat.errors import Corrupt, Retryable, ThermoclineError
from logformat.record_batch import HEADER_SIZE
from seams.clock import Clock
from seams.files.disk import FileRange
from seams.loop.tasks import Tasks
from seams.loop.workers import Lane, Workers
from seams.rng import Rng
from tiering.reading.batch_slices import OpenSegment
from tiering.reading.chunk_table import ChunkId, ChunkTable, LogPlace, SegmentId
from tiering.reading.limits import ReadLimits
from tiering.reading.single_flight import SingleFlight
from tiering.reading.source import ChunkSource

# Time for which an object of a directory bucket is assumed to exist. A worker thus makes four stat calls a second for
# each segment in use, so that a removed object fails its readers at once even if its chunks are loaded.
RECHECK_S: Final = 0.25
FOR_EVER_S: Final = float("inf")

MOVES_MAX: Final = 3  # successive replacements of objects during one read
ROOT: Final = -1  # in place of the offset: the partition's root
Key = ChunkId | LogPlace | SegmentId  # a chunk, an offset's place with its first chunk, a segment's footer


class Moved(Retryable):
    """The object does not exist any more, and the manifest names another object at its offsets, or none."""


class ManifestView(Protocol):
    """Interface of a partition's manifest for cold reads (`ManifestStore`)."""

    @property
    def manifest(self) -> Manifest | None: ...
    async def find(self, offset: int) -> RemoteSegment | None: ...
    async def find_by_timestamp(self, timestamp_ms: int, from_offset: int) -> RemoteSegment | None: ...
    async def reload_if_changed(self) -> bool: ...


@dataclass(slots=True)
class LoadCounts:
    """Counters. `seconds`: time of loads that a reader waited for."""

    loads: int = 0
    prefetched: int = 0
    seconds: float = 0.0


class Loader:
    """Shared by all partitions of a broker. `on_loaded` gets each load's duration in seconds."""

    def __init__(
        self,
        table: ChunkTable,
        source: ChunkSource,
        workers: Workers,
        tasks: Tasks,
        clock: Clock,
        rng: Rng,
        limits: ReadLimits,
        on_loaded: Callable[[float], None],
    ) -> None:
        self.counts = LoadCounts()
        self._table = table
        self._source = source
        self._workers = workers
        self._clock = clock
        self._on_loaded = on_loaded
        self.flights: SingleFlight[Key] = SingleFlight(tasks, clock, rng, limits)

    # ── requests of readers: a future, done when another request may answer; raises the last unreported failure ──
    def want_place(self, manifests: ManifestView, place: LogPlace) -> asyncio.Future[None]:
        """A future that is done when `place` is known and its first chunk is loaded."""
        return self.flights.want(place, lambda: self._locate(manifests, place))

    def want_root(self, place: LogPlace, read: Callable[[], Awaitable[None]]) -> asyncio.Future[None]:
        """A future that is done when `read` has read the root of the partition of `place`."""
        return self.flights.want(place, lambda: self.flights.bounded(read, 0))

    def want_chunk(self, manifests: ManifestView, opened: OpenSegment, index: int) -> asyncio.Future[None]:
        """A future that is done when the chunk is loaded."""
        return self.flights.want((opened.entry.uuid.int, index), lambda: self._load(manifests, opened, index))

    # ── prefetch; the caller checked `flights.free_ahead` ───────────────────────────────────────────────────────────
    def load_ahead(self, manifests: ManifestView, opened: OpenSegment, index: int) -> None:
        self.counts.prefetched += 1
        self.flights.start((opened.entry.uuid.int, index), lambda: self._load(manifests, opened, index, ahead=True))

    def open_ahead(self, manifests: ManifestView, place: LogPlace, then: Callable[[OpenSegment], None]) -> None:
        """Open the segment that begins at `place`."""
        if place not in self.flights and not self.flights.failed(place):
            self.flights.start(place, lambda: self._open_ahead(manifests, place, then))

    async def _open_ahead(self, manifests: ManifestView, place: LogPlace, then: Callable[[OpenSegment], None]) -> None:
        opened = await self._open_at(manifests, place[2])
        if opened.entry.base_offset == place[2]:
            then(opened)

    # ── places ───────────────────────────────────────────────────────────────────────────────────────────────────
    async def _locate(self, manifests: ManifestView, place: LogPlace) -> None:
        """Find the batch that holds the offset; try again if an object was replaced meanwhile."""
        began_s = self._clock.monotonic_s()
        try:
            for _ in range(MOVES_MAX):
                with suppress(Moved):
                    return await self._locate_once(manifests, place)
            await self._locate_once(manifests, place)
        finally:
            self._note_time(place, began_s)

    async def _locate_once(self, manifests: ManifestView, place: LogPlace) -> None:
        """Find the batch by the index, then by headers, chunk by chunk, so that a damaged chunk does not affect earlier
        offsets. Raises Moved.
        """
        opened = await self._open_at(manifests, place[2])
        footer = opened.footer
        position = index_position(footer, place[2])
        while position + HEADER_SIZE <= footer.log_bytes:
            left = footer.chunk_bytes - position % footer.chunk_bytes
            length = min(BLOCK_BYTES, footer.log_bytes - position, left if left >= HEADER_SIZE else BLOCK_BYTES)
            block = await self.read(manifests, opened, position, length)
            position, is_found = find_in_block(block, position, place[2])
            if is_found:
                self._table.places.add(place, opened.entry.uuid.int, position)
                self._table.chunks.pin((opened.entry.uuid.int, opened.chunk_at(position)), self._clock.monotonic_s())
                return
        raise Corrupt(f"{opened.key}: no batch holds offset {place[2]}")

    async def read(self, manifests: ManifestView, opened: OpenSegment, position: int, length: int) -> bytes:
        """Log bytes of a segment, read off the loop; missing chunks are loaded. Raises the errors of loading."""
        parts: list[bytes] = []
        end = position + length
        while position < end:
            index = opened.chunk_at(position)
            held = await self._chunk(manifests, opened, index)
            start = position - index * opened.footer.chunk_bytes
            count = min(held.length - start, end - position)
            data = await self._workers.run(held.file.read_at, held.position + start, count, lane=Lane.COLD_READ)
            if len(data) != count:
                raise Retryable(f"chunk {index} of {opened.key} ended early; fetch again")
            parts.append(data)
            position += count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _chunk(self, manifests: ManifestView, opened: OpenSegment, index: int) -> FileRange:
        chunk_id = (opened.entry.uuid.int, index)
        held = self._table.chunks.peek(chunk_id)
        if held is None or not self._table.segments.is_there(opened.entry.uuid.int, self._clock.monotonic_s()):
            await self.flights.finished(chunk_id, lambda: self._load(manifests, opened, index))
            held = self._table.chunks.peek(chunk_id)
        if held is None and self._table.segments.get(opened.entry.uuid.int) is None:
            raise Moved(f"{opened.key} was replaced; fetch again")
        if held is None:
            raise Retryable(f"chunk {index} of {opened.key} was evicted before it was read; fetch again")
        return held

    # ── segments ─────────────────────────────────────────────────────────────────────────────────────────────────
    async def _open_at(self, manifests: ManifestView, offset: int) -> OpenSegment:
        manifest = manifests.manifest
        entry = await manifests.find(offset)
        if entry is None:
            await manifests.reload_if_changed()
            manifest = manifests.manifest
            entry = await manifests.find(offset)
        if entry is None:
            raise Retryable(f"no cold segment holds offset {offset} (any more); fetch again")
        opened = await self.open(manifests, entry)
        if manifest is not None:
            self._table.segments.note_pages(entry.uuid.int, manifest.pages)
        return opened

    async def open(self, manifests: ManifestView, entry: RemoteSegment) -> OpenSegment:
        """The segment that a manifest names by `entry`, with its footer. Raises Moved if the manifest names another
        object now."""
        opened = self._table.segments.get(entry.uuid.int)
        if opened is None:
            manifest = manifests.manifest
            assert manifest is not None, "an entry came from it"
            key = entry.key(manifest.topic_id, manifest.partition)
            try:
                await self.flights.finished(entry.uuid.int, lambda: self._load_footer(key, entry))
            except ObjectMissing:
                if await self._is_replaced(manifests, entry):
                    raise Moved(f"{key} was replaced; fetch again") from None
                raise
            opened = self._table.segments.get(entry.uuid.int)
        if opened is None:
            raise Retryable(f"segment {entry.uuid} was evicted before it was read; fetch again")
        return opened

    # ── the loads themselves ─────────────────────────────────────────────────────────────────────────────────────
    async def _load_footer(self, key: SegmentKey, entry: RemoteSegment) -> None:
        nbytes = tail_bytes(entry.object_bytes, entry.log_bytes)
        footer = await self.flights.bounded(lambda: self._source.footer(key, entry), nbytes)
        self._table.segments.add(OpenSegment(key, entry, footer))

    async def _load(self, manifests: ManifestView, opened: OpenSegment, index: int, ahead: bool = False) -> None:
        """Load a chunk; if it is loaded already, check that its object still exists."""
        chunk_id = (opened.entry.uuid.int, index)
        began_s = self._clock.monotonic_s()
        try:
            if chunk_id in self._table.chunks:
                await self.flights.bounded(lambda: self._source.still_there(opened), 0)
            else:
                length = min(opened.footer.chunk_bytes, opened.footer.log_bytes)
                held = await self.flights.bounded(lambda: self._source.load(opened, index), length)
                self.counts.loads += 1
                pinned = not ahead or chunk_id in self.flights.asked
                self._table.chunks.add(chunk_id, held, self._clock.monotonic_s(), pinned=pinned)
            believed_s = RECHECK_S if self._source.is_directory else FOR_EVER_S
            self._table.segments.seen(opened.entry.uuid.int, self._clock.monotonic_s() + believed_s)
        except ObjectMissing:
            self._table.chunks.drop_segments({opened.entry.uuid.int})
            if not await self._is_replaced(manifests, opened.entry):
                raise  # otherwise waiting readers try again, at their offset in the other object
        finally:
            self._note_time(chunk_id, began_s)

    async def _is_replaced(self, manifests: ManifestView, entry: RemoteSegment) -> bool:
        """Whether the missing object was replaced: the manifest may name another object, or none, at its offsets. The
        segment is then dropped, and the next read starts from the newest manifest."""
        try:
            await manifests.reload_if_changed()
            named = await manifests.find(entry.base_offset)
        except ThermoclineError:
            return False  # the reader gets the 404
        if named is not None and named.uuid == entry.uuid:
            return False
        self._table.forget({entry.uuid.int})
        return True

    def _note_time(self, key: ChunkId | LogPlace, began_s: float) -> None:
        if key in self.flights.asked:
            seconds = self._clock.monotonic_s() - began_s
            self.counts.seconds += seconds
            self._on_loaded(seconds)
