"""Many files synced at once: each is told what its own fdatasync would have said, whatever the kernel takes over."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from seams import aio


@pytest.fixture
def fds(tmp_path: Path) -> Iterator[list[int]]:
    opened = [os.open(tmp_path / str(at), os.O_RDWR | os.O_CREAT) for at in range(aio.DEPTH + 6)]
    for fd in opened:
        os.pwrite(fd, b"x" * 5000, 0)
    yield opened
    for fd in opened:
        os.close(fd)


@pytest.fixture
def unsyncable() -> Iterator[int]:
    fd = os.open(os.devnull, os.O_RDONLY)  # fdatasync(2): EINVAL
    yield fd
    os.close(fd)


@pytest.mark.parametrize("count", [0, 1, 2, 8, aio.DEPTH, aio.DEPTH + 6])
def test_all_are_synced(fds: list[int], count: int) -> None:
    assert aio.sync_files(fds[:count]) == [0] * count


@pytest.mark.parametrize("at", [0, 3, 7])
def test_each_hears_of_its_own(fds: list[int], unsyncable: int, at: int) -> None:
    asked = fds[:7]
    asked.insert(at, unsyncable)
    expected = [0] * 8
    expected[at] = errno.EINVAL
    assert aio.sync_files(asked) == expected
    assert aio.sync_files(fds[:8]) == [0] * 8, "nothing of it is left in the queue"


@pytest.mark.parametrize("at", [0, 3, 7])
def test_a_descriptor_that_is_closed_keeps_nobody_from_a_sync(fds: list[int], at: int) -> None:
    """The kernel stops taking over there; the rest is synced one after the other."""
    asked = fds[:7]
    asked.insert(at, 1 << 20)
    expected = [0] * 8
    expected[at] = errno.EBADF
    assert aio.sync_files(asked) == expected


def test_threads_have_queues_of_their_own(fds: list[int], unsyncable: int) -> None:
    with ThreadPoolExecutor(4) as pool:
        good = [pool.submit(aio.sync_files, fds[:8]) for _ in range(50)]
        bad = [pool.submit(aio.sync_files, [unsyncable, *fds[:8]]) for _ in range(50)]
        assert all(one.result() == [0] * 8 for one in good)
        assert all(one.result() == [errno.EINVAL] + [0] * 8 for one in bad)


@pytest.mark.parametrize("refusal", [errno.ENOSYS, errno.EPERM, errno.EAGAIN])
def test_a_kernel_that_refuses_is_done_without(
    fds: list[int], unsyncable: int, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    def refused(self: aio._Queue) -> None:
        self._context = ctypes.c_ulong(0)
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(aio._Queue, "__init__", refused)
    with ThreadPoolExecutor(1) as pool:  # a thread that has no queue yet
        assert pool.submit(aio.sync_files, [*fds[:3], unsyncable]).result() == [0, 0, 0, errno.EINVAL]


def test_here_the_kernel_takes_over(fds: list[int]) -> None:
    """Else the tests above say nothing of it."""
    try:
        queue = aio._Queue()
    except (OSError, KeyError) as refused:
        pytest.skip(f"no native AIO here: {refused!r}")
    assert queue.submit(fds[:8]) == 8
    assert queue.wait(8) == [0] * 8
    queue.close()


def test_a_thread_that_ends_gives_its_context_back(fds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """What aio-nr says is the machine's; so the calls of this process are counted."""
    calls: list[int] = []
    call = aio._Queue._call

    def counted(self: aio._Queue, number: int, *arguments: object) -> int:
        calls.append(number)
        return call(self, number, *arguments)

    monkeypatch.setattr(aio._Queue, "_call", counted)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(aio.sync_files, fds[:8]).result() == [0] * 8
    setup, destroy = aio._CALLS[platform.machine()][:2]
    assert calls.count(destroy) == calls.count(setup)
