"""Syncs as a parameter: fdatasync of many files at once, by a worker or, on Linux, by the kernel alone.

One callback reports the result of each file's own fdatasync, in the turn of the loop in which the last result arrived.
If the kernel does not take some files (another system, an old kernel, a sandbox), a worker syncs them one after the
other. The kernel is preferred because a thread has to win the interpreter's lock back from a busy loop twice for each
call (ADR 11).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from seams.files.aio import DEPTH, AioQueue
from seams.files.disk import File
from seams.loop.tasks import Tasks, failure_of_task
from seams.loop.workers import Lane, Workers

log = logging.getLogger(__name__)

# Temporary: a resource is exhausted, or a file is closed. The next files may be taken.
_PASSING: Final = (errno.EAGAIN, errno.EBADF, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


Synced = Callable[[list[OSError | None]], None]
"""Gets the error of each file's sync; None: durable."""


class CutOff(OSError):
    """A sync that began and got no result, so the durable bytes are unknown. `__cause__` is the interruption."""

    def __init__(self, by: BaseException) -> None:
        super().__init__(errno.EIO, f"a sync was cut off, so it is unknown which bytes are durable: {by!r}")
        self.__cause__ = by


class Syncs(Protocol):
    """Makes content and sizes of files durable."""

    def sync(self, files: Sequence[File], synced: Synced) -> None:
        """Call `File.sync` of each file, off the loop. `synced` is called once, on the loop, after this call returned.
        A file without a result has failed with `CutOff`."""
        ...


class WorkerSyncs:
    """`Syncs` by one worker call."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._tasks = Tasks()

    def sync(self, files: Sequence[File], synced: Synced) -> None:
        call = self._workers.run(sync_each, files, lane=Lane.FLUSH)
        self._tasks.spawn_with_callback("sync of files", call, partial(_worker_done, len(files), synced))


def _worker_done(count: int, synced: Synced, task: asyncio.Future[list[OSError | None]]) -> None:
    cut_off = failure_of_task(task)
    synced(task.result() if cut_off is None else [CutOff(cut_off)] * count)


class _Submitted(NamedTuple):
    """Files of one submission. The kernel took the first `taken` of them."""

    files: Sequence[File]
    taken: int
    synced: Synced


class KernelSyncs:
    """`Syncs` by Linux' native AIO: one call submits the files, the loop watches an eventfd. For one loop; `close` it
    at the end."""

    def __init__(self, workers: Workers) -> None:
        self._fallback = WorkerSyncs(workers)
        self._queue: AioQueue | None = None
        self._is_refused = False
        self._submitted: _Submitted | None = None

    def sync(self, files: Sequence[File], synced: Synced) -> None:
        if not self._submit(files, synced):
            self._fallback.sync(files, synced)

    def close(self) -> None:
        """Blocking: wait for pending syncs and free everything."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None
        self._is_refused = True

    def _submit(self, files: Sequence[File], synced: Synced) -> bool:
        """Submit as many files to the kernel as it takes, from the first on. Returns whether it took any."""
        if self._is_refused or self._submitted is not None:
            return False  # a sync of another caller is pending
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
        self._submitted = _Submitted(files, self._queue.taken, synced)
        return True

    def _watched(self) -> AioQueue:
        queue = AioQueue()
        try:
            asyncio.get_running_loop().add_reader(queue.event_fd, self._on_event)
        except OSError:
            queue.close()
            raise
        return queue

    def _on_event(self) -> None:
        """Some of the submitted syncs ended."""
        queue, submitted = self._queue, self._submitted
        assert queue is not None and submitted is not None
        try:
            errnos = queue.results()
        except OSError as lost:
            asyncio.get_running_loop().remove_reader(queue.event_fd)
            self._refuse(lost)
            errnos = [lost.errno or errno.EIO] * queue.taken  # no results: each sync counts as failed
        if errnos is None:
            return
        self._submitted = None
        files, taken, synced = submitted
        failures = [_failure(code, file) for code, file in zip(errnos, files, strict=False)]
        if taken < len(files):
            self._fallback.sync(files[taken:], lambda of_rest: synced(failures + of_rest))
        else:
            synced(failures)

    def _refuse(self, why: OSError) -> None:
        self._is_refused = True
        log.warning("the kernel offers no AIO (%s): a worker syncs files from now on, and acks=all is slower", why)


def sync_each(files: Sequence[File]) -> list[OSError | None]:
    """Sync the files one after the other. Blocking."""
    return [failure_of(file.sync) for file in files]


def failure_of(call: Callable[[], None]) -> OSError | None:
    """The OSError that `call` raises; None if it succeeds."""
    try:
        call()
    except OSError as failed:
        return failed
    return None


def _failure(code: int, file: File) -> OSError | None:
    return OSError(code, os.strerror(code), file.path) if code else None
