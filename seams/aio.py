"""fdatasync of many files at once by Linux' native AIO: one system call hands them over, one waits for all.

Owns the binding: io_setup(2), io_submit(2), io_getevents(2) with IOCB_CMD_FDSYNC (Linux 4.18). Always true: every file
gets the answer its own fdatasync would have given; what the kernel does not take over (another system, an old kernel, a
sandbox) is synced one after the other. Why not threads: after each call each of them has to win the interpreter's lock
back from a busy loop, and the file system's journal commits once for those who come together (ADR 11).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import threading
from collections.abc import Sequence
from typing import Final

DEPTH: Final = 64  # files that the kernel takes over at once
_FDSYNC: Final = 3
_CALLS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}  # setup, destroy, getevents, submit


class _Iocb(ctypes.Structure):
    """struct iocb of linux/aio_abi.h, little-endian."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_fd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """struct io_event: `data` is the request's, `result` 0 or a negative errno."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class _Queue:
    """One thread's AIO context. Raises OSError where the kernel has none to give."""

    def __init__(self) -> None:
        self._context = ctypes.c_ulong(0)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._setup, self._destroy, self._get_events, self._submit = _CALLS[platform.machine()]
        self._call(self._setup, ctypes.c_uint(DEPTH), ctypes.byref(self._context))
        self._requests = (_Iocb * DEPTH)()
        self._pointers = (ctypes.POINTER(_Iocb) * DEPTH)(*(ctypes.pointer(request) for request in self._requests))
        self._events = (_Event * DEPTH)()

    def submit(self, fds: Sequence[int]) -> int:
        """How many of `fds`, the first ones, the kernel took over. Raises OSError when it takes none."""
        for at, fd in enumerate(fds):
            self._requests[at] = _Iocb(data=at, opcode=_FDSYNC, fd=fd)
        return self._call(self._submit, self._context, ctypes.c_long(len(fds)), self._pointers)

    def wait(self, count: int) -> list[int]:
        """Errnos, 0 for none, of what `submit` handed over, all of it. Raises OSError having waited for all of it."""
        results = [0] * count
        left = count
        while left:
            try:
                got = self._call(
                    self._get_events, self._context, ctypes.c_long(left), ctypes.c_long(left), self._events, None
                )
            except InterruptedError:
                continue
            except OSError:
                self.close()  # waits for what the kernel still has
                raise
            for event in self._events[:got]:
                results[event.data] = -event.result
            left -= got
        return results

    def close(self) -> None:
        """Give the context back. The kernel has a bounded number of them for the whole machine (fs.aio-max-nr)."""
        if self._context:
            context, self._context = self._context, ctypes.c_ulong(0)
            self._call(self._destroy, context)

    def __del__(self) -> None:  # its thread ended
        self.close()

    def _call(self, number: int, *arguments: object) -> int:
        result: int = self._libc.syscall(ctypes.c_long(number), *arguments)
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


class _Mine(threading.local):
    queue: _Queue | None = None
    is_refused = platform.system() != "Linux" or platform.machine() not in _CALLS


_mine = _Mine()


def sync_files(fds: Sequence[int]) -> list[int]:
    """Blocking: fdatasync of each; an errno each, 0 where its content and size are durable."""
    taken: list[int] = []
    if len(fds) > 1 and not _mine.is_refused:
        taken = _sync_together(fds[:DEPTH])
    return taken + [_sync_one(fd) for fd in fds[len(taken) :]]


def _sync_together(fds: Sequence[int]) -> list[int]:
    """Errnos of the first ones, as many as the kernel took over."""
    try:
        queue = _mine.queue
        if queue is None:
            queue = _mine.queue = _Queue()
        count = queue.submit(fds)
    except OSError as refused:
        # Too many at once on this machine, or a file that is closed: the next ones may be taken over.
        _mine.is_refused = refused.errno not in (errno.EAGAIN, errno.EBADF)
        return []
    try:
        return queue.wait(count)
    except OSError as lost:
        _mine.queue = None
        assert lost.errno is not None
        return [lost.errno] * count  # nobody knows what became of them: as after a failed sync


def _sync_one(fd: int) -> int:
    try:
        os.fdatasync(fd)
    except OSError as failed:
        return failed.errno or errno.EIO
    return 0
