"""A fetch finds a wrong, sparse or missing index: a worker rebuilds it, and the loop reads a few headers only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple, cast

import pytest

from broker.partition.local_reads import LocalReads
from hotstore.errors import DamagedLog
from hotstore.host.lease import Lease
from hotstore.host.residency import Residency
from hotstore.log.batch_walk import WALK_WINDOW_BYTES
from hotstore.log.locator import LogSlice
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from hotstore.log.segment import build_indexer
from logformat.record_batch import read_header
from seams.files.disk import File
from seams.loop.workers import Lane
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import (
    LOG_PATH,
    SteppedWorkers,
    append,
    batch,
    flush,
    new_log,
    open_log,
    seal,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

COUNT = 3000
"""Batches of 1 KB: the segment is larger than the part that a look-up may walk."""
FAR = 1900
"""An offset far from the start; positions of the last 1024 appends need no index."""
CONFIG = LogConfig(index_interval_bytes=4096, segment_bytes=1 << 30)
LOOP_BYTES_MAX = (1 << 20) + (256 << 10)
"""That part, and windows of single batches."""
SMALL_BYTES_MAX = 64 << 10
INDEX = f"{LOG_PATH}/{0:020d}.index"


class Watched:
    """A segment's file that counts the bytes read outside of workers. `on_read` is called before each read, with the
    read's length."""

    def __init__(self, file: File, on_read: Callable[[int], None]) -> None:
        self._file = file
        self._on_read = on_read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read_at(self, position: int, length: int) -> bytes:
        self._on_read(length)
        data = self._file.read_at(position, length)
        Role.loop_bytes += 0 if Role.in_worker else len(data)
        return data


class Role:
    """A lease whose calls run at once, and whose log is read by `LocalReads`."""

    in_worker = False
    loop_bytes = 0

    def __init__(self, log: PartitionLog, on_read: Callable[[int], None] = lambda _: None) -> None:
        self.log = log
        self.loads = 0
        self.damage: list[DamagedLog] = []
        self.reads = LocalReads(cast(Lease, self), self.damage.append)
        self.residency = Residency(SteppedWorkers(immediate=True))
        segment = log._locator.segments[0]
        segment.file = cast(File, Watched(segment.file, on_read))

    def check(self) -> None:
        pass

    async def call(self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane) -> T:
        self.loads += function.__name__ == "load"  # the others check offsets
        await asyncio.sleep(0)
        Role.in_worker = True
        try:
            return function(*args)
        finally:
            Role.in_worker = False

    async def read(self, offset: int, bytes_max: int = 5000) -> tuple[LogSlice, int]:
        """The slice, and the most bytes that one call read on the loop."""
        most = 0
        for _ in range(10):
            Role.loop_bytes = 0
            try:
                found = self.reads.read(self.residency, offset, bytes_max, self.log.log_end_offset, min_one=True)
            finally:
                most = max(most, Role.loop_bytes)
                assert most <= LOOP_BYTES_MAX
            if isinstance(found, LogSlice):
                return found, most
            assert found is not None
            await found
        raise AssertionError("the read never succeeds")


def sealed(disk: CrashDisk) -> PartitionLog:
    """A log with one sealed segment, whose index is not in memory."""
    _, log = new_log(disk, CONFIG)
    _fill(log, COUNT)
    log.roll()
    append(log, batch())
    flush(log)
    seal(log)
    return log


def _fill(log: PartitionLog, count: int) -> None:
    for _ in range(count):
        append(log, batch(size=960))


def shift_positions(disk: CrashDisk) -> None:
    """Of all entries but the last, which a start compares with the log."""
    for entry in range(disk.stat(INDEX).size // 8 - 1):  # type: ignore[union-attr]
        disk.flip_bit(INDEX, 8 * entry + 7, 0)


def base_of(found: LogSlice) -> int:
    return read_header(found.file.read_at(found.position, 61)).base_offset


@pytest.mark.parametrize("offset", [1, COUNT // 2, FAR])
async def test_a_wrong_index_of_a_sealed_segment_is_rebuilt_in_a_worker(offset: int) -> None:
    """The loop read the headers of the whole segment: 1.5 s for 256 MiB of such batches."""
    disk = CrashDisk()
    role = Role(sealed(disk))
    shift_positions(disk)
    found, loop_bytes = await role.read(offset)
    assert base_of(found) == offset and loop_bytes <= SMALL_BYTES_MAX
    assert role.loads == 2  # load and rebuild
    again, _ = await role.read(offset)
    assert again == found and role.loads == 2


async def test_a_wrong_index_where_a_slice_ends_is_rebuilt_in_a_worker() -> None:
    disk = CrashDisk()
    role = Role(sealed(disk))
    shift_positions(disk)
    found, loop_bytes = await role.read(0, 1 << 20)
    assert base_of(found) == 0 and loop_bytes <= SMALL_BYTES_MAX
    assert found.length > 1_000_000 and role.loads == 2


async def test_an_index_without_entries_is_rebuilt_in_a_worker() -> None:
    """Its first entry is as good as any, but a walk from there is one of the whole segment."""
    disk = CrashDisk()
    role = Role(sealed(disk))
    disk.open(INDEX, write=True).truncate(0)
    found, _ = await role.read(FAR)
    assert base_of(found) == FAR and role.loads == 2


async def test_damage_that_a_rebuild_meets_is_reported_to_each_read() -> None:
    """A second read at the same offset walked up to the damage on the loop."""
    disk = CrashDisk()
    log = sealed(disk)
    role = Role(log)
    disk.unlink(INDEX)
    size = log.sealed_segments()[0].bytes
    at = next(place for place in range(size // 2, size) if place % (size // COUNT) == 0)
    disk.flip_bit(f"{LOG_PATH}/{0:020d}.log", at + 16, 0)  # the magic
    for reported in (1, 2):
        with pytest.raises(DamagedLog):
            await role.read(FAR)
        assert len(role.damage) == reported and role.loads == 1


@pytest.mark.parametrize("is_missing", [False, True])
async def test_damage_of_one_rebuild_is_reported_to_all_readers(is_missing: bool) -> None:
    """Regression: only one read heard of the damage. Each other one began a rebuild of its own, a second of a worker
    for 256 MiB, and a read that goes on in the bucket needs the report twice: before and after its chunk is loaded."""
    disk = CrashDisk()
    log = sealed(disk)
    role = Role(log)
    at = build_indexer(log._locator.segments[0]).offset_index.lookup(FAR + 900).position
    disk.flip_bit(f"{LOG_PATH}/{0:020d}.log", at + 16, 0)  # the magic
    if is_missing:
        disk.unlink(INDEX)
    else:
        shift_positions(disk)
        with pytest.raises(DamagedLog):
            await role.read(1)
        role.loads = 0

    def read() -> object:
        return role.reads.read(role.residency, FAR, 5000, log.log_end_offset, min_one=True)

    if is_missing:
        first, second = read(), read()
        assert first is second and isinstance(first, asyncio.Future)
        await first
    frames = set()
    for _ in range(3):
        with pytest.raises(DamagedLog) as reported:
            read()
        frames.add(len(reported.traceback))
    assert role.loads == is_missing
    assert len(frames) == 1, "it kept the frames of every earlier read"


async def test_a_base_offset_that_is_far_away_is_damage() -> None:
    """Regression: no checksum covers the base offset. The rebuild failed at an assertion, and each read asked for it
    again, without an error, until the fetch ended."""
    disk = CrashDisk()
    log = sealed(disk)
    role = Role(log)
    at = build_indexer(log._locator.segments[0]).offset_index.lookup(FAR).position
    disk.flip_bit(f"{LOG_PATH}/{0:020d}.log", at + 2, 0)  # 2^40
    with pytest.raises(DamagedLog, match="the segment begins at 0"):
        await role.read(FAR)
    assert len(role.damage) == 1


async def test_a_batch_behind_a_large_one_needs_no_rebuild() -> None:
    """The index is correct, though no entry is near: the large batch came before an interval was full."""
    _, log = new_log(CrashDisk(), CONFIG)
    _fill(log, 20)
    append(log, batch(size=3 << 20))
    behind = append(log, batch(2)).base_offset
    for _ in range(1200):
        append(log, batch())
    flush(log)
    seal(log)
    role = Role(log)
    found, _ = await role.read(behind)
    assert base_of(found) == behind and role.loads <= 1


def reopened(disk: CrashDisk) -> PartitionLog:
    """After a clean stop, and a change of the active segment's offset index."""
    directory, log = new_log(disk, CONFIG)
    _fill(log, COUNT)
    flush(log)
    directory.checkpoints.sample([log]).run()
    log.close(True)
    directory.mark_clean()
    directory.close()
    shift_positions(disk)
    _, log = open_log(disk, CONFIG)
    assert log.recovery.scanned_bytes == 0
    return log


async def test_a_wrong_index_of_the_active_segment_is_rebuilt_in_a_worker() -> None:
    disk = CrashDisk()
    role = Role(reopened(disk))
    found, loop_bytes = await role.read(COUNT // 2)
    assert base_of(found) == COUNT // 2 and loop_bytes <= SMALL_BYTES_MAX and role.loads == 1
    _fill(role.log, COUNT)
    for offset in (COUNT // 2, COUNT - 1, COUNT, 2 * COUNT - 1):
        found, loop_bytes = await role.read(offset)
        assert base_of(found) == offset and loop_bytes <= SMALL_BYTES_MAX
    assert role.loads == 1


def test_appends_during_a_rebuild_keep_their_index_entries() -> None:
    """The rebuilt index replaced that of the appends, so it lacked their entries, also in the file that was sealed."""
    disk = CrashDisk()
    log = reopened(disk)
    segment, appended = log.active_segment, False

    def append_once(length: int) -> None:
        nonlocal appended
        if length == WALK_WINDOW_BYTES and not appended:
            appended = True
            _fill(log, 100)

    Role(log, append_once)
    assert segment.locate(COUNT // 2, log._locator.cache).base_offset == COUNT // 2
    assert appended and segment.indexer is not None
    tail = [entry for entry in build_indexer(segment).offset_index.entries() if entry.offset >= COUNT]
    assert len(tail) > 10 and list(segment.indexer.offset_index.entries())[-len(tail) :] == tail


async def test_a_rebuilt_index_of_an_active_segment_is_not_used_after_its_seal() -> None:
    """It lacks the entries of later appends: the loop would walk through them."""
    disk = CrashDisk()
    role = Role(reopened(disk))
    await role.read(COUNT // 2)
    _fill(role.log, COUNT)
    role.log.roll()
    append(role.log, batch())
    flush(role.log)
    seal(role.log)
    for offset in (2 * COUNT - 1, COUNT // 2):
        found, _ = await role.read(offset)
        assert base_of(found) == offset
