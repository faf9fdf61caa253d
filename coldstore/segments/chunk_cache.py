"""Cache of segment objects' chunks on local disk. Chunks are checked twice and served as open files.

The cache owns one directory, and empties it at the start. A chunk's CRC32C is checked on the received bytes and again
on the file before it is used. A file name is never reused, and an evicted file stays readable for its holders (T23). At
most `bytes_max` bytes are in the directory. If the disk refuses a chunk, the caller gets it in memory. The caller
(`tiering.reading.loader`) lets only one task at a time find and add a chunk.
"""

from __future__ import annotations

import errno
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import msgspec

from coldstore.segments.cache_policy import CachePolicy
from coldstore.segments.segment_reader import ChunkRef, chunk_is_whole
from logformat.errors import Corrupt
from seams.files.disk import Buffer, Disk, File, remove_tree
from seams.loop.workers import Lane, Workers

log = logging.getLogger(__name__)

OPEN_FILES_MAX: Final = 256

ChunkId = tuple[str, int]


@dataclass(slots=True)
class CacheCounts:
    """Counters for metrics."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    uncached: int = 0
    damaged: int = 0


class MemoryFile(msgspec.Struct, frozen=True, eq=False):
    """A read-only `File` over bytes, for a chunk without space on disk."""

    data: bytes
    path: str

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        raise OSError(errno.EROFS, "read-only", self.path)

    def read_at(self, position: int, length: int) -> bytes:
        return self.data[position : position + length]

    def read_into(self, position: int, buffer: memoryview) -> int:
        data = self.data[position : position + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def sync(self) -> None:
        return None

    def truncate(self, size: int) -> None:
        raise OSError(errno.EROFS, "read-only", self.path)

    def allocate_ahead(self, position: int, end: int) -> None:
        raise OSError(errno.EROFS, "read-only", self.path)

    def size(self) -> int:
        return len(self.data)

    def descriptor(self) -> int | None:
        return None

    def close(self) -> None:
        return None


class ChunkCache:
    """At most `bytes_max` bytes of chunks under `directory`. The caller calls `start` first and `close` last."""

    def __init__(
        self,
        disk: Disk,
        workers: Workers,
        directory: str,
        bytes_max: int,
        *,
        open_files_max: int = OPEN_FILES_MAX,
    ) -> None:
        self.counts = CacheCounts()
        self._disk = disk
        self._workers = workers
        self._directory = directory
        self._policy: CachePolicy[ChunkId] = CachePolicy(bytes_max)
        self._paths: dict[ChunkId, str] = {}
        self._open: OrderedDict[ChunkId, File] = OrderedDict()  # checked in this process, pages likely in memory
        self._open_files_max = open_files_max
        self._doomed: dict[str, None] = {}  # to be unlinked; a cancelled task may have left some
        self._sequence = 0
        self._refusing = False

    @property
    def nbytes(self) -> int:
        """Bytes of chunks on disk."""
        return self._policy.nbytes

    @property
    def bytes_max(self) -> int:
        """Current limit of `nbytes`."""
        return self._policy.bytes_max

    async def start(self) -> None:
        """Empty the directory, because chunks of an earlier process have no index. Raises OSError."""
        await self._workers.run(self._wipe, lane=Lane.FILES)

    def close(self) -> None:
        """Drop open files. Files stay on disk until the next start."""
        self._open.clear()

    # ── lookups ──────────────────────────────────────────────────────────────────────────────────────────────────
    async def find(self, chunk: ChunkRef) -> File | None:
        """The chunk's file, if the chunk is cached and the file is correct. Its bytes are then in memory. The file
        stays readable while this object exists."""
        chunk_id = (chunk.key, chunk.index)
        found = await self._from_disk(chunk_id, chunk) if self._policy.visit(chunk_id) else None
        self.counts.hits += found is not None
        self.counts.misses += found is None
        return found

    async def resize(self, bytes_max: int) -> None:
        """Change the limit. Chunks above it are evicted at once."""
        await self._unlink(self._policy.resize(bytes_max))

    async def drop_segments(self, keys: Collection[str]) -> None:
        """Forget every chunk of deleted objects."""
        dropped = [chunk_id for chunk_id in self._policy.ids() if chunk_id[0] in keys]
        for chunk_id in dropped:
            self._policy.remove(chunk_id)
        await self._unlink(dropped)

    async def _from_disk(self, chunk_id: ChunkId, chunk: ChunkRef) -> File | None:
        path = self._paths[chunk_id]
        file = self._open.get(chunk_id)
        try:
            if file is not None:
                self._open.move_to_end(chunk_id)
                # The kernel may have dropped the file's pages. A worker reads them, so that the loop does not wait.
                await self._workers.run(file.read_at, 0, chunk.length, lane=Lane.COLD_READ)
                return file
            file = await self._workers.run(_open_checked, self._disk, path, chunk, lane=Lane.COLD_READ)
        except (OSError, Corrupt) as damaged:
            if self._paths.get(chunk_id) == path:  # otherwise it was evicted meanwhile
                log.warning("chunk cache: %s: %s; loading it again", chunk_id, damaged)
                self.counts.damaged += 1
                self._policy.remove(chunk_id)
                await self._unlink([chunk_id])
            return None
        if self._paths.get(chunk_id) == path:
            self._keep_open(chunk_id, file)
        return file

    # ── additions ────────────────────────────────────────────────────────────────────────────────────────────────
    async def put(self, chunk: ChunkRef, data: bytes) -> File:
        """Add a chunk that `find` did not find, and return its file. Raises Corrupt if `data` is not the chunk."""
        if not await self._workers.run(chunk_is_whole, chunk, data, lane=Lane.COLD_READ):
            raise Corrupt(f"chunk {chunk.index} of {chunk.key}: {len(data)} bytes fail its CRC")
        cached = await self._insert((chunk.key, chunk.index), chunk, data)
        self._policy.visit((chunk.key, chunk.index))
        return cached

    async def _insert(self, chunk_id: ChunkId, chunk: ChunkRef, data: bytes) -> File:
        self._sequence += 1
        path = f"{self._directory}/{self._sequence:016d}.chunk"
        admitted, evicted = self._policy.admit(chunk_id, chunk.length)
        if admitted:
            self._paths[chunk_id] = path
        await self._unlink(evicted)
        if not admitted:  # the limit is below a chunk; it may have been lowered under pressure, which is logged
            self.counts.uncached += 1
            return MemoryFile(data, path)

        def is_kept() -> bool:
            return self._paths.get(chunk_id) == path

        try:
            file = await self._workers.run(_write_checked, self._disk, path, chunk, data, is_kept, lane=Lane.COLD_READ)
        except (OSError, Corrupt) as refused:
            if not self._refusing:  # a warning once, not for each chunk
                log.warning("chunk cache: %s: %s; serving from memory until the disk takes chunks again", path, refused)
            self._refusing = True
            self.counts.uncached += 1
            self._policy.remove(chunk_id)
            await self._unlink([chunk_id])
            return MemoryFile(data, path)
        self._refusing = False
        if is_kept():
            self._keep_open(chunk_id, file)
        return file

    def _keep_open(self, chunk_id: ChunkId, file: File) -> None:
        # Files are dropped here, not closed: the last holder of a file closes it.
        self._open[chunk_id] = file
        self._open.move_to_end(chunk_id)
        while len(self._open) > self._open_files_max:
            self._open.popitem(last=False)

    async def _unlink(self, evicted: Sequence[ChunkId]) -> None:
        paths = []
        for chunk_id in evicted:
            self._open.pop(chunk_id, None)
            path = self._paths.pop(chunk_id, None)
            if path is not None:
                paths.append(path)
        self.counts.evictions += len(paths)
        self._doomed.update(dict.fromkeys(paths))
        if self._doomed:
            paths = list(self._doomed)
            await self._workers.run(_unlink, self._disk, paths, lane=Lane.FILES)
            for path in paths:
                self._doomed.pop(path, None)

    def _wipe(self) -> None:
        remove_tree(self._disk, self._directory)
        self._disk.make_dirs(self._directory)


def _open_checked(disk: Disk, path: str, chunk: ChunkRef) -> File:
    """Open a chunk's file and check its content. Blocking. Raises OSError, Corrupt."""
    file = disk.open(path)
    if file.size() != chunk.length or not chunk_is_whole(chunk, file.read_at(0, chunk.length)):
        file.close()
        raise Corrupt(f"{path} no longer holds chunk {chunk.index} of {chunk.key}")
    return file


def _write_checked(disk: Disk, path: str, chunk: ChunkRef, data: bytes, is_kept: Callable[[], bool]) -> File:
    """Write a chunk's file and check it. Blocking. There is no sync, because a start empties the directory. A chunk
    that was evicted meanwhile, perhaps before its file was made, loses its name here: its task may be cancelled."""
    file = disk.open(path, write=True, create=True, exclusive=True)
    try:
        with closing(file):
            file.write_at(0, [data])
        return _open_checked(disk, path, chunk)
    finally:
        if not is_kept():
            _unlink(disk, [path])


def _unlink(disk: Disk, paths: Sequence[str]) -> None:
    for path in paths:
        try:
            disk.unlink(path)
        except FileNotFoundError:
            continue
