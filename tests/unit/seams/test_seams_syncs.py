"""Many files synced at once: each is told what its own fdatasync would have said, whatever the kernel takes over."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from seams.files import aio, syncs
from seams.files.disk import File
from seams.files.posix_disk import PosixFile
from seams.files.syncs import CutOff, KernelSyncs, Syncs, WorkerSyncs
from seams.loop.workers import Lane, ThreadWorkers

COUNT = aio.DEPTH + 6


class CountedWorkers(ThreadWorkers):
    """How many files workers had to sync."""

    def __init__(self) -> None:
        super().__init__()
        self.files = 0

    async def run(self, function, *args, lane=Lane.FILES):  # type: ignore[no-untyped-def]
        assert function is syncs.sync_each and lane is Lane.FLUSH
        self.files += len(args[0])
        return await super().run(function, *args, lane=lane)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[PosixFile]]:
    opened = [
        PosixFile(os.open(tmp_path / str(at), os.O_RDWR | os.O_CREAT), str(tmp_path / str(at))) for at in range(COUNT)
    ]
    for file in opened:
        file.write_at(0, [b"x" * 5000])
    yield opened
    for file in opened:
        file.close()


@pytest.fixture
def unsyncable() -> Iterator[PosixFile]:
    file = PosixFile(os.open(os.devnull, os.O_RDONLY), os.devnull)  # fdatasync(2): EINVAL
    yield file
    file.close()


@pytest.fixture
def workers() -> Iterator[CountedWorkers]:
    made = CountedWorkers()
    yield made
    made.close()


def play(workers: CountedWorkers, scene: Callable[[KernelSyncs], Awaitable[None]]) -> None:
    async def run() -> None:
        with contextlib.closing(KernelSyncs(workers)) as kernel:
            await asyncio.wait_for(scene(kernel), 30)

    asyncio.run(run())


def has_aio() -> bool:
    try:
        aio.AioQueue().close()
    except OSError as refused:
        print(f"no native AIO here: {refused!r}")
        return False
    return True


needs_aio = pytest.mark.skipif(not has_aio(), reason="no native AIO here: a worker syncs all")


def synced_by(one: Syncs, files: Sequence[File]) -> asyncio.Future[list[OSError | None]]:
    """What it tells of them; asyncio complains where it tells twice."""
    told: asyncio.Future[list[OSError | None]] = asyncio.get_running_loop().create_future()
    one.sync(files, told.set_result)
    assert not told.done(), "never before the call returned"
    return told


def errnos(failures: list[OSError | None]) -> list[int | None]:
    return [failure.errno if failure else 0 for failure in failures]


@pytest.mark.parametrize("count", [0, 1, 2, 8, aio.DEPTH, COUNT])
def test_all_are_synced(workers: CountedWorkers, files: list[PosixFile], count: int) -> None:
    async def scene(kernel: KernelSyncs) -> None:
        for _ in range(3):
            assert await synced_by(kernel, files[:count]) == [None] * count

    play(workers, scene)


@pytest.mark.parametrize("at", [0, 3, 7])
@pytest.mark.parametrize("by_kernel", [True, False])
def test_each_hears_of_its_own(
    workers: CountedWorkers, files: list[PosixFile], unsyncable: PosixFile, at: int, by_kernel: bool
) -> None:
    asked = files[:7]
    asked.insert(at, unsyncable)
    expected = [0] * 8
    expected[at] = errno.EINVAL

    async def scene(kernel: KernelSyncs) -> None:
        one = kernel if by_kernel else WorkerSyncs(workers)
        assert errnos(await synced_by(one, asked)) == expected
        assert await synced_by(one, files[:8]) == [None] * 8, "nothing of it is left in the queue"

    play(workers, scene)


@needs_aio
def test_the_kernel_takes_over(workers: CountedWorkers, files: list[PosixFile]) -> None:
    """Else the tests above say nothing of it; a worker has what is beyond its depth."""

    async def scene(kernel: KernelSyncs) -> None:
        await synced_by(kernel, files[: aio.DEPTH])
        assert workers.files == 0
        await synced_by(kernel, files)
        assert workers.files == COUNT - aio.DEPTH

    play(workers, scene)


@needs_aio
def test_what_the_kernel_left_and_no_worker_may_take_is_told_as_cut_off(
    workers: CountedWorkers, files: list[PosixFile]
) -> None:
    """What the kernel has synced stays synced."""

    async def scene(kernel: KernelSyncs) -> None:
        await kernel._fallback._tasks.close()
        failures = await asyncio.wait_for(synced_by(kernel, files), 5)
        assert failures[: aio.DEPTH] == [None] * aio.DEPTH
        assert [type(failure) for failure in failures[aio.DEPTH :]] == [CutOff] * (COUNT - aio.DEPTH)

    play(workers, scene)


@pytest.mark.parametrize("at", [0, 3, 7])
def test_a_descriptor_that_is_closed_keeps_nobody_from_a_sync(
    workers: CountedWorkers, files: list[PosixFile], at: int
) -> None:
    """The kernel stops taking over there; a worker syncs the rest one after the other."""
    asked = files[:7]
    closed = PosixFile(1 << 20, "closed")
    asked.insert(at, closed)
    expected = [0] * 8
    expected[at] = errno.EBADF

    async def scene(kernel: KernelSyncs) -> None:
        assert errnos(await synced_by(kernel, asked)) == expected
        closed._fd = -1  # nothing to close
        before = workers.files
        assert await synced_by(kernel, files[:7]) == [None] * 7
        assert workers.files == before or not has_aio(), "the kernel takes the next ones"

    play(workers, scene)


@needs_aio
def test_who_asks_while_the_kernel_is_busy_is_told_of_its_own(workers: CountedWorkers, files: list[PosixFile]) -> None:
    """What the kernel still has is not taken for the answer to the next one, which a worker gives."""

    async def scene(kernel: KernelSyncs) -> None:
        first, second = synced_by(kernel, files[:8]), synced_by(kernel, files[8:11])
        assert await second == [None] * 3 and workers.files == 3
        assert await first == [None] * 8 and workers.files == 3
        assert await synced_by(kernel, files[:8]) == [None] * 8 and workers.files == 3

    play(workers, scene)


@needs_aio
def test_the_kernels_answer_is_told_in_the_turn_in_which_it_is_read(
    workers: CountedWorkers, files: list[PosixFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn of the loop between would be a part of what every acknowledged batch waits for."""
    results, steps = aio.AioQueue.results, list[str]()

    def read(self: aio.AioQueue) -> list[int] | None:
        errnos = results(self)
        if errnos is not None:
            asyncio.get_running_loop().call_soon(steps.append, "next turn")
            steps.append("read")
        return errnos

    monkeypatch.setattr(aio.AioQueue, "results", read)

    async def scene(kernel: KernelSyncs) -> None:
        kernel.sync(files[:2], lambda failures: steps.append(f"told {failures}"))
        async with asyncio.timeout(10):
            while "next turn" not in steps:
                await asyncio.sleep(0)
        assert steps == ["read", "told [None, None]", "next turn"]

    play(workers, scene)


def test_a_sync_that_a_worker_gave_no_answer_to_has_failed(
    workers: CountedWorkers, files: list[PosixFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that cannot be started, a loop that ends: nobody knows what is durable."""

    async def unstartable(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    async def scene(_: KernelSyncs) -> None:
        one = WorkerSyncs(workers)
        monkeypatch.setattr(workers, "run", unstartable)
        failures = await synced_by(one, files[:2])
        assert [type(failure) for failure in failures] == [CutOff, CutOff] and errnos(failures) == [errno.EIO] * 2
        assert "can't start new thread" in str(failures[0])
        monkeypatch.undo()
        told = synced_by(one, files[:2])
        for task in tuple(one._tasks._running):
            task.cancel()
        assert [type(failure) for failure in await told] == [CutOff, CutOff], "also of what never began to run"

    play(workers, scene)


@pytest.mark.parametrize("refusal", [errno.ENOSYS, errno.EPERM, errno.EAGAIN, errno.EMFILE])
def test_a_kernel_that_refuses_is_done_without(
    workers: CountedWorkers,
    files: list[PosixFile],
    unsyncable: PosixFile,
    monkeypatch: pytest.MonkeyPatch,
    refusal: int,
) -> None:
    asked = 0

    def refused(self: aio.AioQueue) -> None:
        nonlocal asked
        asked += 1
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(aio.AioQueue, "__init__", refused)

    async def scene(kernel: KernelSyncs) -> None:
        for _ in range(3):
            assert errnos(await synced_by(kernel, [*files[:3], unsyncable])) == [0, 0, 0, errno.EINVAL]
        assert asked == (3 if refusal in (errno.EAGAIN, errno.EMFILE) else 1), "what will not pass is not asked again"

    play(workers, scene)


@needs_aio
def test_what_was_taken_is_given_back(
    workers: CountedWorkers, files: list[PosixFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What aio-nr says is the machine's; so the calls of this process are counted."""
    calls: list[int] = []
    call = aio.call

    def counted(number: int, *arguments: object) -> int:
        calls.append(number)
        return call(number, *arguments)

    monkeypatch.setattr(aio, "call", counted)
    open_before = len(os.listdir("/proc/self/fd"))

    async def scene(kernel: KernelSyncs) -> None:
        assert await synced_by(kernel, files[:8]) == [None] * 8

    play(workers, scene)
    setup, destroy = aio._CALLS[aio.MACHINE][:2]
    assert calls.count(destroy) == calls.count(setup) == 1
    assert len(os.listdir("/proc/self/fd")) == open_before


@needs_aio
def test_answers_that_do_not_come_are_failures(
    workers: CountedWorkers, files: list[PosixFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox may let io_submit through and not io_getevents: nobody knows what is durable, and nobody hangs."""

    def untold(self: aio.AioQueue) -> list[int]:
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr(aio.AioQueue, "results", untold)

    async def scene(kernel: KernelSyncs) -> None:
        unheard: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        assert errnos(await synced_by(kernel, files[:8])) == [errno.EPERM] * 8
        for _ in range(3):
            await asyncio.sleep(0)  # the eventfd still has something to tell; nobody listens any more
        assert not unheard
        assert await synced_by(kernel, files[:8]) == [None] * 8 and workers.files == 8, "by a worker from then on"

    play(workers, scene)
