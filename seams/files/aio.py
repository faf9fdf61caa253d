"""Linux' native AIO for fdatasync: one system call submits many files, an eventfd signals their end.

A ctypes binding of io_setup(2), io_submit(2) and io_getevents(2) with IOCB_CMD_FDSYNC (Linux 4.18). No call blocks
except `close`: the kernel syncs in threads of its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from typing import Final

from seams.files.syscalls import MACHINE, call

DEPTH: Final = 64  # files that the kernel takes at once
_FDSYNC: Final = 3
_NOTIFY_EVENT_FD: Final = 1
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
    """struct io_event: `data` identifies the request, `result` is 0 or a negative errno."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class AioQueue:
    """One AIO context and its eventfd. Raises OSError if the system has none.

    Call `submit`, then call `results` whenever `event_fd` is readable, until it returns the results. After that
    `submit` may be called again."""

    def __init__(self) -> None:
        self._context = ctypes.c_ulong(0)
        if MACHINE not in _CALLS:
            raise OSError(errno.ENOSYS, "native AIO is known for 64-bit Linux on x86_64 and aarch64 only")
        self._setup, self._destroy, self._get_events, self._submit = _CALLS[MACHINE]
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            call(self._setup, ctypes.c_uint(DEPTH), ctypes.byref(self._context))
        except OSError:
            os.close(self.event_fd)
            raise
        self._requests = (_Iocb * DEPTH)(
            *(_Iocb(data=at, opcode=_FDSYNC, flags=_NOTIFY_EVENT_FD, event_fd=self.event_fd) for at in range(DEPTH))
        )
        self._pointers = (ctypes.POINTER(_Iocb) * DEPTH)(*(ctypes.pointer(request) for request in self._requests))
        self._events = (_Event * DEPTH)()
        self.taken = self._left = 0

    def submit(self, fds: Sequence[int]) -> None:
        """Submit `fds`, at most DEPTH. `taken` then has the number of files that the kernel took, in order. Raises
        OSError if it took none."""
        for request, fd in zip(self._requests, fds, strict=False):
            request.fd = fd
        self.taken = self._left = call(self._submit, self._context, ctypes.c_long(len(fds)), self._pointers)

    def results(self) -> list[int] | None:
        """Errnos (0: none) of the files that the kernel took; None while some of them are pending.

        Raises OSError if the kernel gives no results. Nothing may be assumed durable then, and the queue must not be
        used again.
        """
        self._left -= os.eventfd_read(self.event_fd)
        if self._left:
            return None
        count = ctypes.c_long(self.taken)
        got = call(self._get_events, self._context, count, count, self._events, None)
        if got != self.taken:
            raise OSError(errno.EIO, f"io_getevents returned {got} of {self.taken} results")
        errnos = [0] * got
        for event in self._events[:got]:
            errnos[event.data] = -event.result
        return errnos

    def close(self) -> None:
        """Wait for pending syncs, and free the context: the kernel has a bounded number of them (fs.aio-max-nr)."""
        if self._context:
            context, self._context = self._context, ctypes.c_ulong(0)
            call(self._destroy, context)
            os.close(self.event_fd)
