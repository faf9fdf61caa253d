"""Where checked chunks come from: the chunk cache in front of a bucket, or the object's own file on a directory bucket.

Owns one decision (whether the bucket is a directory) and the two ways. Always true: what `load` returns had the length
and CRC32C that the segment's footer gives when it was read a moment ago, by a worker, so its bytes are in the page
cache (C25); on a directory bucket the object's name was looked up for it, so an object that was moved aside is missed
at the next chunk, and `still_there` asks for the name again. Must not know offsets, batches, who reads.

An object that lies on disk is never copied into a cache: `sendfile` takes it from where it is (design 6).
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from coldstore.chunk_cache import ChunkCache
from coldstore.object_store import ObjectMissing, ObjectStore
from coldstore.segment_reader import ChunkRef, chunk_ref
from logformat.errors import Corrupt, InvalidRequest
from seams.disk import File
from seams.workers import Lane, Workers
from tiering.cold_slice import HeldChunk, OpenSegment

RANGE_BYTES_MAX: Final = 4 << 20
_PIECE_BYTES: Final = 256 << 10


class ColdSource:
    """Chunks of the objects in `store`. `cache` may be None where the bucket is a directory."""

    def __init__(self, store: ObjectStore, cache: ChunkCache | None, workers: Workers) -> None:
        self._store = store
        self._cache = cache
        self._workers = workers
        self._is_directory: bool | None = None
        self.fetched_bytes = 0
        self.requests = 0

    @property
    def is_directory(self) -> bool:
        """Whether objects are local files; False until the first chunk was loaded."""
        return self._is_directory is True

    async def load(self, opened: OpenSegment, index: int) -> HeldChunk:
        """The chunk, checked. Raises Corrupt, ObjectMissing, AccessRefused, Retryable, OSError."""
        chunk = chunk_ref(opened.footer, opened.key, index)
        if self._is_directory is not False:
            file = await self._workers.run(self._open_checked, chunk, opened.footer.object_bytes, lane=Lane.COLD_READ)
            self._is_directory = file is not None
            if file is not None:
                return HeldChunk(file, chunk.position, chunk.length)
        if self._cache is None:
            raise InvalidRequest(f"{self._store.url} is not a directory and there is no chunk cache to read it through")
        cached = await self._cache.get(chunk, self._fetch)
        return HeldChunk(cached.file, cached.position, cached.length)

    async def still_there(self, opened: OpenSegment) -> None:
        """Directory bucket: ObjectMissing when the object's name is gone, or leads to something else."""
        await self._workers.run(self._check_name, opened, lane=Lane.COLD_READ)

    def _check_name(self, opened: OpenSegment) -> None:
        file = self._store.open_local(str(opened.key))
        if file is None:
            return
        try:
            if file.size() != opened.footer.object_bytes:
                raise ObjectMissing(
                    f"{opened.key} has {file.size()} bytes, {opened.footer.object_bytes} were committed"
                )
        finally:
            file.close()

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

    def _open_checked(self, chunk: ChunkRef, object_bytes: int) -> File | None:
        """Blocking: the object's file, after the chunk was read through and found right. None: not a directory."""
        file = self._store.open_local(chunk.key)
        if file is None:
            return None
        scratch = memoryview(bytearray(min(_PIECE_BYTES, chunk.length)))
        at, crc = 0, 0
        while at < chunk.length:
            piece = scratch[: min(len(scratch), chunk.length - at)]
            got = file.read_into(chunk.position + at, piece)
            if got < len(piece):
                break
            crc = crc32c(piece, crc)
            at += got
        if at < chunk.length or crc != chunk.crc32c or file.size() != object_bytes:
            file.close()
            raise Corrupt(
                f"chunk {chunk.index} of {chunk.key} (bytes {chunk.position} to {chunk.position + chunk.length}) "
                "fails its CRC; run `thermocline bucket verify --deep`"
            )
        return file
