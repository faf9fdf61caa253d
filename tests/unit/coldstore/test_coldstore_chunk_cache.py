"""The chunk cache: its policy under scans, and its files under races, damage and full disks."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from coldstore.segments.cache_policy import CachePolicy
from coldstore.segments.chunk_cache import ChunkCache, MemoryFile, _write_checked
from coldstore.segments.segment_reader import ChunkRef
from logformat.errors import Corrupt
from seams.files.disk import File
from seams.loop.workers import Lane
from tests.support.disk.crash_disk import CrashDisk
from tests.support.fast_loop import run_fast
from tests.support.workers import LoopWorkers

SIZE = 1000


def content(n: int) -> bytes:
    return (b"%06d" % n) * (SIZE // 6) + b"...."


def ref(n: int, key: str = "topics/x/0/segments/a.log") -> ChunkRef:
    return ChunkRef(key, n, n * SIZE, SIZE, crc32c(content(n)))


class Source:
    """What the store would give; counts. One task at a time asks for a chunk, as `tiering.reading.loader` sees to."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.loads: list[int] = []
        self.seconds = seconds
        self.change: Callable[[bytes], bytes] = lambda data: data
        self.turns: dict[tuple[str, int], asyncio.Lock] = {}

    async def load(self, chunk: ChunkRef) -> bytes:
        self.loads.append(chunk.index)
        await asyncio.sleep(self.seconds)
        return self.change(content(chunk.index))


async def get(cache: ChunkCache, chunk: ChunkRef, source: Source) -> File:
    async with source.turns.setdefault((chunk.key, chunk.index), asyncio.Lock()):
        found = await cache.find(chunk)
        return await cache.put(chunk, await source.load(chunk)) if found is None else found


async def opened(
    chunks: int, disk: CrashDisk | None = None, workers: LoopWorkers | None = None, **options: int
) -> tuple[ChunkCache, CrashDisk]:
    disk = disk or CrashDisk()
    disk.make_dirs("/data")
    cache = ChunkCache(disk, workers or LoopWorkers(), "/data/cache", chunks * SIZE, **options)  # type: ignore[arg-type]
    await cache.start()
    return cache, disk


def files(disk: CrashDisk) -> list[str]:
    return disk.list_dir("/data/cache")


# ── the policy ───────────────────────────────────────────────────────────────────────────────────────────────────────
OP = st.tuples(st.sampled_from(["admit", "admit", "visit", "remove", "resize"]), st.integers(0, 12))


@given(st.lists(OP, max_size=120), st.integers(0, 60))
def test_the_budget_holds_whatever_happens(ops: list[tuple[str, int]], budget: int) -> None:
    """Sizes never add up to more than the budget, and the policy says of every item that leaves that it did."""
    policy: CachePolicy[int] = CachePolicy(budget)
    here: dict[int, int] = {}
    for op, n in ops:
        if op == "admit" and n not in here:
            admitted, evicted = policy.admit(n, n + 1)
            for gone in evicted:
                del here[gone]
            assert admitted == (n + 1 <= budget)
            if admitted:
                here[n] = n + 1
        elif op == "visit":
            assert policy.visit(n) == (n in here)
        elif op == "remove":
            assert policy.remove(n) == (n in here)
            here.pop(n, None)
        elif op == "resize":
            budget = n * 5
            for gone in policy.resize(budget):
                del here[gone]
        assert sorted(policy.ids()) == sorted(here) and policy.nbytes == sum(here.values()) <= budget


def test_a_scan_does_not_push_out_what_is_used_again() -> None:
    """Ten chunks read over and over survive a replay of a thousand others, of which each is read once; a plain FIFO or
    LRU of this size would have lost them all."""
    policy: CachePolicy[int] = CachePolicy(20)
    loads = 0

    def read(n: int) -> None:
        nonlocal loads
        if not policy.visit(n):
            policy.admit(n, 1)
            policy.visit(n)
            loads += n < 10

    for _ in range(3):
        for n in range(10):
            read(n)
    before = loads
    for scanned in range(100, 1100):
        read(scanned)
        read(scanned % 10)
    assert loads == before == 10


def test_what_comes_back_soon_is_kept() -> None:
    """Evicted unread, asked for again: a ghost returns among the proven ones."""
    policy: CachePolicy[int] = CachePolicy(10)
    for n in range(11):
        policy.admit(n, 1)
    assert 0 not in policy
    policy.admit(0, 1)
    for n in range(20, 60):
        policy.admit(n, 1)
    assert 0 in policy


# ── the files ────────────────────────────────────────────────────────────────────────────────────────────────────────
async def test_a_chunk_is_loaded_once_and_served_from_its_file() -> None:
    cache, disk = await opened(4)
    source = Source()
    for _ in range(3):
        found = await get(cache, ref(2), source)
        assert found.read_at(0, SIZE) == content(2)
    assert source.loads == [2] and len(files(disk)) == 1
    assert (cache.counts.hits, cache.counts.misses) == (2, 1)


async def test_bytes_on_disk_are_bounded() -> None:
    cache, disk = await opened(5)
    source = Source()
    for n in range(40):
        await get(cache, ref(n), source)
        assert cache.nbytes <= 5 * SIZE
        assert sum(disk.open(f"/data/cache/{name}").size() for name in files(disk)) <= 5 * SIZE
    await cache.resize(2 * SIZE)
    assert len(files(disk)) == 2
    assert cache.counts.evictions == 38


async def test_peer_t23_eviction_never_takes_a_file_from_who_has_it() -> None:
    """KAFKA-15481: the eviction of an index deleted the file that another thread had just fetched again. Here the
    handle given out keeps reading; the chunk fetched again lies under another name."""
    cache, disk = await opened(1)
    source = Source()
    held = await get(cache, ref(0), source)
    first_path = held.path
    await get(cache, ref(1), source)
    assert first_path.rsplit("/", 1)[1] not in files(disk)
    assert held.read_at(0, SIZE) == content(0)
    again = await get(cache, ref(0), source)
    assert again.path != first_path and held.read_at(0, SIZE) == content(0)


async def test_peer_t23_evicted_while_it_is_fetched_again() -> None:
    """KAFKA-15481 as a race: many chunks through a cache of one, concurrently; everybody gets the right bytes, nothing
    is left over."""
    cache, disk = await opened(1)
    source = Source(seconds=0.01)

    async def reader(seed: int) -> None:
        for step in range(30):
            n = (seed * 7 + step * 3) % 5
            found = await get(cache, ref(n), source)
            assert found.read_at(0, SIZE) == content(n)

    await asyncio.gather(*(reader(seed) for seed in range(6)))
    assert len(files(disk)) <= 1


async def test_peer_t25_a_poisoned_chunk_is_seen_by_nobody() -> None:
    """Aiven #760: a chunk cache was poisoned by wrong bytes. From the loader they are refused, not cached; the next try
    loads again."""
    cache, disk = await opened(4)
    source = Source()
    for bad in (lambda d: d[:-1], lambda d: d + b"x", lambda d: b"x" + d[1:], lambda d: b""):
        source.change = bad
        with pytest.raises(Corrupt):
            await get(cache, ref(1), source)
        assert files(disk) == []
    source.change = lambda d: d
    found = await get(cache, ref(1), source)
    assert found.read_at(0, SIZE) == content(1)


async def test_bytes_that_rot_on_the_cache_disk_are_not_served() -> None:
    """A file damaged while it was not open is checked when opened again, dropped, and loaded again."""
    cache, disk = await opened(8, open_files_max=1)
    source = Source()
    await get(cache, ref(0), source)
    (path,) = files(disk)
    await get(cache, ref(1), source)  # pushes the handle out
    disk.flip_bit(f"/data/cache/{path}", 500, 3)
    found = await get(cache, ref(0), source)
    assert found.read_at(0, SIZE) == content(0)
    assert source.loads == [0, 1, 0] and cache.counts.damaged == 1


async def test_a_file_deleted_behind_our_back_is_loaded_again() -> None:
    cache, disk = await opened(8, open_files_max=1)
    source = Source()
    await get(cache, ref(0), source)
    (path,) = files(disk)
    await get(cache, ref(1), source)
    disk.unlink(f"/data/cache/{path}")
    assert (await get(cache, ref(0), source)).read_at(0, SIZE) == content(0)


async def test_a_full_disk_means_memory_not_failure() -> None:
    disk = CrashDisk()
    cache, _ = await opened(8, disk)
    source = Source()
    disk.inject("write", errno.ENOSPC)
    found = await get(cache, ref(0), source)
    assert isinstance(found, MemoryFile) and found.read_at(10, 20) == content(0)[10:30]
    assert found.descriptor() is None and cache.nbytes == 0 and files(disk) == []
    again = await get(cache, ref(0), source)
    assert not isinstance(again, MemoryFile) and cache.counts.uncached == 1


async def test_a_cache_smaller_than_a_chunk_serves_from_memory() -> None:
    cache, disk = await opened(0)
    found = await get(cache, ref(0), Source())
    assert isinstance(found, MemoryFile) and files(disk) == []


def test_a_put_that_is_cut_off_at_any_moment_leaves_a_cache_that_is_right() -> None:
    """The deadline of a load may end it between admission and the last byte of the file: the next one who asks gets
    the chunk, from the file if it is whole, and the bytes on disk stay those that are counted."""

    async def scenario(trips: int) -> None:
        cache, disk = await opened(2)
        for n in (1, 2):
            await get(cache, ref(n), Source())
        putting = asyncio.get_running_loop().create_task(cache.put(ref(0), content(0)))
        for _ in range(trips):
            await asyncio.sleep(0)
        putting.cancel()
        await asyncio.gather(putting, return_exceptions=True)
        found = await get(cache, ref(0), Source())
        assert found.read_at(0, SIZE) == content(0)
        assert cache.nbytes == sum(disk.open(f"/data/cache/{name}").size() for name in files(disk)) <= 2 * SIZE

    for trips in range(8):
        run_fast(scenario(trips))


class LateWorkers(LoopWorkers):
    """The next write begins when `goes_on` is set, though its caller was cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.late: list[asyncio.Task[Any]] = []

    async def run(self, function: Callable[..., Any], *args: Any, lane: Lane = Lane.FILES) -> Any:
        async def late() -> Any:
            if function is _write_checked:
                await self.goes_on.wait()
            return await LoopWorkers.run(self, function, *args, lane=lane)

        self.late.append(asyncio.ensure_future(late()))
        return await asyncio.shield(self.late[-1])


async def test_a_write_that_outlives_its_load_and_its_chunk_leaves_no_file() -> None:
    """Regression: the disk made the file so late that the load had timed out and the chunk was evicted. The file took
    space beyond the limit until the next start."""
    workers = LateWorkers()
    cache, disk = await opened(1, workers=workers)
    putting = asyncio.ensure_future(cache.put(ref(1), content(1)))
    await asyncio.sleep(1)
    putting.cancel()
    await asyncio.wait([putting])
    await cache.resize(0)
    workers.goes_on.set()
    await asyncio.wait(workers.late)
    assert not files(disk) and cache.nbytes == 0


async def test_a_write_that_a_full_disk_refuses_after_the_eviction_leaves_no_file() -> None:
    """Regression: a full disk refused the bytes of a chunk that its watch had evicted meanwhile. The file that was made
    for them stayed until the next start."""
    workers = LateWorkers()
    cache, disk = await opened(1, workers=workers)
    putting = asyncio.ensure_future(cache.put(ref(1), content(1)))
    await asyncio.sleep(1)
    await cache.resize(0)
    disk.capacity_bytes = SIZE // 2
    workers.goes_on.set()
    assert isinstance(await putting, MemoryFile)
    assert not files(disk) and cache.nbytes == 0


async def test_a_deleted_segments_chunks_are_forgotten() -> None:
    cache, disk = await opened(8)
    source = Source()
    for key in ("a", "b"):
        for n in range(2):
            await get(cache, ref(n, key), source)
    await cache.drop_segments({"a"})
    assert await cache.find(ref(0, "a")) is None
    assert await cache.find(ref(1, "b")) is not None and len(files(disk)) == 2


async def test_a_restart_begins_empty() -> None:
    cache, disk = await opened(8)
    await get(cache, ref(0), Source())
    cache.close()
    again, _ = await opened(8, disk)
    assert files(disk) == [] and await again.find(ref(0)) is None
