"""A cold log for tests of the read side: segment objects in a store, a manifest that names them, a patient reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coldstore.manifest.manifest import Manifest, RemoteSegment, new_manifest
from coldstore.object_store import ObjectStore
from coldstore.segments.chunk_cache import ChunkCache
from logformat.record_batch import read_header
from seams.clock import SystemClock
from seams.files.disk import Disk
from seams.files.posix_disk import PosixDisk
from seams.loop.tasks import Tasks
from seams.loop.workers import Workers
from seams.rng import SeededRng
from tests.support.fast_loop import FastClock
from tests.support.store.memory_store import upload_of
from tests.support.tier.cold_objects import MadeObject, segment_object
from tests.support.tier.cold_values import TOPIC_ID
from tests.support.workers import LoopWorkers
from tiering.reading.batch_slices import ColdSlice
from tiering.reading.cold_reader import ColdReader
from tiering.reading.limits import ReadLimits


@dataclass
class FixedManifests:
    """A `ManifestView` over one manifest that the test may replace; counts what it is asked."""

    manifest: Manifest | None
    fresher: Manifest | None = None
    finds: int = 0

    async def find(self, offset: int) -> RemoteSegment | None:
        self.finds += 1
        await asyncio.sleep(0)
        assert self.manifest is not None
        tail = self.manifest.tail
        at = self.manifest.tail_index(offset)
        return tail[at] if at < len(tail) and tail[at].base_offset <= offset else None

    async def find_by_timestamp(self, timestamp_ms: int, from_offset: int) -> RemoteSegment | None:
        assert self.manifest is not None
        for segment in self.manifest.tail[self.manifest.tail_index(from_offset) :]:
            if segment.max_timestamp_ms >= timestamp_ms:
                return segment
        return None

    async def reload_if_changed(self) -> bool:
        if self.fresher is None:
            return False
        self.manifest, self.fresher = self.fresher, None
        return True


@dataclass
class ColdLog:
    """Objects in offset order and their manifest."""

    objects: list[MadeObject]
    manifests: FixedManifests
    batches: list[tuple[int, int]] = field(default_factory=list)  # (base offset, position) in the log of all objects

    @property
    def bytes(self) -> bytes:
        return b"".join(made.log for made in self.objects)

    @property
    def end_offset(self) -> int:
        return self.objects[-1].entry.end_offset

    def bytes_from(self, offset: int) -> bytes:
        """From the batch that holds `offset`."""
        return self.bytes[max(position for base, position in self.batches if base <= offset) :]

    def key(self, number: int) -> str:
        return str(self.objects[number].key)


def manifest_of(objects: Sequence[MadeObject]) -> Manifest:
    manifest = new_manifest(TOPIC_ID, 0, 1, "events", {})
    for made in objects:
        manifest = manifest.add(made.entry)
    return manifest


def log_of(objects: list[MadeObject]) -> ColdLog:
    log = ColdLog(objects, FixedManifests(manifest_of(objects)))
    at, data = 0, log.bytes
    while at < len(data):
        header = read_header(data, at)
        log.batches.append((header.base_offset, at))
        at += header.size
    return log


def cold_log(segments: Sequence[Sequence[int]], *, base: int = 0, **options: int) -> ColdLog:
    """One object for each list of batch sizes (records in each). Options as for `segment_object`."""
    objects: list[MadeObject] = []
    for number, sizes in enumerate(segments):
        objects.append(segment_object(base, sizes, n=number + 1, **options))
        base += sum(sizes)
    return log_of(objects)


async def put(store: ObjectStore, log: ColdLog) -> None:
    for made in log.objects:
        await store.put_segment(str(made.key), upload_of(made.data))


async def a_reader(
    store: ObjectStore,
    workers: Workers,
    tasks: Tasks,
    cache_directory: str | Path,
    *,
    disk: Disk | None = None,
    clock: SystemClock | None = None,
    cache_bytes: int = 1 << 20,
    limits: ReadLimits | None = None,
) -> ColdReader:
    """A reader with an empty cache."""
    cache = ChunkCache(disk or PosixDisk(), workers, str(cache_directory), cache_bytes)
    reader = ColdReader(
        store,
        cache,
        workers,
        tasks,
        clock or SystemClock(),
        SeededRng(1),
        limits or ReadLimits(),
    )
    await reader.start()
    return reader


@asynccontextmanager
async def reading(
    store: ObjectStore, disk: Disk, workers: LoopWorkers, tasks: Tasks, **options: Any
) -> AsyncIterator[ColdReader]:
    """As `a_reader`, in virtual time, with the cache on `disk`. Closes the reader and `tasks`."""
    clock: Any = FastClock()
    reader = await a_reader(store, workers, tasks, "/cache", disk=disk, clock=clock, **options)  # type: ignore[arg-type]
    try:
        yield reader
    finally:
        await tasks.close()
        await reader.close()


def content(answer: ColdSlice) -> bytes:
    data = b"".join(part.file.read_at(part.position, part.length) for part in answer.ranges)
    assert len(data) == answer.length
    return data


async def fetch(reader: ColdReader, log: ColdLog, offset: int, bytes_max: int, *, min_one: bool = True) -> ColdSlice:
    """Ask until there is an answer, as a long poll does."""
    for _ in range(1000):
        found = reader.read(log.manifests, offset, bytes_max, min_one=min_one)
        if isinstance(found, ColdSlice):
            return found
        async with asyncio.timeout(120):
            await found
    raise AssertionError(f"no answer for offset {offset}")


async def drain(reader: ColdReader, log: ColdLog, offset: int, bytes_max: int) -> bytes:
    """From the batch that holds `offset` to the log's end, as a consumer reads: every answer is whole batches."""
    parts: list[bytes] = []
    while offset < log.end_offset:
        data = content(await fetch(reader, log, offset, bytes_max))
        at = 0
        while at < len(data):
            header = read_header(data, at)
            assert header.next_offset > offset, "an answer must bring its reader forward"
            at += header.size
            offset = header.next_offset
        assert at == len(data), "an answer ends where a batch ends"
        parts.append(data)
    return b"".join(parts)
