"""Chunks of segment objects on local disk: loaded once, checked twice, served as open files.

Owns the files of one directory, which it empties at start. Always true: a chunk is loaded by one task however many wait
for it, and that task goes on when they give up; nothing sees a chunk before its CRC32C was checked on the loaded bytes
and again on the file; a file's name is never used twice, and eviction unlinks a file while handles given out keep
reading it (T23); at most `bytes_max` bytes lie in the directory, and at most `loads_max` chunks are being loaded. Where
the disk refuses a chunk, the caller gets it in memory instead. Must not know segments, clients or the hot log.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from coldstore.cache_policy import CachePolicy
from coldstore.segment_reader import ChunkRef, chunk_is_whole
from logformat.errors import Corrupt, Retryable, ThermoclineError
from seams.disk import Buffer, Disk, File, remove_tree
from seams.tasks import Tasks
from seams.workers import Lane, Workers

log = logging.getLogger(__name__)

LOADS_MAX: Final = 8  # × 4 MiB of memory
WAITING_MAX: Final = 256  # chunks asked for and not loaded yet; beyond that callers are told to come back
OPEN_FILES_MAX: Final = 256
LOAD_DEADLINE_S: Final = 120.0

ChunkId = tuple[str, int]
Load = Callable[[ChunkRef], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class CachedChunk:
    """A checked chunk: its bytes are `[position, position + length)` of `file`, which stays readable while held."""

    file: File
    position: int
    length: int


@dataclass(slots=True)
class CacheCounts:
    """What happened so far, for metrics."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    uncached: int = 0
    damaged: int = 0


class MemoryFile:
    """A `File` over bytes, for a chunk that found no place on disk. Read-only."""

    __slots__ = ("_data", "_path")

    def __init__(self, data: bytes, path: str) -> None:
        self._data = data
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        raise OSError(errno.EROFS, "read-only", self._path)

    def read_at(self, position: int, length: int) -> bytes:
        return self._data[position : position + length]

    def read_into(self, position: int, buffer: memoryview) -> int:
        data = self._data[position : position + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def sync(self) -> None:
        return None

    def truncate(self, size: int) -> None:
        raise OSError(errno.EROFS, "read-only", self._path)

    def size(self) -> int:
        return len(self._data)

    def descriptor(self) -> int | None:
        return None

    def close(self) -> None:
        return None


class ChunkCache:
    """At most `bytes_max` bytes of chunks under `directory`. `start` first; `close` last."""

    def __init__(
        self,
        disk: Disk,
        workers: Workers,
        directory: str,
        bytes_max: int,
        *,
        loads_max: int = LOADS_MAX,
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
        self._loading: dict[ChunkId, asyncio.Task[CachedChunk | ThermoclineError]] = {}
        self._loads = asyncio.Semaphore(loads_max)
        self._tasks = Tasks(bound=WAITING_MAX + 1)
        self._sequence = 0
        self._refusing = False

    @property
    def nbytes(self) -> int:
        """Bytes of chunks on disk."""
        return self._policy.nbytes

    @property
    def bytes_max(self) -> int:
        """The limit of `nbytes` now."""
        return self._policy.bytes_max

    async def start(self) -> None:
        """Begin empty: what an earlier process left has no index and is not worth one. OSError from the disk."""
        await self._workers.run(self._wipe, lane=Lane.FILES)

    async def close(self) -> None:
        """Stop loading. Files stay until the next start."""
        await self._tasks.close()
        self._open.clear()

    # ── getting ──────────────────────────────────────────────────────────────────────────────────────────────────
    async def get(self, chunk: ChunkRef, load: Load, *, start: int = 0, length: int | None = None) -> CachedChunk:
        """The chunk, from the cache or by `load`; bytes `[start, start + length)` of it are in memory on return.

        Cancelling a get leaves the load running into the cache. Raises what `load` raises (Corrupt when its bytes are
        not the chunk's), Retryable when too much is waiting already.
        """
        chunk_id = (chunk.key, chunk.index)
        wanted = chunk.length - start if length is None else min(length, chunk.length - start)
        # While it is on its way the policy may know it already, its file is not there yet.
        if chunk_id not in self._loading and self._policy.visit(chunk_id, start):
            found = await self._from_disk(chunk_id, chunk, start, wanted)
            if found is not None:
                self.counts.hits += 1
                return found
        self.counts.misses += 1
        outcome = await self._outcome(self._load_task(chunk_id, chunk, load))
        self._policy.visit(chunk_id, start)
        return outcome

    def holds(self, chunk: ChunkRef) -> bool:
        """Whether the chunk is on disk now."""
        return (chunk.key, chunk.index) in self._policy

    async def resize(self, bytes_max: int) -> None:
        """Give disk back at once, or take more from now on."""
        await self._unlink(self._policy.resize(bytes_max))

    async def drop_segment(self, key: str) -> None:
        """Forget every chunk of an object that was deleted."""
        dropped = [chunk_id for chunk_id in self._policy.ids() if chunk_id[0] == key]
        for chunk_id in dropped:
            self._policy.remove(chunk_id)
        await self._unlink(dropped)

    async def _from_disk(self, chunk_id: ChunkId, chunk: ChunkRef, start: int, length: int) -> CachedChunk | None:
        path = self._paths[chunk_id]
        file = self._open.get(chunk_id)
        try:
            if file is not None:
                self._open.move_to_end(chunk_id)
                # The kernel may have dropped its pages: a worker reads them in, so that the loop never waits for them.
                await self._workers.run(file.read_at, start, length, lane=Lane.COLD_READ)
                return CachedChunk(file, 0, chunk.length)
            file = await self._workers.run(_open_checked, self._disk, path, chunk, lane=Lane.COLD_READ)
        except (OSError, Corrupt) as damaged:
            if self._paths.get(chunk_id) == path:  # else evicted meanwhile, and perhaps loaded again under another name
                log.warning("chunk cache: %s: %s; loading it again", chunk_id, damaged)
                self.counts.damaged += 1
                self._policy.remove(chunk_id)
                await self._unlink([chunk_id])
            return None
        if self._paths.get(chunk_id) == path:
            self._keep_open(chunk_id, file)
        return CachedChunk(file, 0, chunk.length)

    async def _outcome(self, task: asyncio.Task[CachedChunk | ThermoclineError]) -> CachedChunk:
        try:
            outcome = await asyncio.shield(task)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if task.cancelled() and not (me is not None and me.cancelling()):
                raise Retryable("the chunk cache is closing; fetch again") from None
            raise
        if isinstance(outcome, ThermoclineError):
            raise outcome
        return outcome

    # ── loading ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _load_task(
        self, chunk_id: ChunkId, chunk: ChunkRef, load: Load
    ) -> asyncio.Task[CachedChunk | ThermoclineError]:
        task = self._loading.get(chunk_id)
        if task is None:
            if len(self._loading) >= WAITING_MAX:
                raise Retryable(f"{WAITING_MAX} cold chunks are waited for already; fetch again")
            task = self._tasks.spawn(f"load chunk {chunk.index} of {chunk.key}", self._load(chunk_id, chunk, load))
            self._loading[chunk_id] = task
            task.add_done_callback(lambda _: self._loading.pop(chunk_id, None))
        return task

    async def _load(self, chunk_id: ChunkId, chunk: ChunkRef, load: Load) -> CachedChunk | ThermoclineError:
        """Errors the house knows are handed to the waiters as a value: a task nobody waits for any more has none."""
        try:
            async with self._loads, asyncio.timeout(LOAD_DEADLINE_S):
                data = await load(chunk)
                if not await self._workers.run(chunk_is_whole, chunk, data, lane=Lane.COLD_READ):
                    return Corrupt(f"chunk {chunk.index} of {chunk.key}: {len(data)} bytes fail its CRC")
                return await self._insert(chunk_id, chunk, data)
        except TimeoutError:
            return Retryable(f"chunk {chunk.index} of {chunk.key} did not come within {LOAD_DEADLINE_S:.0f} s")
        except ThermoclineError as failed:
            return failed

    async def _insert(self, chunk_id: ChunkId, chunk: ChunkRef, data: bytes) -> CachedChunk:
        self._sequence += 1
        path = f"{self._directory}/{self._sequence:016d}.chunk"
        admitted, evicted = self._policy.admit(chunk_id, chunk.length)
        if admitted:
            self._paths[chunk_id] = path
        await self._unlink(evicted)
        if not admitted:  # the limit was lowered under pressure, or is smaller than a chunk: said where that is done
            self.counts.uncached += 1
            return CachedChunk(MemoryFile(data, path), 0, chunk.length)
        try:
            file = await self._workers.run(_write_checked, self._disk, path, chunk, data, lane=Lane.COLD_READ)
        except (OSError, Corrupt) as refused:
            if not self._refusing:  # once a spell: each chunk of a replay would say the same
                log.warning("chunk cache: %s: %s; serving from memory until the disk takes chunks again", path, refused)
            self._refusing = True
            self.counts.uncached += 1
            self._policy.remove(chunk_id)
            await self._unlink([chunk_id])
            return CachedChunk(MemoryFile(data, path), 0, chunk.length)
        self._refusing = False
        if self._paths.get(chunk_id) == path:
            self._keep_open(chunk_id, file)
        else:  # evicted while it was written
            await self._workers.run(_unlink, self._disk, [path], lane=Lane.FILES)
        return CachedChunk(file, 0, chunk.length)

    def _keep_open(self, chunk_id: ChunkId, file: File) -> None:
        # Let go of, not closed: a handle given out is closed by its last holder.
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
        if paths:
            await self._workers.run(_unlink, self._disk, paths, lane=Lane.FILES)

    def _wipe(self) -> None:
        remove_tree(self._disk, self._directory)
        self._disk.make_dirs(self._directory)


def _open_checked(disk: Disk, path: str, chunk: ChunkRef) -> File:
    """Blocking. Raises OSError, Corrupt; on Corrupt nothing of the file was given to anybody."""
    file = disk.open(path)
    if file.size() != chunk.length or not chunk_is_whole(chunk, file.read_at(0, chunk.length)):
        file.close()
        raise Corrupt(f"{path} is not chunk {chunk.index} of {chunk.key} any more")
    return file


def _write_checked(disk: Disk, path: str, chunk: ChunkRef, data: bytes) -> File:
    """Blocking. No sync: after a power cut the directory is emptied anyway."""
    file = disk.open(path, write=True, create=True, exclusive=True)
    try:
        file.write_at(0, [data])
    finally:
        file.close()
    return _open_checked(disk, path, chunk)


def _unlink(disk: Disk, paths: Sequence[str]) -> None:
    for path in paths:
        try:
            disk.unlink(path)
        except FileNotFoundError:
            continue
