"""Source of cold bytes.

Footers are read by tail GETs. Chunks come from the chunk cache or the bucket; on a directory bucket they come from the
object's file. `load` checks a chunk's length and CRC32C against the segment's footer in a worker, so its bytes are in
the page cache (C25). On a directory bucket each `load` and `still_there` look up the object's name: the removal of an
object is detected at the next chunk. The object's file is never copied into the cache; `sendfile` reads it in place
(design 6). `loader` has at most one request for a chunk at a time.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Final

from crc32c import crc32c

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest_entries import RemoteSegment
from coldstore.object_store import ObjectMissing, ObjectStore
from coldstore.segments.chunk_cache import ChunkCache
from coldstore.segments.segment_object import SegmentFooter
from coldstore.segments.segment_reader import ChunkRef, chunk_ref, fetch_committed_footer
from logformat.errors import Corrupt
from seams.files.disk import File, FileRange
from seams.loop.workers import Lane, Workers
from tiering.reading.batch_slices import OpenSegment
from tiering.reading.limits import RANGE_BYTES_MAX

_PAUSES_S: Final = (0.0, 0.02, 0.04, 0.08)
"""Pauses before repeated loads of a damaged chunk: five loads within remote.fetch.max.wait.ms."""

_PIECE_BYTES: Final = 1 << 20
"""Read and checked at once. After each piece the worker waits for the GIL, so larger pieces are faster, until they
exceed the CPU caches."""


class ChunkSource:
    """Footers and chunks of the objects in `store`."""

    def __init__(self, store: ObjectStore, cache: ChunkCache, workers: Workers) -> None:
        self._store = store
        self._cache = cache
        self._workers = workers
        self._spare: list[memoryview] = []  # reused, because allocating a buffer takes as long as its CRC
        self.is_directory: bool | None = None  # whether objects are local files; None until the first chunk was loaded
        self.fetched_bytes = 0
        self.requests = 0
        self.retries = 0

    async def footer(self, key: SegmentKey, entry: RemoteSegment) -> SegmentFooter:
        """The footer of the object that a manifest names by `entry`. Raises as `fetch_committed_footer`."""
        return await fetch_committed_footer(self._store, key, entry)

    async def load(self, opened: OpenSegment, index: int) -> FileRange:
        """The chunk, checked. Raises Corrupt, ObjectMissing, AccessRefused, Retryable, OSError."""
        chunk = chunk_ref(opened.footer, opened.key, index)
        # A repeated load recovers from a bit flipped in transit, but not at rest. A proxy that damages many answers, or
        # caches a damaged one, needs more than two tries.
        for pause_s in _PAUSES_S:
            try:
                return await self._load(chunk, opened.footer.object_bytes)
            except Corrupt:
                self.retries += 1
                if self.is_directory:
                    break  # the page cache gives the same bytes again
                await asyncio.sleep(pause_s)
        return await self._load(chunk, opened.footer.object_bytes)

    async def still_there(self, opened: OpenSegment) -> None:
        """Directory bucket: raises ObjectMissing if the object's name is gone, or now belongs to another file."""
        if self.is_directory is not False:
            await self._workers.run(self._check_name, opened, lane=Lane.COLD_READ)

    async def _load(self, chunk: ChunkRef, object_bytes: int) -> FileRange:
        if self.is_directory is not False:
            file = await self._workers.run(self._open_checked, chunk, object_bytes, lane=Lane.COLD_READ)
            self.is_directory = file is not None
            if file is not None:
                return FileRange(file, chunk.position, chunk.length)
        cached = await self._cache.find(chunk)
        if cached is None:
            cached = await self._cache.put(chunk, await self._fetch(chunk))
        return FileRange(cached, 0, chunk.length)

    async def _fetch(self, chunk: ChunkRef) -> bytes:
        """The chunk by ranged GETs of at most 4 MiB; the cache checks it."""
        parts: list[bytes] = []
        for at in range(0, chunk.length, RANGE_BYTES_MAX):
            length = min(RANGE_BYTES_MAX, chunk.length - at)
            self.requests += 1
            got = await self._store.get(chunk.key, chunk.position + at, length)
            parts.append(got.data)
        self.fetched_bytes += chunk.length
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check_name(self, opened: OpenSegment) -> None:
        file = self._store.open_local(str(opened.key))
        if file is None:
            return
        with closing(file):
            if file.size() != opened.footer.object_bytes:
                raise ObjectMissing(
                    f"{opened.key} has {file.size()} bytes, but {opened.footer.object_bytes} were committed"
                )

    def _open_checked(self, chunk: ChunkRef, object_bytes: int) -> File | None:
        """Blocking: the object's file, after the chunk was read and checked. None: not a directory bucket."""
        file = self._store.open_local(chunk.key)
        if file is None:
            return None
        try:
            scratch = self._spare.pop()
        except IndexError:
            scratch = memoryview(bytearray(_PIECE_BYTES))
        at, crc = 0, 0
        while at < chunk.length:
            piece = scratch[: min(len(scratch), chunk.length - at)]
            got = file.read_into(chunk.position + at, piece)
            if got < len(piece):
                break
            crc = crc32c(piece, crc)
            at += got
        self._spare.append(scratch)
        if at < chunk.length or crc != chunk.crc32c or file.size() != object_bytes:
            file.close()
            raise Corrupt(
                f"chunk {chunk.index} of {chunk.key} (bytes {chunk.position} to {chunk.position + chunk.length}) "
                "fails its CRC; run `thermocline bucket verify --deep`"
            )
        return file
