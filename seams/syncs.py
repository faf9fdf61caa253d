"""fdatasync of many files at once, as a parameter: by a worker anywhere, by the kernel alone on Linux.

Always true: each file gets the answer its own fdatasync would have given; what the kernel does not take over (another
system, an old kernel, a sandbox) a worker syncs one after the other. Why the kernel: a thread has to win the
interpreter's lock back from a busy loop after each call, twice a round (ADR 11). Must not know what the files are.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from seams.aio import DEPTH, AioQueue
from seams.disk import File
from seams.workers import Lane, Workers

log = logging.getLogger(__name__)

# Too much of something on this machine, or a file that is closed: the next ones may be taken over.
_PASSING: Final = (errno.EAGAIN, errno.EBADF, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Syncs(Protocol):
    """Makes content and sizes of files durable."""

    async def sync(self, files: Sequence[File]) -> list[OSError | None]:
        """`File.sync` of each: what each raised, None where it is durable."""
        ...


class WorkerSyncs:
    """`Syncs` by one call of a worker."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def sync(self, files: Sequence[File]) -> list[OSError | None]:
        return await self._workers.run(sync_each, files, lane=Lane.FLUSH)


class KernelSyncs:
    """`Syncs` by Linux' native AIO: one call hands the files over, an eventfd that the loop watches tells the end.

    For one loop; `close` when that is over.
    """

    def __init__(self, workers: Workers) -> None:
        self._otherwise = WorkerSyncs(workers)
        self._queue: AioQueue | None = None
        self._is_refused = False
        self._done: asyncio.Future[list[int]] | None = None  # what the kernel has now

    async def sync(self, files: Sequence[File]) -> list[OSError | None]:
        taken = self._hand_over(files[:DEPTH])
        failures: list[OSError | None] = []
        if taken is not None:
            errnos = await taken
            failures += [_failure(code, file) for code, file in zip(errnos, files, strict=False)]
        if len(failures) < len(files):
            failures += await self._otherwise.sync(files[len(failures) :])
        return failures

    def close(self) -> None:
        """Wait for what the kernel has and give everything back. Blocks."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None
        self._is_refused = True

    def _hand_over(self, files: Sequence[File]) -> asyncio.Future[list[int]] | None:
        """Errnos of the first files, as many as the kernel took over, some time; None where it took none."""
        if self._is_refused or self._done is not None:
            return None  # the second: whoever asked before us was cancelled and did not wait for the end
        descriptors = [fd for file in files if (fd := file.descriptor()) is not None]
        if not files or len(descriptors) < len(files):
            return None
        try:
            if self._queue is None:
                self._queue = self._watched()
            self._queue.submit(descriptors)
        except OSError as refused:
            if refused.errno not in _PASSING:
                self._refuse(refused)
            return None
        self._done = asyncio.get_running_loop().create_future()
        return self._done

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
        queue, done = self._queue, self._done
        assert queue is not None and done is not None
        try:
            errnos = queue.results()
        except OSError as lost:
            asyncio.get_running_loop().remove_reader(queue.event_fd)
            self._refuse(lost)
            errnos = [lost.errno or errno.EIO] * queue.taken  # nobody knows: as after a failed sync
        if errnos is not None:
            self._done = None
            if not done.cancelled():
                done.set_result(errnos)

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
