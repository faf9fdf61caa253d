"""Cold reads against a list of batches: any shape of log, any chunk and answer size, any stumbling of the store."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from coldstore.stores.directory import DirectoryStore
from coldstore.stores.operations import Operation
from logformat.gap import gap_batches
from logformat.record_batch import read_header
from logformat.records import Record, encode_batch, iter_records
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.support.disk.crash_disk import CrashDisk
from tests.support.fast_loop import run_fast
from tests.support.store.faulty_store import Fault, FaultPlan, FaultyStore
from tests.support.store.memory_store import MemoryStore
from tests.support.tier.cold_log import (
    ColdLog,
    content,
    drain,
    fetch,
    log_of,
    put,
    reading,
)
from tests.support.tier.cold_objects import MadeObject, object_of
from tests.support.workers import LoopWorkers
from tiering.reading.limits import ReadLimits

T0 = 1_700_000_000_000


@dataclass(frozen=True)
class Shape:
    """A log to build: for each segment its batches, each (records, bytes of a value, timestamp) or a gap's length."""

    segments: list[list[tuple[int, int, int]]]
    chunk_bytes: int
    interval: int

    def build(self) -> ColdLog:
        objects: list[MadeObject] = []
        base = 0
        for number, segment in enumerate(self.segments):
            start, batches = base, []
            for records, value_bytes, time in segment:
                if value_bytes < 0:
                    batches += list(gap_batches(base, base + records * 1000, 1))
                    base += records * 1000
                    continue
                made = [
                    Record(base + n, T0 + time - n % 3, b"%d" % n, bytes([n % 256]) * value_bytes)
                    for n in range(records)
                ]
                batches.append(encode_batch(made, leader_epoch=1))
                base += records
            options = {"chunk_bytes": self.chunk_bytes, "interval": self.interval}
            objects.append(object_of(batches, start, base - start, 1, number + 1, **options))
        return log_of(objects)


BATCH = st.tuples(st.integers(1, 6), st.sampled_from([-1, 0, 5, 30, 200, 700, 1500, 6000]), st.integers(-2000, 2000))
SHAPES = st.builds(
    Shape,
    segments=st.lists(st.lists(BATCH, min_size=1, max_size=12), min_size=1, max_size=4),
    chunk_bytes=st.sampled_from([1024, 1100, 4096, 1 << 16]),
    interval=st.sampled_from([0, 300, 2000, 1 << 16]),
)


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.data())
def test_any_log_from_any_offset_is_exactly_its_bytes(shape: Shape, data: st.DataObject) -> None:
    """G6 for whatever was copied: batches that span chunks, gaps, sparse or dense indexes, both kinds of bucket."""
    log = shape.build()
    offsets = data.draw(st.lists(st.integers(0, log.end_offset - 1), min_size=1, max_size=3))
    bytes_max = data.draw(st.sampled_from([0, 1, 100, 1000, 5000, 1 << 20]))
    in_directory = data.draw(st.booleans())

    async def scenario() -> None:
        disk, workers, tasks = CrashDisk(), LoopWorkers(), Tasks()
        store = DirectoryStore(disk, workers, "/bucket", SeededRng(1)) if in_directory else MemoryStore()  # type: ignore[arg-type]
        await put(store, log)
        limits = ReadLimits(hold_bytes=12 * shape.chunk_bytes, unread_bytes_max=4 * shape.chunk_bytes)
        async with reading(store, disk, workers, tasks, cache_bytes=6 * shape.chunk_bytes, limits=limits) as reader:
            for offset in offsets:
                assert await drain(reader, log, offset, bytes_max) == log.bytes_from(offset)

    run_fast(scenario())


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.data())
def test_an_answer_is_as_large_as_its_limit_allows(shape: Shape, data: st.DataObject) -> None:
    """With everything at hand: whole batches, at most the limit unless the first is larger, and it ends early only at
    an index entry or where the next batch does not fit."""
    log = shape.build()
    offset = data.draw(st.integers(0, log.end_offset - 1))
    bytes_max = data.draw(st.integers(0, 8000))
    min_one = data.draw(st.booleans())

    async def scenario() -> None:
        disk, workers, tasks = CrashDisk(), LoopWorkers(), Tasks()
        store = MemoryStore()
        await put(store, log)
        async with reading(store, disk, workers, tasks, cache_bytes=1 << 24) as reader:
            await drain(reader, log, 0, 3000)
            answer = await fetch(reader, log, offset, bytes_max, min_one=min_one)
            expected = log.bytes_from(offset)
            first = read_header(expected).size
            assert content(answer) == expected[: answer.length]
            assert answer.length <= bytes_max or (min_one and answer.length == first)
            if first <= bytes_max or min_one:
                assert answer.length >= first
            else:
                assert answer.length == 0
            left = len(expected) - answer.length
            if left and answer.length and bytes_max > answer.length:
                following = read_header(expected, answer.length).size
                slack = bytes_max - answer.length
                assert slack < following + shape.interval + 6 * 6100, "stopped long before the limit"

    run_fast(scenario())


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.integers(0, 2**32), st.sampled_from([0.05, 0.2]))
def test_a_stumbling_store_changes_no_byte(shape: Shape, seed: int, rate: float) -> None:
    """Refusals, broken bodies and flipped bits at random: the reader is told at most of retriable errors or of damage
    that is gone the next time, and gets exactly the log."""
    log = shape.build()

    async def scenario() -> None:
        disk, workers, tasks = CrashDisk(), LoopWorkers(), Tasks()
        memory = MemoryStore()
        await put(memory, log)
        rates = {(Operation.GET, fault): rate for fault in (Fault.BEFORE, Fault.TRUNCATED, Fault.FLIPPED)}
        store = FaultyStore(memory, SeededRng(seed), FaultPlan(rates=rates, latency_s=(0.0, 0.05)))
        async with reading(store, disk, workers, tasks, cache_bytes=4 * shape.chunk_bytes) as reader:
            from logformat.errors import Corrupt, Retryable

            offset, parts = 0, []
            for _ in range(3000):
                if offset >= log.end_offset:
                    break
                try:
                    data = content(await fetch(reader, log, offset, 3000))
                except (Retryable, Corrupt):
                    continue
                at = 0
                while at < len(data):
                    header = read_header(data, at)
                    at, offset = at + header.size, header.next_offset
                parts.append(data)
            assert b"".join(parts) == log.bytes

    run_fast(scenario())


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.integers(-3000, 3000), st.data())
def test_a_time_finds_what_a_scan_of_all_records_finds(shape: Shape, time: int, data: st.DataObject) -> None:
    """ListOffsets by time over the cold tier, by definition: the first record not older, from the log start on."""
    log = shape.build()
    log_start = data.draw(st.integers(0, log.end_offset))
    before = data.draw(st.integers(log_start, log.end_offset))
    records: list[tuple[int, int]] = []
    for _, position in log.batches:
        header = read_header(log.bytes, position)
        if not header.is_control:
            records += [(record.timestamp, record.offset) for record in iter_records(log.bytes, position)]
    expected = next(
        (found for found in records if found[0] >= T0 + time and log_start <= found[1]),
        None,
    )
    if expected is not None and expected[1] >= before:
        expected = None
    assert log.manifests.manifest is not None
    log.manifests.manifest = log.manifests.manifest.set_log_start(log_start)

    async def scenario() -> None:
        disk, workers, tasks = CrashDisk(), LoopWorkers(), Tasks()
        store = MemoryStore()
        await put(store, log)
        async with reading(store, disk, workers, tasks) as reader:
            assert await reader.offset_for_timestamp(log.manifests, T0 + time, before) == expected

    run_fast(scenario())
