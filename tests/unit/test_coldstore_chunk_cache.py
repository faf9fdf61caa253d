"""The chunk cache: its policy under scans, and its files under races, damage and full disks."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from coldstore.cache_policy import CachePolicy
from coldstore.chunk_cache import ChunkCache, MemoryFile
from coldstore.segment_reader import ChunkRef
from logformat.errors import Corrupt, Retryable
from seams.workers import Lane
from tests.support.crash_disk import CrashDisk
from tests.support.fast_loop import run_fast

SIZE = 1000


class InlineWorkers:
    """Runs on the loop, one trip later."""

    async def run(self, function, *args, lane=Lane.FILES):  # type: ignore[no-untyped-def]
        await asyncio.sleep(0)
        return function(*args)


class SlowWrites(InlineWorkers):
    """A chunk takes a second to reach its file."""

    async def run(self, function, *args, lane=Lane.FILES):  # type: ignore[no-untyped-def]
        await asyncio.sleep(1 if function.__name__ == "_write_checked" else 0)
        return function(*args)


def content(n: int) -> bytes:
    return (b"%06d" % n) * (SIZE // 6) + b"...."


def ref(n: int, key: str = "topics/x/0/segments/a.log") -> ChunkRef:
    return ChunkRef(key, n, n * SIZE, SIZE, crc32c(content(n)))


class Source:
    """What the store would give; counts."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.loads: list[int] = []
        self.seconds = seconds
        self.change: Callable[[bytes], bytes] = lambda data: data
        self.running = self.running_max = 0

    async def load(self, chunk: ChunkRef) -> bytes:
        self.loads.append(chunk.index)
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        return self.change(content(chunk.index))


async def opened(
    chunks: int, disk: CrashDisk | None = None, workers: InlineWorkers | None = None, **options: int
) -> tuple[ChunkCache, CrashDisk]:
    disk = disk or CrashDisk()
    disk.make_dirs("/data")
    cache = ChunkCache(disk, workers or InlineWorkers(), "/data/cache", chunks * SIZE, **options)  # type: ignore[arg-type]
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
            assert policy.visit(n, 0) == (n in here)
        elif op == "remove":
            assert policy.remove(n) == (n in here)
            here.pop(n, None)
        elif op == "resize":
            budget = n * 5
            for gone in policy.resize(budget):
                del here[gone]
        assert sorted(policy.ids()) == sorted(here) and policy.nbytes == sum(here.values()) <= budget


def test_a_scan_does_not_push_out_what_is_used_again() -> None:
    """Ten chunks read over and over survive a replay of a thousand others, of which each is read once, in four
    fetches; a plain FIFO or LRU of this size would have lost them all."""
    policy: CachePolicy[int] = CachePolicy(20)
    loads = 0

    def read(n: int, position: int) -> None:
        nonlocal loads
        if not policy.visit(n, position):
            policy.admit(n, 1)
            policy.visit(n, position)
            loads += n < 10

    for _ in range(3):
        for n in range(10):
            read(n, 0)
    before = loads
    for scanned in range(100, 1100):
        for fetch in range(4):
            read(scanned, fetch * 250)
        read(scanned % 10, 0)
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
def test_a_chunk_is_loaded_once_and_served_from_its_file() -> None:
    async def scenario() -> None:
        cache, disk = await opened(4)
        source = Source()
        for _ in range(3):
            found = await cache.get(ref(2), source.load)
            assert found.file.read_at(found.position, found.length) == content(2)
        assert source.loads == [2] and len(files(disk)) == 1
        assert (cache.counts.hits, cache.counts.misses) == (2, 1)

    run_fast(scenario())


def test_many_who_want_one_chunk_cause_one_load() -> None:
    async def scenario() -> None:
        cache, _ = await opened(4)
        source = Source(seconds=1.0)
        found = await asyncio.gather(*(cache.get(ref(1), source.load) for _ in range(20)))
        assert source.loads == [1] and all(f.file.read_at(0, SIZE) == content(1) for f in found)

    run_fast(scenario())


def test_asked_for_at_any_moment_of_its_arrival() -> None:
    """Also between its admission and the end of its writing: those who come then wait for the same load."""

    async def scenario() -> None:
        cache, _ = await opened(4, workers=SlowWrites())
        source = Source()
        asking = []
        for _ in range(12):
            asking.append(asyncio.get_running_loop().create_task(cache.get(ref(1), source.load)))
            await asyncio.sleep(0.25)
        for found in await asyncio.gather(*asking):
            assert found.file.read_at(0, SIZE) == content(1)
        assert source.loads == [1] and cache.counts.damaged == 0

    run_fast(scenario())


def test_a_fetch_that_gives_up_leaves_the_load_running_into_the_cache() -> None:
    async def scenario() -> None:
        cache, _ = await opened(4)
        source = Source(seconds=5.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await cache.get(ref(1), source.load)
        await asyncio.sleep(6)
        assert cache.holds(ref(1))
        await cache.get(ref(1), source.load)
        assert source.loads == [1]

    run_fast(scenario())


def test_loads_are_bounded_and_beyond_the_queue_callers_are_sent_away() -> None:
    async def scenario() -> None:
        cache, _ = await opened(400, loads_max=3)
        source = Source(seconds=1.0)
        waiting = [asyncio.get_running_loop().create_task(cache.get(ref(n), source.load)) for n in range(256)]
        await asyncio.sleep(0.5)
        with pytest.raises(Retryable):
            await cache.get(ref(999), source.load)
        await asyncio.gather(*waiting)
        assert source.running_max == 3

    run_fast(scenario())


def test_bytes_on_disk_are_bounded() -> None:
    async def scenario() -> None:
        cache, disk = await opened(5)
        source = Source()
        for n in range(40):
            await cache.get(ref(n), source.load)
            assert cache.nbytes <= 5 * SIZE
            assert sum(disk.open(f"/data/cache/{name}").size() for name in files(disk)) <= 5 * SIZE
        await cache.resize(2 * SIZE)
        assert len(files(disk)) == 2
        assert cache.counts.evictions == 38

    run_fast(scenario())


def test_peer_t23_eviction_never_takes_a_file_from_who_has_it() -> None:
    """KAFKA-15481: the eviction of an index deleted the file that another thread had just fetched again. Here the
    handle given out keeps reading; the chunk fetched again lies under another name."""

    async def scenario() -> None:
        cache, disk = await opened(1)
        source = Source()
        held = await cache.get(ref(0), source.load)
        first_path = held.file.path
        await cache.get(ref(1), source.load)
        assert first_path.rsplit("/", 1)[1] not in files(disk)
        assert held.file.read_at(0, SIZE) == content(0)
        again = await cache.get(ref(0), source.load)
        assert again.file.path != first_path and held.file.read_at(0, SIZE) == content(0)

    run_fast(scenario())


def test_peer_t23_evicted_while_it_is_fetched_again() -> None:
    """KAFKA-15481 as a race: many chunks through a cache of one, concurrently; everybody gets the right bytes, nothing
    is left over."""

    async def scenario() -> None:
        cache, disk = await opened(1, loads_max=4)
        source = Source(seconds=0.01)

        async def reader(seed: int) -> None:
            for step in range(30):
                n = (seed * 7 + step * 3) % 5
                found = await cache.get(ref(n), source.load)
                assert found.file.read_at(found.position, found.length) == content(n)

        await asyncio.gather(*(reader(seed) for seed in range(6)))
        assert len(files(disk)) <= 1

    run_fast(scenario())


def test_peer_t25_a_poisoned_chunk_is_seen_by_nobody() -> None:
    """Aiven #760: a chunk cache was poisoned by wrong bytes. From the loader they are refused, not cached; the next try
    loads again."""

    async def scenario() -> None:
        cache, disk = await opened(4)
        source = Source()
        for bad in (lambda d: d[:-1], lambda d: d + b"x", lambda d: b"x" + d[1:], lambda d: b""):
            source.change = bad
            with pytest.raises(Corrupt):
                await cache.get(ref(1), source.load)
            assert files(disk) == [] and not cache.holds(ref(1))
        source.change = lambda d: d
        found = await cache.get(ref(1), source.load)
        assert found.file.read_at(0, SIZE) == content(1)

    run_fast(scenario())


def test_bytes_that_rot_on_the_cache_disk_are_not_served() -> None:
    """A file damaged while it was not open is checked when opened again, dropped, and loaded again."""

    async def scenario() -> None:
        cache, disk = await opened(8, open_files_max=1)
        source = Source()
        await cache.get(ref(0), source.load)
        (path,) = files(disk)
        await cache.get(ref(1), source.load)  # pushes the handle out
        disk.flip_bit(f"/data/cache/{path}", 500, 3)
        found = await cache.get(ref(0), source.load)
        assert found.file.read_at(0, SIZE) == content(0)
        assert source.loads == [0, 1, 0] and cache.counts.damaged == 1

    run_fast(scenario())


def test_a_file_deleted_behind_our_back_is_loaded_again() -> None:
    async def scenario() -> None:
        cache, disk = await opened(8, open_files_max=1)
        source = Source()
        await cache.get(ref(0), source.load)
        (path,) = files(disk)
        await cache.get(ref(1), source.load)
        disk.unlink(f"/data/cache/{path}")
        assert (await cache.get(ref(0), source.load)).file.read_at(0, SIZE) == content(0)

    run_fast(scenario())


def test_a_full_disk_means_memory_not_failure() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        cache, _ = await opened(8, disk)
        source = Source()
        disk.inject("write", errno.ENOSPC)
        found = await cache.get(ref(0), source.load)
        assert isinstance(found.file, MemoryFile) and found.file.read_at(10, 20) == content(0)[10:30]
        assert found.file.descriptor() is None and cache.nbytes == 0 and files(disk) == []
        again = await cache.get(ref(0), source.load)
        assert not isinstance(again.file, MemoryFile) and cache.counts.uncached == 1

    run_fast(scenario())


def test_a_cache_smaller_than_a_chunk_serves_from_memory() -> None:
    async def scenario() -> None:
        cache, disk = await opened(0)
        found = await cache.get(ref(0), Source().load)
        assert isinstance(found.file, MemoryFile) and files(disk) == []

    run_fast(scenario())


def test_failures_reach_every_waiter_and_are_not_remembered() -> None:
    async def scenario() -> None:
        cache, _ = await opened(4)

        async def failing(chunk: ChunkRef) -> bytes:
            await asyncio.sleep(1)
            raise Retryable("503")

        results = await asyncio.gather(*(cache.get(ref(1), failing) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [Retryable] * 3
        await cache.get(ref(1), Source().load)

    run_fast(scenario())


def test_a_load_that_never_ends_is_ended() -> None:
    async def scenario() -> None:
        cache, _ = await opened(4)
        with pytest.raises(Retryable):
            await cache.get(ref(1), Source(seconds=1e6).load)

    run_fast(scenario())


def test_a_deleted_segments_chunks_are_forgotten() -> None:
    async def scenario() -> None:
        cache, disk = await opened(8)
        source = Source()
        for key in ("a", "b"):
            for n in range(2):
                await cache.get(ref(n, key), source.load)
        await cache.drop_segment("a")
        assert not cache.holds(ref(0, "a")) and cache.holds(ref(1, "b")) and len(files(disk)) == 2

    run_fast(scenario())


def test_a_restart_begins_empty() -> None:
    async def scenario() -> None:
        cache, disk = await opened(8)
        await cache.get(ref(0), Source().load)
        await cache.close()
        again, _ = await opened(8, disk)
        assert files(disk) == [] and not again.holds(ref(0))

    run_fast(scenario())


def test_closing_sends_waiters_away() -> None:
    async def scenario() -> None:
        cache, _ = await opened(8)
        waiter = asyncio.get_running_loop().create_task(cache.get(ref(0), Source(seconds=10).load))
        await asyncio.sleep(1)
        await cache.close()
        with pytest.raises(Retryable):
            await waiter

    run_fast(scenario())
