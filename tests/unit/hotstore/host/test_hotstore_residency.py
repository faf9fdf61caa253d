"""Residency of local bytes (C25): what the loop may send without waiting for a disk."""

from __future__ import annotations

import asyncio
import errno

import pytest

from hotstore.host import residency as residency_module
from hotstore.host.residency import Residency, read_through
from logformat.errors import Retryable
from seams.files.disk import File
from seams.loop.tasks import FailureReport
from seams.loop.workers import Lane
from tests.support.disk.crash_disk import CrashDisk
from tests.support.workers import LoopWorkers

STEP = 1000
FD = -7  # no kernel has anything of it


def a_file(disk: CrashDisk, size: int, name: str = "a.log") -> File:
    disk.make_dirs("/data")
    file = disk.open(f"/data/{name}", write=True, create=True)
    file.write_at(0, [bytes(size)])
    return file


def noting(failed: list[int | None]) -> FailureReport:
    def note(name: str, failure: BaseException) -> None:
        assert isinstance(failure, OSError), name
        failed.append(failure.errno)

    return note


class WatchedFile:
    """A `File` that notes where it is read, and whether by a worker."""

    def __init__(self, inner: File, workers: LoopWorkers) -> None:
        self._inner = inner
        self._workers = workers
        self.reads: list[tuple[int, int]] = []

    @property
    def path(self) -> str:
        return self._inner.path

    def descriptor(self) -> int:
        assert self._workers.lanes, "not on the loop"
        return FD

    def size(self) -> int:
        assert self._workers.lanes, "not on the loop"
        return self._inner.size()

    def read_into(self, position: int, buffer: memoryview) -> int:
        self.reads.append((position, len(buffer)))
        return self._inner.read_into(position, buffer)

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        raise AssertionError(f"{name} of a file must not be called on the loop")


async def test_what_lies_in_the_page_cache_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hot fetches of sealed segments copied each byte once for nothing (0.1 s of CPU a GB)."""
    monkeypatch.setattr(residency_module, "is_cached", lambda *asked: asked == (FD, 0, STEP))
    workers = LoopWorkers()
    file = WatchedFile(a_file(CrashDisk(), 10 * STEP), workers)
    residency = Residency(workers, 8 * STEP, step_bytes=STEP)
    waiting = residency.ready(file, 100, 50)  # type: ignore[arg-type]
    assert waiting is not None
    await waiting
    assert residency.ready(file, 100, 50) is None and not file.reads  # type: ignore[arg-type]
    await residency.close()


async def test_design_c25_the_loop_never_sends_bytes_that_no_worker_read_before() -> None:
    """Old bytes are not ready until a worker of the hot-read lane read them; asking touches no file at all."""
    workers = LoopWorkers()
    file = WatchedFile(a_file(CrashDisk(), 10 * STEP), workers)
    residency = Residency(workers, 8 * STEP, step_bytes=STEP)
    waiting = residency.ready(file, 100, 50)  # type: ignore[arg-type]
    assert waiting is not None and not file.reads, "asking must not read"
    await waiting
    assert file.reads and set(workers.lanes) == {Lane.HOT_READ}
    assert residency.ready(file, 100, 50) is None  # type: ignore[arg-type]
    read_by_workers = list(file.reads)
    covered = {at + n for at, length in read_by_workers for n in range(length)}
    assert set(range(100, 150)) <= covered
    await residency.close()


async def test_a_range_over_several_steps_waits_for_all_of_them() -> None:
    """Ready only when the first and the last byte were read, and every step is read once."""
    workers = LoopWorkers()
    residency = Residency(workers, 64 * STEP, step_bytes=STEP)
    file = WatchedFile(a_file(CrashDisk(), 10 * STEP), workers)
    rounds = 0
    while (waiting := residency.ready(file, STEP - 1, 3 * STEP)) is not None:  # type: ignore[arg-type]
        await waiting
        rounds += 1
    assert rounds and file.reads == [(number * STEP, STEP) for number in range(4)]
    await residency.close()


async def test_a_reader_that_goes_on_finds_the_next_step_read_ahead() -> None:
    """Using a step starts the next one, so a sequential reader waits once and then never again."""
    residency = Residency(LoopWorkers(), 64 * STEP, step_bytes=STEP)
    file = a_file(CrashDisk(), 10 * STEP)
    first = residency.ready(file, 0, 100)
    assert first is not None
    await first
    waits = 0
    for position in range(0, 9 * STEP, 100):
        waits += residency.ready(file, position, 100) is not None
        await asyncio.sleep(0.001)
    assert waits == 0
    await residency.close()


async def test_many_who_want_one_step_cause_one_read_and_one_may_give_up() -> None:
    """Single flight; a waiter that cancels takes nobody with it."""
    workers = LoopWorkers()
    residency = Residency(workers, 64 * STEP, step_bytes=STEP)
    file = WatchedFile(a_file(CrashDisk(), STEP), workers)
    first = residency.ready(file, 0, 10)  # type: ignore[arg-type]
    assert first is not None
    first.cancel()
    second = residency.ready(file, 5, 10)  # type: ignore[arg-type]
    assert second is not None and not second.done()
    assert residency.waiting == 1
    await second
    assert len(file.reads) == 1 and residency.ready(file, 0, 10) is None  # type: ignore[arg-type]
    await residency.close()


async def test_memory_is_bounded_and_the_oldest_is_asked_for_again() -> None:
    """More than the budget was read since: the kernel may have dropped it, so a worker reads it again."""
    residency = Residency(LoopWorkers(), 16 * STEP, step_bytes=STEP)
    file = a_file(CrashDisk(), 40 * STEP)
    for step in range(30):
        waiting = residency.ready(file, step * STEP, 10)
        if waiting is not None:
            await waiting
    assert residency.ready(file, 29 * STEP, 10) is None
    assert residency.ready(file, 0, 10) is not None
    await residency.close()


async def test_a_failed_read_is_told_once_and_then_tried_again() -> None:
    """EIO reaches the next asker as OSError (never an endless wait), the one after that starts a new read."""
    disk = CrashDisk()
    file = a_file(disk, STEP)
    disk.inject("read", errno.EIO, times=1)
    failed: list[int | None] = []  # what the operator is told
    residency = Residency(LoopWorkers(), 16 * STEP, step_bytes=STEP, report=noting(failed))
    waiting = residency.ready(file, 0, 10)
    assert waiting is not None
    await waiting
    with pytest.raises(OSError):
        residency.ready(file, 0, 10)
    again = residency.ready(file, 0, 10)
    assert again is not None
    await again
    assert residency.ready(file, 0, 10) is None and failed == [errno.EIO]
    await residency.close()


async def test_after_a_failed_read_only_a_read_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel keeps the pages of a failed read and counts them as cached: sendfile would meet the error on the loop,
    and end the connection where the partition should have been answered with an error code."""
    in_page_cache = False
    monkeypatch.setattr(residency_module, "is_cached", lambda *_: in_page_cache)
    disk, workers = CrashDisk(), LoopWorkers()
    file = WatchedFile(a_file(disk, STEP), workers)
    disk.inject("read", errno.EIO, times=2)
    residency = Residency(workers, 16 * STEP, step_bytes=STEP)
    for _ in range(2):
        waiting = residency.ready(file, 0, 10)  # type: ignore[arg-type]
        assert waiting is not None
        await waiting
        in_page_cache = True
        with pytest.raises(OSError):
            residency.ready(file, 0, 10)  # type: ignore[arg-type]
    waiting = residency.ready(file, 0, 10)  # type: ignore[arg-type]
    assert waiting is not None
    await waiting
    assert residency.ready(file, 0, 10) is None and len(file.reads) == 3  # type: ignore[arg-type]
    await residency.close()


async def test_the_queue_is_bounded() -> None:
    """Beyond the bound an asker is sent away with a retriable error; it does not queue for ever."""
    residency = Residency(LoopWorkers(), 64 * STEP, step_bytes=STEP, waiting_max=4)
    file = a_file(CrashDisk(), 100 * STEP)
    for step in range(4):
        assert residency.ready(file, step * STEP, 10) is not None
    with pytest.raises(Retryable):
        residency.ready(file, 50 * STEP, 10)
    await residency.close()


async def test_closing_ends_every_wait() -> None:
    """Nobody hangs on a future of a closed residency."""
    residency = Residency(LoopWorkers(), 64 * STEP, step_bytes=STEP)
    waiting = residency.ready(a_file(CrashDisk(), STEP), 0, 10)
    assert waiting is not None
    await residency.close()
    assert waiting.done()


async def nothing() -> None:
    pass


async def test_a_closed_residency_leaves_nobody_waiting_for_what_never_begins() -> None:
    residency = Residency(LoopWorkers(), 64 * STEP, step_bytes=STEP)
    file = a_file(CrashDisk(), STEP)
    await residency.close()
    for _ in range(2):  # the second one joined what the first had left
        with pytest.raises(Retryable):
            residency.ready(file, 0, 10)
        with pytest.raises(Retryable):
            residency.once("index", 1, nothing)


async def test_another_file_at_a_path_is_read_again() -> None:
    """A path may be used again after a deletion: nothing remembered of the old file speaks for the new one."""
    residency = Residency(LoopWorkers(), 64 * STEP, step_bytes=STEP)
    disk = CrashDisk()
    file = a_file(disk, STEP)
    waiting = residency.ready(file, 0, 10)
    assert waiting is not None
    await waiting
    assert residency.ready(file, 0, 10) is None
    assert residency.ready(a_file(disk, STEP), 0, 10) is not None
    await residency.close()


def test_reading_through_stops_at_the_end_of_the_file() -> None:
    """The count is what was there, whatever was asked for."""
    disk = CrashDisk()
    assert read_through(a_file(disk, 700), 0, STEP) == 700
    assert read_through(a_file(disk, 700, "b.log"), 700, STEP) == 0


async def test_a_call_that_has_to_come_first_is_made_once_and_its_failure_told_once() -> None:
    """Whoever reads where an index or a check is missing waits for the same call, and meets what it met."""
    failed: list[int | None] = []
    residency = Residency(LoopWorkers(), 16 * STEP, step_bytes=STEP, waiting_max=2, report=noting(failed))
    calls: list[int] = []

    async def load(number: int) -> None:
        await asyncio.sleep(0)
        calls.append(number)
        if len(calls) == 1:
            raise OSError(errno.EIO, "unreadable")

    def once(number: int) -> asyncio.Future[None]:
        return residency.once("index", number, lambda: load(number))

    first, second = once(7), once(7)
    assert first is second and residency.waiting == 1
    once(8)
    with pytest.raises(Retryable):
        once(9)
    await first
    with pytest.raises(OSError, match="unreadable"):
        once(7)
    await once(7)
    assert calls == [7, 8, 7] and failed == [errno.EIO] and residency.waiting == 0
    await residency.close()
