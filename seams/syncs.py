"""fdatasync of many files at once, as a parameter: by a worker anywhere, by the kernel alone on Linux.

Always true: each file gets the answer its own fdatasync would have given, by one callback, in the turn of the loop in
which it came, whatever cut the sync off; what the kernel does not take over (another system, an old kernel, a sandbox)
a worker syncs one after the other. Why the kernel: a thread has to win the interpreter's lock back from a busy loop
after each call, twice a round (ADR 11). Must not know what the files are.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from seams.aio import DEPTH, AioQueue
from seams.disk import File
from seams.tasks import Tasks, failure_of_task
from seams.workers import Lane, Workers

log = logging.getLogger(__name__)

# Too much of something on this machine, or a file that is closed: the next ones may be taken over.
_PASSING: Final = (errno.EAGAIN, errno.EBADF, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


Synced = Callable[[list[OSError | None]], None]
"""Told what the sync of each file raised, None where it is durable."""


class CutOff(OSError):
    """A sync that began and got no answer: nobody knows what is durable. `__cause__` is what cut it off."""

    def __init__(self, by: BaseException) -> None:
        super().__init__(errno.EIO, f"a sync was cut off, nobody knows what is durable: {by!r}")
        self.__cause__ = by


class Syncs(Protocol):
    """Makes content and sizes of files durable."""

    def sync(self, files: Sequence[File], synced: Synced) -> None:
        """`File.sync` of each, off the loop. `synced` is called once, on the loop, never before this returned; what
        got no answer has failed of `CutOff`."""
        ...


class WorkerSyncs:
    """`Syncs` by one call of a worker."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._tasks = Tasks()

    def sync(self, files: Sequence[File], synced: Synced) -> None:
        call = self._workers.run(sync_each, files, lane=Lane.FLUSH)
        self._tasks.spawn_told("sync of files", call, partial(_told_by_worker, len(files), synced))


def _told_by_worker(count: int, synced: Synced, task: asyncio.Future[list[OSError | None]]) -> None:
    cut_off = failure_of_task(task)
    synced(task.result() if cut_off is None else [CutOff(cut_off)] * count)


class _UnderWay(NamedTuple):
    """What the kernel has now: the first `taken` of the files."""

    files: Sequence[File]
    taken: int
    synced: Synced


class KernelSyncs:
    """`Syncs` by Linux' native AIO: one call hands the files over, an eventfd that the loop watches tells the end.

    For one loop; `close` when that is over.
    """

    def __init__(self, workers: Workers) -> None:
        self._otherwise = WorkerSyncs(workers)
        self._queue: AioQueue | None = None
        self._is_refused = False
        self._under_way: _UnderWay | None = None

    def sync(self, files: Sequence[File], synced: Synced) -> None:
        if not self._hand_over(files, synced):
            self._otherwise.sync(files, synced)

    def close(self) -> None:
        """Wait for what the kernel has and give everything back. Blocks."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None
        self._is_refused = True

    def _hand_over(self, files: Sequence[File], synced: Synced) -> bool:
        """Whether the kernel took over some of the files: as many of the first ones as it can."""
        if self._is_refused or self._under_way is not None:
            return False  # the second: it has something for another caller
        first = files[:DEPTH]
        descriptors = [fd for file in first if (fd := file.descriptor()) is not None]
        if not first or len(descriptors) < len(first):
            return False
        try:
            if self._queue is None:
                self._queue = self._watched()
            self._queue.submit(descriptors)
        except OSError as refused:
            if refused.errno not in _PASSING:
                self._refuse(refused)
            return False
        self._under_way = _UnderWay(files, self._queue.taken, synced)
        return True

    def _watched(self) -> AioQueue:
        queue = AioQueue()
        try:
            asyncio.get_running_loop().add_reader(queue.event_fd, self._told)
        except OSError:
            queue.close()
            raise
        return queue

    def _told(self) -> None:
        """Some of what the kernel has is done."""
        queue, under_way = self._queue, self._under_way
        assert queue is not None and under_way is not None
        try:
            errnos = queue.results()
        except OSError as lost:
            asyncio.get_running_loop().remove_reader(queue.event_fd)
            self._refuse(lost)
            errnos = [lost.errno or errno.EIO] * queue.taken  # nobody knows: as after a failed sync
        if errnos is None:
            return
        self._under_way = None
        files, taken, synced = under_way
        failures = [_failure(code, file) for code, file in zip(errnos, files, strict=False)]
        if taken < len(files):
            self._otherwise.sync(files[taken:], lambda of_rest: synced(failures + of_rest))
        else:
            synced(failures)

    def _refuse(self, why: OSError) -> None:
        self._is_refused = True
        log.warning("files are synced by a worker from now on, acks=all is slower: no AIO of the kernel: %s", why)


def sync_each(files: Sequence[File]) -> list[OSError | None]:
    """Blocking: one after the other."""
    return [failure_of(file.sync) for file in files]


def failure_of(call: Callable[[], None]) -> OSError | None:
    """What it raised, None where it succeeded."""
    try:
        call()
    except OSError as failed:
        return failed
    return None


def _failure(code: int, file: File) -> OSError | None:
    return OSError(code, os.strerror(code), file.path) if code else None
