"""Cold reads: never blocking, whole batches over every border, one load for many, failures told, chunks refused."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from coldstore.manifest.manifest_store import ManifestStore
from coldstore.object_store import Got, ObjectMissing, ObjectStore
from coldstore.stores.directory import DirectoryStore
from coldstore.stores.metered import MeteredStore
from coldstore.stores.operations import Operation
from logformat.errors import Corrupt, Retryable
from logformat.record_batch import read_header
from seams.files.posix_disk import PosixDisk
from seams.loop.tasks import Tasks
from seams.loop.workers import ThreadWorkers
from seams.rng import SeededRng, SystemRng
from tests.support.disk.crash_disk import CrashDisk
from tests.support.fast_loop import FastClock
from tests.support.store.faulty_store import Fault, FaultyStore
from tests.support.store.memory_store import MemoryStore, upload_of
from tests.support.tier.cold_log import (
    ColdLog,
    a_reader,
    cold_log,
    content,
    drain,
    fetch,
    manifest_of,
    put,
    reading,
)
from tests.support.tier.cold_objects import T0, segment_object
from tests.support.tier.cold_values import TOPIC_ID
from tests.support.workers import LoopWorkers
from tiering.opening.cold_view import ROOT_AGE_MAX_S, ColdView
from tiering.reading.batch_slices import ColdSlice
from tiering.reading.cold_reader import ColdReader
from tiering.reading.limits import ReadLimits
from tiering.reading.loader import RECHECK_S

BATCHES = [[3, 1, 7] * 30, [50] * 6, [1] * 150, [400], [2, 2, 2]]


class FixedClock(FastClock):
    """Its time since the boot is moved by hand. The monotonic time stands still, as while a machine sleeps."""

    s = 0.0

    def boottime_s(self) -> float:
        return self.s

    def monotonic_s(self) -> float:
        return 0.0


class SlowStore:
    """A store that takes its time, at most `gets_max` at once, and notes every GET."""

    def __init__(self, inner: ObjectStore, seconds: float, gets_max: int = 4) -> None:
        self._inner = inner
        self._gets = asyncio.Semaphore(gets_max)
        self.seconds = seconds
        self.asked: list[tuple[str, int, int | None]] = []
        self.running = self.running_max = 0

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        self.asked.append((key, start, length))
        async with self._gets:
            self.running += 1
            self.running_max = max(self.running_max, self.running)
            try:
                await asyncio.sleep(self.seconds)
                return await self._inner.get(key, start, length)
            finally:
                self.running -= 1

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self._inner, name)


@dataclass
class World:
    """A cold log in a store, and a reader of it, in virtual time."""

    log: ColdLog
    memory: MemoryStore
    store: ObjectStore
    reader: ColdReader
    tasks: Tasks
    disk: CrashDisk
    workers: LoopWorkers

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()


@asynccontextmanager
async def world(
    batches: list[list[int]] | None = None,
    *,
    wrap: Callable[[MemoryStore], ObjectStore] = lambda store: store,
    limits: ReadLimits | None = None,
    cache_bytes: int = 1 << 20,
    **options: int,
) -> AsyncIterator[World]:
    log = cold_log(BATCHES if batches is None else batches, **options)
    memory, disk, workers, tasks = MemoryStore(), CrashDisk(), LoopWorkers(), Tasks()
    await put(memory, log)
    store = wrap(memory)
    async with reading(store, disk, workers, tasks, cache_bytes=cache_bytes, limits=limits) as reader:
        yield World(log, memory, store, reader, tasks, disk, workers)


def directory_store(disk: CrashDisk, workers: LoopWorkers) -> DirectoryStore:
    return DirectoryStore(disk, workers, "/bucket", SeededRng(3))  # type: ignore[arg-type]


@asynccontextmanager
async def directory_world(batches: list[list[int]] | None = None, **options: int) -> AsyncIterator[World]:
    log = cold_log(BATCHES if batches is None else batches, **options)
    disk, workers, tasks = CrashDisk(), LoopWorkers(), Tasks()
    store = directory_store(disk, workers)
    await put(store, log)
    async with reading(store, disk, workers, tasks) as reader:
        yield World(log, MemoryStore(), store, reader, tasks, disk, workers)


# ── what an answer is ────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("bytes_max", [1, 300, 5000, 1 << 20])
@pytest.mark.parametrize("where", [world, directory_world])
async def test_from_any_offset_to_the_end_is_exactly_the_log(where, bytes_max: int) -> None:  # type: ignore[no-untyped-def]
    """G6: byte for byte, in whole batches, over chunk and segment borders, in either kind of bucket."""
    async with where() as w:
        for offset in (0, 1, 2, 3, 4, 300, 329, 330, 629, 630, 779, 780, 1000, w.log.end_offset - 1):
            assert await drain(w.reader, w.log, offset, bytes_max) == w.log.bytes_from(offset)


async def test_an_answer_crosses_chunks_and_segments_up_to_its_limit() -> None:
    """Once everything is at hand one answer brings it all, and a smaller limit is used up to less than a batch."""
    async with world() as w:
        await drain(w.reader, w.log, 0, 4096)
        whole = await fetch(w.reader, w.log, 0, 1 << 20)
        assert content(whole) == w.log.bytes
        some = await fetch(w.reader, w.log, 0, 6000)
        assert 6000 - 700 < some.length <= 6000


async def test_a_first_batch_that_is_too_large_is_given_only_when_asked_for() -> None:
    """KIP-74: `min_one` gives the one batch whole, also over chunks; without it nothing is given, which is no error."""
    async with world([[400], [5]]) as w:
        large = read_header(w.log.bytes).size
        assert large > 3 * 4096, "the batch must span chunks"
        assert content(await fetch(w.reader, w.log, 10, 100)) == w.log.bytes[:large]
        assert (await fetch(w.reader, w.log, 10, 100, min_one=False)).length == 0
        assert (await fetch(w.reader, w.log, 10, 0, min_one=False)).length == 0
        exact = await fetch(w.reader, w.log, 10, large, min_one=False)
        assert exact.length >= large


async def test_a_footer_never_leaves() -> None:
    """The last answer of a segment ends with its log, though the object goes on."""
    async with world([[5]]) as w:
        answer = await fetch(w.reader, w.log, 0, 1 << 20)
        assert answer.length == w.log.objects[0].entry.log_bytes < len(w.log.objects[0].data)


@pytest.mark.parametrize("where", [world, directory_world])
async def test_design_c25_cold_bytes_are_read_by_a_worker_before_the_loop_sends_them(where) -> None:  # type: ignore[no-untyped-def]
    """The first `read` touches neither disk nor store: it hands out a future, and a worker checks the chunk."""
    async with where() as w:
        before = w.disk.hits.copy()
        found = w.reader.read(w.log.manifests, 0, 1000, min_one=True)
        assert isinstance(found, asyncio.Future) and w.disk.hits == before
        w.workers.lanes.clear()
        await found
        assert w.workers.lanes, "a worker brought the chunk in"
        assert isinstance(w.reader.read(w.log.manifests, 0, 1000, min_one=True), ColdSlice)


@pytest.mark.parametrize("bucket", ["memory", "directory"])
def test_with_real_threads_and_files_four_readers_get_the_log(tmp_path: Path, bucket: str) -> None:
    """The same on the machine's own disk and threads, several readers of one log at once."""

    async def scenario() -> None:
        log = cold_log(BATCHES * 2)
        workers, tasks = ThreadWorkers(), Tasks()
        in_memory = bucket == "memory"
        store: ObjectStore = (
            MemoryStore() if in_memory else DirectoryStore(PosixDisk(), workers, f"{tmp_path}/bucket", SystemRng())
        )
        await put(store, log)
        reader = await a_reader(store, workers, tasks, tmp_path / "cache", cache_bytes=20_000)
        offsets = (0, 100, 700, 1200)
        read = await asyncio.gather(*(drain(reader, log, offset, 2500) for offset in offsets))
        assert list(read) == [log.bytes_from(offset) for offset in offsets]
        await tasks.close()
        await reader.close()
        await store.close()
        workers.close()

    asyncio.run(scenario())


# ── one load for many ────────────────────────────────────────────────────────────────────────────────────────────────
async def test_many_readers_of_one_chunk_cause_one_get() -> None:
    """Single flight: a thousand polls of the same offset are one footer and one chunk."""
    async with world([[3] * 20], wrap=lambda s: MeteredStore(s, FastClock(), log_max=1000)) as w:  # type: ignore[arg-type]
        assert isinstance(w.store, MeteredStore)
        waits = [w.reader.read(w.log.manifests, 0, 1000) for _ in range(1000)]
        assert len({id(wait) for wait in waits}) == 1
        async with asyncio.timeout(10):
            await waits[0]  # type: ignore[misc]
        gets = [(call.start, call.length) for call in w.store.log if call.operation is Operation.GET]
        assert len(gets) == 2 and w.log.manifests.finds == 1


async def test_readers_of_one_segment_cause_one_look_at_its_footer() -> None:
    """Single flight for what several offsets share: ten places of a segment are one tail GET and one of each chunk."""
    stores: list[SlowStore] = []

    def slow(store: MemoryStore) -> ObjectStore:
        stores.append(SlowStore(store, 1.0))
        return stores[0]

    async with world([[5] * 400], wrap=slow) as w:
        waits = [w.reader.read(w.log.manifests, offset, 100) for offset in range(0, 2000, 200)]
        await asyncio.gather(*waits)  # type: ignore[arg-type]
        assert len([start for _, start, _ in stores[0].asked if start < 0]) == 1
        assert len(set(stores[0].asked)) == len(stores[0].asked)
        for offset in range(0, 2000, 200):
            assert isinstance(w.reader.read(w.log.manifests, offset, 100), ColdSlice)


async def test_asked_for_at_any_moment_of_its_arrival() -> None:
    """Also between the last byte from the store and the end of its writing: those who come then join the same load."""
    limits = ReadLimits(prefetch_chunks=0)
    async with world([[5] * 60], wrap=lambda s: SlowStore(s, 1.0), limits=limits) as w:
        run = w.workers.run

        async def slow_writes(function, *args, **lane):  # type: ignore[no-untyped-def]
            await asyncio.sleep(1 if function.__name__ == "_write_checked" else 0)
            return await run(function, *args, **lane)

        w.workers.run = slow_writes  # type: ignore[method-assign]
        asking = []
        for _ in range(16):
            asking.append(asyncio.get_running_loop().create_task(fetch(w.reader, w.log, 0, 1000)))
            await asyncio.sleep(0.25)
        for answer in await asyncio.gather(*asking):
            assert content(answer) == w.log.bytes[: answer.length] and answer.length
        assert len(w.store.asked) == 2, "its footer and the one chunk"  # type: ignore[attr-defined]


async def test_a_slow_link_is_no_store_that_is_away() -> None:
    """A chunk of 4 MiB that takes longer than the deadline of tries, and comes, is served: the time for its bytes is
    added. (Without that it would be given up, asked for again, and never come.)"""
    limits = ReadLimits(deadline_s=5.0, prefetch_chunks=0)
    large = {"cache_bytes": 1 << 24, "chunk_bytes": 4 << 20, "value_bytes": 100_000}
    async with world([[5] * 8], wrap=lambda s: SlowStore(s, 1.0), limits=limits, **large) as w:  # type: ignore[arg-type]
        assert isinstance(w.store, SlowStore) and len(w.log.bytes) > 3 << 20
        inner = w.store.get

        async def get(key: str, start: int = 0, length: int | None = None) -> Got:
            await asyncio.sleep((length or 0) / (64 << 10))
            return await inner(key, start, length)

        w.store.get = get  # type: ignore[method-assign]
        found = w.reader.read(w.log.manifests, 0, 1000)
        assert isinstance(found, asyncio.Future)
        began = w.now_s
        await found
        assert w.now_s - began > 2 * limits.deadline_s
        assert (await fetch(w.reader, w.log, 0, 1000)).length


async def test_a_reader_that_gives_up_leaves_its_chunk_on_the_way() -> None:
    """The fetch times out; the load goes on, and the next poll is answered at once (T25)."""
    async with world(wrap=lambda s: SlowStore(s, 5.0)) as w:
        found = w.reader.read(w.log.manifests, 0, 1000)
        assert isinstance(found, asyncio.Future)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await found
        await asyncio.sleep(60)
        assert isinstance(w.reader.read(w.log.manifests, 0, 1000), ColdSlice)


async def test_a_chunk_somebody_was_told_of_waits_for_him() -> None:
    """Pinned until the next read: a working set ten times the memory passes by meanwhile and does not push it out."""
    limits = ReadLimits(hold_bytes=4 * 4096, unread_bytes_max=4096, prefetch_chunks=1)
    async with world([[5] * 60, [5] * 700], limits=limits, cache_bytes=4 * 4096) as w:
        found = w.reader.read(w.log.manifests, 0, 1000)
        assert isinstance(found, asyncio.Future)
        await found
        for offset in range(400, 3800, 400):
            await fetch(w.reader, w.log, offset, 300)
        await drain(w.reader, w.log, 400, 3000)
        assert isinstance(w.reader.read(w.log.manifests, 0, 1000), ColdSlice)


async def test_a_pin_ends_after_its_time() -> None:
    """A client that never came back does not keep its chunk for ever."""
    limits = ReadLimits(hold_bytes=4 * 4096, unread_bytes_max=4096, prefetch_chunks=1)
    async with world([[5] * 60, [5] * 700], limits=limits, cache_bytes=4 * 4096) as w:
        found = w.reader.read(w.log.manifests, 0, 1000)
        assert isinstance(found, asyncio.Future)
        await found
        await asyncio.sleep(limits.pin_s + 1)
        for offset in range(400, 3800, 400):
            await fetch(w.reader, w.log, offset, 300)
        assert isinstance(w.reader.read(w.log.manifests, 0, 1000), asyncio.Future)


async def test_ten_times_the_cache_is_read_right_and_stays_within_bounds() -> None:
    """Eviction under a working set of 10×: several readers, every byte right, the bounds kept (T23)."""
    limits = ReadLimits(hold_bytes=8 * 4096, unread_bytes_max=4 * 4096, prefetch_chunks=2)
    async with world([[5] * 200] * 5, limits=limits, cache_bytes=8 * 4096) as w:
        assert len(w.log.bytes) > 10 * 8 * 4096
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(drain(w.reader, w.log, offset, 9000)) for offset in (0, 7, 1500, 2400, 3333)]
        for offset, task in zip((0, 7, 1500, 2400, 3333), tasks, strict=True):
            assert task.result() == w.log.bytes_from(offset)
        figures = w.reader.figures()
        assert figures["cold_cache_bytes"] <= 8 * 4096 and figures["cold_cache_evictions"] > 20
        assert w.reader._table.chunks.nbytes <= limits.hold_bytes


async def test_an_answer_under_way_keeps_its_bytes_when_its_chunk_is_evicted() -> None:
    """T23: what a socket still sends is not changed by what is loaded meanwhile."""
    limits = ReadLimits(hold_bytes=2 * 4096, unread_bytes_max=4096, prefetch_chunks=0)
    async with world([[5] * 300], limits=limits, cache_bytes=2 * 4096) as w:
        answer = await fetch(w.reader, w.log, 0, 2000)
        await drain(w.reader, w.log, 200, 3000)
        assert content(answer) == w.log.bytes[: answer.length]


# ── bounds ───────────────────────────────────────────────────────────────────────────────────────────────────────────
async def test_a_full_queue_refuses_one_partition_and_not_the_next_poll() -> None:
    """Beyond running + waiting loads a reader is told so, retriably; when there is room it is served."""
    limits = ReadLimits(concurrency=2, queue_max=3, prefetch_chunks=0)
    async with world([[5] * 500], wrap=lambda s: SlowStore(s, 1.0), limits=limits) as w:
        waits = [w.reader.read(w.log.manifests, offset, 100) for offset in range(0, 500, 100)]
        with pytest.raises(Retryable, match=r"events-0 offset 900: the queue of cold reads is full"):
            w.reader.read(w.log.manifests, 900, 100)
        assert isinstance(w.reader.read(w.log.manifests, 0, 100), asyncio.Future), "one that waits may ask again"
        assert w.reader.figures()["cold_queue_full"] == 1
        await asyncio.gather(*waits)  # type: ignore[arg-type]
        assert w.reader.waiting == 0
        assert (await fetch(w.reader, w.log, 900, 100)).length


async def test_loads_at_once_are_bounded() -> None:
    """However many partitions and readers ahead: never more GETs under way than there are slots."""
    stores: list[SlowStore] = []

    def slow(store: MemoryStore) -> ObjectStore:
        stores.append(SlowStore(store, 1.0, gets_max=1000))
        return stores[0]

    limits = ReadLimits(concurrency=3, queue_max=100)
    async with world([[5] * 100] * 8, wrap=slow, limits=limits) as w:
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(drain(w.reader, w.log, number * 500, 5000))
        assert stores[0].running_max == 3


async def test_several_cold_partitions_move_at_once() -> None:
    """A partition whose object hangs does not hold up the others."""
    async with world([[5] * 100] * 4, wrap=lambda s: SlowStore(s, 0.02, gets_max=8)) as w:
        slow = w.log.key(0)
        inner = w.store.get

        async def get(key: str, start: int = 0, length: int | None = None) -> Got:
            if key == slow:
                await asyncio.sleep(3600)
            return await inner(key, start, length)

        w.store.get = get  # type: ignore[method-assign]
        assert isinstance(w.reader.read(w.log.manifests, 0, 1000), asyncio.Future)
        began = w.now_s
        got = await asyncio.gather(*(drain(w.reader, w.log, 500 * n, 5000) for n in (1, 2, 3)))
        assert got[0] == w.log.bytes_from(500) and w.now_s - began < 5


async def test_a_load_ends_by_its_deadline() -> None:
    """T25: a store that never answers becomes a retriable error, not an endless wait, and its slot is free again."""
    limits = ReadLimits(concurrency=1, queue_max=1, deadline_s=5.0)
    async with world(wrap=lambda s: SlowStore(s, 3600.0), limits=limits) as w:
        found = w.reader.read(w.log.manifests, 0, 100)
        assert isinstance(found, asyncio.Future)
        async with asyncio.timeout(6):
            await found
        with pytest.raises(Retryable, match="did not answer"):
            w.reader.read(w.log.manifests, 0, 100)
        w.store.seconds = 0.01  # type: ignore[attr-defined]
        assert (await fetch(w.reader, w.log, 0, 100)).length


async def test_closing_leaves_nobody_waiting() -> None:
    """Every future is done, and a later read is refused retriably."""
    async with world(wrap=lambda s: SlowStore(s, 3600.0)) as w:
        found = w.reader.read(w.log.manifests, 0, 100)
        assert isinstance(found, asyncio.Future)
        await asyncio.sleep(1)
        await w.tasks.close()
        assert found.done()
        with pytest.raises(Retryable):
            w.reader.read(w.log.manifests, 700, 100)


# ── damage and absence ───────────────────────────────────────────────────────────────────────────────────────────────
async def test_peer_t25_a_poisoned_chunk_is_refused_every_time_and_never_cached() -> None:
    """Aiven #760, #698: a poisoned chunk cache, a cache read error on an index. G11: a bit flipped at rest
    reaches nobody; the rest of the object is served; mended, it is served too."""
    async with world([[5] * 200]) as w:
        key = w.log.key(0)
        good = w.memory.objects[key].data
        w.memory.objects[key].data = good[:5000] + bytes([good[5000] ^ 1]) + good[5001:]
        bad = next(offset for offset, position in w.log.batches if position > 4200)
        for _ in range(3):
            with pytest.raises(Corrupt, match="events-0 offset"):
                await fetch(w.reader, w.log, bad, 100)
        assert (await fetch(w.reader, w.log, 0, 1000)).length
        # Up to an index entry behind the chunk, places are found by walking headers in it.
        after = next(offset for offset, position in w.log.batches if position > 8192 + 1000)
        assert (await fetch(w.reader, w.log, after, 1000)).length
        await asyncio.sleep(1)  # what was begun ahead meanwhile has ended
        w.memory.objects[key].data = good
        assert await drain(w.reader, w.log, 0, 1000) == w.log.bytes


async def test_a_bit_flipped_on_the_way_costs_a_second_get_and_nothing_else() -> None:
    """The reader never hears of it, and what the cache keeps is right."""
    async with world([[5] * 200], wrap=lambda s: FaultyStore(s, SeededRng(1))) as w:
        assert isinstance(w.store, FaultyStore)
        await fetch(w.reader, w.log, 0, 100)
        w.store.script(Operation.GET, Fault.FLIPPED, times=1)
        assert await drain(w.reader, w.log, 0, 1000) == w.log.bytes
        assert w.store.hits[Fault.FLIPPED] == 1


@pytest.mark.parametrize("damaged", [2, 4, 5])
async def test_a_chunk_that_comes_damaged_is_asked_for_five_times(damaged: int) -> None:
    """Readers of the same chunk share the loads; within half a second they have it, or hear of damage."""
    async with world([[5] * 200], wrap=lambda s: FaultyStore(s, SeededRng(1))) as w:
        assert isinstance(w.store, FaultyStore)
        await fetch(w.reader, w.log, 0, 100)
        await asyncio.sleep(1)  # what was begun ahead has ended
        far = w.log.batches[-1][0]
        w.store.script(Operation.GET, Fault.FLIPPED, times=damaged)
        began_s, before = w.now_s, w.reader.figures()["cold_read_retries"]
        outcomes = await asyncio.gather(*(fetch(w.reader, w.log, far, 1000) for _ in range(3)), return_exceptions=True)
        assert w.store.hits[Fault.FLIPPED] == damaged and w.now_s - began_s < 0.5
        assert w.reader.figures()["cold_read_retries"] - before == min(damaged, 4)
        assert [isinstance(outcome, Corrupt) for outcome in outcomes].count(True) == (1 if damaged == 5 else 0)
        assert (await fetch(w.reader, w.log, far, 1000)).length  # the next one asks anew


async def test_a_store_that_stumbles_is_asked_again() -> None:
    """503, resets and bodies that break off are retried within the deadline; the bytes are right."""
    async with world([[5] * 200], wrap=lambda s: FaultyStore(s, SeededRng(1))) as w:
        assert isinstance(w.store, FaultyStore)
        for fault in (Fault.BEFORE, Fault.TRUNCATED, Fault.BEFORE, Fault.TRUNCATED):
            w.store.script(Operation.GET, fault)
        assert await drain(w.reader, w.log, 0, 1000) == w.log.bytes
        assert w.reader.figures()["cold_read_retries"] >= 4


async def test_an_outage_is_a_retriable_error_and_ends_by_itself() -> None:
    """G12, G13: while the store is away readers are told so; what is at hand is still served; then all goes on."""
    limits = ReadLimits(deadline_s=5.0, prefetch_chunks=0)
    async with world([[5] * 200], wrap=lambda s: FaultyStore(s, SeededRng(1)), limits=limits) as w:
        assert isinstance(w.store, FaultyStore)
        await fetch(w.reader, w.log, 0, 100)
        w.store.down = True
        assert (await fetch(w.reader, w.log, 0, 100)).length
        with pytest.raises(Retryable):
            await fetch(w.reader, w.log, 900, 100)
        w.store.calm()
        assert await drain(w.reader, w.log, 0, 1000) == w.log.bytes


async def test_a_missing_object_fails_exactly_its_range() -> None:
    """Its readers get ObjectMissing with topic, offset and key, every time; the segments around it are served."""
    async with world([[5] * 100] * 3) as w:
        key = w.log.key(1)
        gone = w.memory.objects.pop(key)
        for offset in (500, 750):
            for _ in range(2):
                with pytest.raises(ObjectMissing, match=f"events-0 offset {offset}.*{w.log.objects[1].key.uuid}"):
                    await fetch(w.reader, w.log, offset, 1000)
        assert (await fetch(w.reader, w.log, 499, 100)).length
        assert (await fetch(w.reader, w.log, 1000, 100)).length
        w.memory.objects[key] = gone
        assert await drain(w.reader, w.log, 0, 2000) == w.log.bytes


async def test_an_object_that_was_replaced_is_found_through_the_newer_manifest() -> None:
    """T4: a 404 makes the manifest be read again; when it names another object, the reader never notices."""
    async with world([[5] * 100]) as w:
        await fetch(w.reader, w.log, 0, 100)
        # The same log under another uuid: what a rewriting job leaves behind.
        newer = segment_object(0, [5] * 100, n=77)
        w.memory.objects.pop(w.log.key(0))
        await w.memory.put_segment(str(newer.key), upload_of(newer.data))
        w.log.manifests.fresher = manifest_of([newer])
        got = b""
        for _ in range(3):  # the first read after the 404 may still tell of it
            try:
                got = await drain(w.reader, w.log, 0, 1000)
                break
            except ObjectMissing:
                continue
        assert got == w.log.bytes


async def test_a_replaced_object_is_not_read_although_it_still_exists() -> None:
    """Until its grace is over a replaced object exists, and its chunks are loaded. A reader that got a record from it
    would miss the tombstone of the record, if that was removed from the bucket meanwhile (found by seed 51)."""
    async with world([[5] * 100, [5] * 100]) as w:
        assert await drain(w.reader, w.log, 0, 1000) == w.log.bytes
        newer, last = segment_object(0, [5] * 100, n=77, value_bytes=30), w.log.objects[1]
        await w.memory.put_segment(str(newer.key), upload_of(newer.data))
        w.log.manifests.manifest = manifest_of([newer, last])
        assert await drain(w.reader, w.log, 0, 1000) == newer.log + last.log
        w.log.manifests.manifest = manifest_of([w.log.objects[0], newer_last := segment_object(500, [5] * 100, n=78)])
        await w.memory.put_segment(str(newer_last.key), upload_of(newer_last.data))
        answer = await fetch(w.reader, w.log, 0, 10**6)
        assert content(answer) == w.log.objects[0].log, "an answer does not go on into a replaced object either"


async def test_a_replaced_object_of_a_page_is_not_read_although_it_still_exists() -> None:
    async with world([[5] * 100, [5] * 100]) as w:
        manifests = ManifestStore(w.memory, TOPIC_ID, 0, SeededRng(1), FastClock())
        await manifests.create(1, "events", {}, 10_000)
        await manifests.claim(1, "events", {})
        for made in w.log.objects:
            await manifests.commit(lambda m, made=made: m.add(made.entry))

        async def everything() -> bytes:
            log = ColdLog(w.log.objects, manifests)  # type: ignore[arg-type]
            return await drain(w.reader, log, 0, 1000)

        assert await everything() == w.log.bytes
        assert await manifests._fold(1) and not manifests.manifest.tail  # type: ignore[union-attr]
        assert await everything() == w.log.bytes, "the same objects, named by a page"
        newer = segment_object(0, [5] * 100, n=77, value_bytes=30)
        await w.memory.put_segment(str(newer.key), upload_of(newer.data))
        await manifests.replace([w.log.objects[0].entry], [newer.entry], T0)
        assert await everything() == newer.log + w.log.objects[1].log


async def test_a_view_of_another_leader_s_partition_reads_an_old_root_again() -> None:
    """A broker that does not lead hears of no replacement. Its root is at most `ROOT_AGE_MAX_S` old."""
    async with world([[5] * 100]) as w:
        leader = ManifestStore(w.memory, TOPIC_ID, 0, SeededRng(1), FastClock())
        await leader.create(1, "events", {}, 10_000)
        await leader.claim(1, "events", {})
        await leader.commit(lambda m: m.add(w.log.objects[0].entry))
        clock = FixedClock()
        manifests = ManifestStore(w.memory, TOPIC_ID, 0, SeededRng(2), FastClock())
        view = ColdView(TOPIC_ID, 0, manifests, w.reader, lambda: 500, clock)

        async def first() -> bytes:
            for _ in range(100):
                if isinstance(found := view.read(0, 1000, min_one=True), ColdSlice):
                    return content(found)
                await found
            raise AssertionError("no answer")

        assert (before := await first()) == w.log.bytes[: len(before)]
        newer = segment_object(0, [5] * 100, n=77, value_bytes=30)
        await w.memory.put_segment(str(newer.key), upload_of(newer.data))
        await leader.replace([w.log.objects[0].entry], [newer.entry], T0)
        clock.s += ROOT_AGE_MAX_S
        assert await first() == before
        clock.s += 1
        assert (after := await first()) == newer.log[: len(after)] != before


async def test_a_view_of_another_leader_s_partition_goes_on_in_the_object_that_replaced_a_deleted_one() -> None:
    """Its root is young, and names an object that the leader deleted: the missing object makes it read the root."""
    async with world([[5] * 100, [5] * 100]) as w:
        leader = ManifestStore(w.memory, TOPIC_ID, 0, SeededRng(1), FastClock())
        await leader.create(1, "events", {}, 10_000)
        await leader.claim(1, "events", {})
        kept, old = w.log.objects
        await leader.commit(lambda m: m.add(kept.entry).add(old.entry))
        manifests = ManifestStore(w.memory, TOPIC_ID, 0, SeededRng(2), FastClock())
        view = ColdView(TOPIC_ID, 0, manifests, w.reader, lambda: 1000, FixedClock())

        async def at(offset: int) -> bytes:
            for _ in range(100):
                if isinstance(found := view.read(offset, 1000, min_one=True), ColdSlice):
                    return content(found)
                await found
            raise AssertionError("no answer")

        assert await at(0)
        newer = segment_object(500, [5] * 100, n=77, value_bytes=30)
        await w.memory.put_segment(str(newer.key), upload_of(newer.data))
        await leader.replace([old.entry], [newer.entry], T0)
        await w.memory.delete([str(old.key)])
        assert (found := await at(500)) == newer.log[: len(found)]


async def test_a_view_without_a_manifest_says_so() -> None:
    async with world([[5] * 100]) as w:
        manifests = ManifestStore(w.memory, TOPIC_ID, 1, SeededRng(2), FastClock())
        view = ColdView(TOPIC_ID, 1, manifests, w.reader, lambda: 500, FixedClock())
        waiting = view.read(0, 100, min_one=True)
        assert isinstance(waiting, asyncio.Future)
        await waiting
        with pytest.raises(Retryable, match="no manifest in the bucket yet"):
            view.read(0, 100, min_one=True)


async def test_an_offset_the_manifest_does_not_hold_is_retriable() -> None:
    """The manifest may have moved on since the route was decided; the client asks again and is routed anew."""
    async with world([[5] * 10]) as w:
        with pytest.raises(Retryable, match="no cold segment holds offset 5000"):
            await fetch(w.reader, w.log, 5000, 100)
        w.log.manifests.manifest = None
        with pytest.raises(Retryable, match="not loaded"):
            w.reader.read(w.log.manifests, 0, 100)


async def test_another_object_under_a_segment_s_name_is_refused() -> None:
    """C13: an object of the same size that is not the one committed is Corrupt, not served."""
    async with world([[5] * 100] * 2) as w:
        first, second = w.log.key(0), w.log.key(1)
        w.memory.objects[first].data, w.memory.objects[second].data = (
            w.memory.objects[second].data,
            w.memory.objects[first].data,
        )
        for offset in (0, 500):
            with pytest.raises(Corrupt):
                await fetch(w.reader, w.log, offset, 100)


async def test_a_cache_disk_that_is_full_or_broken_slows_reads_and_fails_none() -> None:
    """Chunks are served from memory, within the bound of what is held."""
    limits = ReadLimits(hold_bytes=16 * 4096, unread_bytes_max=4 * 4096)
    async with world([[5] * 200], limits=limits) as w:
        w.disk.inject("write", errno.ENOSPC, times=-1)
        assert await drain(w.reader, w.log, 0, 3000) == w.log.bytes
        assert w.reader._table.chunks.nbytes <= limits.hold_bytes


# ── a directory bucket ───────────────────────────────────────────────────────────────────────────────────────────────
async def test_on_a_directory_bucket_ranges_are_of_the_object_itself() -> None:
    """No cache, no copy: `sendfile` takes the object's own file."""
    async with directory_world([[5] * 200]) as w:
        answer = await fetch(w.reader, w.log, 0, 6000)
        assert {part.file.path for part in answer.ranges} == {f"/bucket/{w.log.key(0)}"}
        assert w.disk.list_dir("/cache") == []


@pytest.mark.parametrize("open_before", [False, True])
async def test_moving_an_object_aside_fails_exactly_its_range(open_before: bool) -> None:
    """Also when it was open, checked and in the page cache: its name is looked up again a quarter of a second later."""
    async with directory_world([[5] * 100] * 3) as w:
        if open_before:
            await drain(w.reader, w.log, 0, 3000)
        path = f"/bucket/{w.log.key(1)}"
        w.disk.rename(path, "/aside")
        await asyncio.sleep(RECHECK_S * 1.1)
        for offset in (500, 750, 999):
            with pytest.raises(ObjectMissing, match=f"events-0 offset {offset}"):
                await fetch(w.reader, w.log, offset, 1000)
        assert (await fetch(w.reader, w.log, 0, 1000)).length
        assert (await fetch(w.reader, w.log, 1000, 1000)).length
        w.disk.rename("/aside", path)
        assert await drain(w.reader, w.log, 0, 2000) == w.log.bytes


async def test_a_flipped_bit_in_a_directory_s_object_is_refused() -> None:
    """G11: the chunk's CRC is checked in this process before any byte of it leaves."""
    async with directory_world([[5] * 200]) as w:
        w.disk.flip_bit(f"/bucket/{w.log.key(0)}", 5000, 3)
        bad = next(offset for offset, position in w.log.batches if position > 4200)
        for _ in range(2):
            with pytest.raises(Corrupt):
                await fetch(w.reader, w.log, bad, 100)
        assert (await fetch(w.reader, w.log, 0, 1000)).length


# ── reading ahead ────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("batches", [[[30] * 1500], [[30] * 100] * 15, [[30] * 7] * 200])
async def test_a_sequential_reader_is_as_fast_as_parallel_gets(batches: list[list[int]]) -> None:
    """At 20 ms to the first byte: at least 0.8 of what four GETs at a time can do, also over small segments."""
    chunk_bytes = 1 << 16
    stores: list[SlowStore] = []

    def slow(store: MemoryStore) -> ObjectStore:
        stores.append(SlowStore(store, 0.02))
        return stores[0]

    async with world(batches, wrap=slow, cache_bytes=1 << 24, chunk_bytes=chunk_bytes, value_bytes=200) as w:
        began = w.now_s
        assert await drain(w.reader, w.log, 0, chunk_bytes // 4) == w.log.bytes
        ours_s = w.now_s - began
        raw_s = len(stores[0].asked) / 4 * 0.02
        assert raw_s / ours_s >= 0.8, (raw_s, ours_s)


async def test_requests_are_one_a_chunk_and_one_a_segment() -> None:
    """≤ 280 a GiB: 4 MiB chunks and a tail GET for 128 MiB segments are 264; nothing is asked for twice."""
    stores: list[SlowStore] = []

    def slow(store: MemoryStore) -> ObjectStore:
        stores.append(SlowStore(store, 0.02))
        return stores[0]

    async with world([[5] * 200] * 4, wrap=slow) as w:
        await drain(w.reader, w.log, 0, 1500)
        chunks = sum(len(made.footer.chunk_crcs) for made in w.log.objects)
        assert len(stores[0].asked) == chunks + len(w.log.objects)
        assert len(set(stores[0].asked)) == len(stores[0].asked)


async def test_random_reads_load_nothing_ahead() -> None:
    """A reader that jumps pays for what it reads only."""
    async with world([[5] * 400]) as w:
        for offset in (1500, 20, 900, 1700, 300):
            await fetch(w.reader, w.log, offset, 200)
            await asyncio.sleep(1)
        # After the last jump nobody goes on: one chunk ahead of each place at most, by the window of the first.
        assert w.reader.figures()["prefetched_chunks"] <= 5


async def test_readers_that_left_do_not_stop_reading_ahead_for_others() -> None:
    """What was loaded ahead for nobody counts against the share only until it is pushed out or half a minute passed."""
    limits = ReadLimits(hold_bytes=64 * 4096, unread_bytes_max=4 * 4096, prefetch_chunks=4)
    async with world([[5] * 400] * 2, limits=limits) as w:
        for offset in (0, 700):
            answer = await fetch(w.reader, w.log, offset, 1500)
            end = offset
            for _ in range(4):
                at = 0
                data = content(answer)
                while at < len(data):
                    header = read_header(data, at)
                    at, end = at + header.size, header.next_offset
                answer = await fetch(w.reader, w.log, end, 1500)
        await asyncio.sleep(31)
        before = w.reader.figures()["prefetched_chunks"]
        await drain(w.reader, w.log, 2000, 1500)
        assert w.reader.figures()["prefetched_chunks"] > before + 10


# ── times ────────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("where", [world, directory_world])
async def test_a_time_leads_to_its_first_record_in_every_segment(where) -> None:  # type: ignore[no-untyped-def]
    """The first record, in offset order, that is not older; none beyond the limit; log start respected."""
    async with where() as w:
        end = w.log.end_offset
        for offset in (0, 1, 329, 330, 331, 629, 700, 779, 1000, end - 1):
            assert await w.reader.offset_for_timestamp(w.log.manifests, T0 + offset, end) == (T0 + offset, offset)
        assert await w.reader.offset_for_timestamp(w.log.manifests, 0, end) == (T0, 0)
        assert await w.reader.offset_for_timestamp(w.log.manifests, T0 + end, end) is None
        assert await w.reader.offset_for_timestamp(w.log.manifests, T0 + 700, 700) is None
        assert await w.reader.offset_for_timestamp(w.log.manifests, T0 + 699, 700) == (T0 + 699, 699)
        assert w.log.manifests.manifest is not None
        w.log.manifests.manifest = w.log.manifests.manifest.set_log_start(340)
        assert await w.reader.offset_for_timestamp(w.log.manifests, 0, end) == (T0 + 340, 340)


async def test_deleted_objects_are_forgotten() -> None:
    """`forget` gives back chunks, footers and the cache's disk."""
    async with world([[5] * 100] * 2) as w:
        await drain(w.reader, w.log, 0, 3000)
        await w.reader.forget([w.log.objects[0].key])
        assert all(chunk_id[0] != w.log.objects[0].key.uuid for chunk_id in w.reader._table.chunks._free)
        w.memory.objects.pop(w.log.key(0))
        with pytest.raises(ObjectMissing):
            await fetch(w.reader, w.log, 0, 100)
        assert (await fetch(w.reader, w.log, 500, 100)).length
