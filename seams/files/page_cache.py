"""Queries which bytes of a file are in the kernel's page cache (cachestat(2), Linux 6.5), and drops them."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from typing import Final

from seams.files import syscalls

_CACHESTAT: Final = 451  # the same number on every architecture


class _Range(ctypes.Structure):
    """struct cachestat_range, bytes."""

    _fields_ = (("position", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Found(ctypes.Structure):
    """struct cachestat, pages."""

    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("in_writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


def is_cached(fd: int, position: int, length: int) -> bool:
    """Whether the page cache has all of the range, which must not go beyond the file's end.

    A page counts even if it is still being read (readahead), or was left by a failed read. False if unknown: an empty
    range, an older kernel, another system, a sandbox.
    """
    return is_cold(fd, position, length) is False


def is_cold(fd: int, position: int, length: int) -> bool | None:
    """Whether the page cache lacks some of the range; None where `is_cached` does not know."""
    if length <= 0 or not syscalls.MACHINE:
        return None
    found = _Found()
    try:
        syscalls.call(
            _CACHESTAT, ctypes.c_uint(fd), ctypes.byref(_Range(position, length)), ctypes.byref(found), ctypes.c_uint(0)
        )
    except OSError:
        return None
    pages: int = (position + length - 1) // mmap.PAGESIZE - position // mmap.PAGESIZE + 1
    cached: int = found.cached
    return cached < pages


def drop(fd: int, position: int, length: int) -> None:
    """Drop the range's pages (0: to the end of the file); pages not yet written stay. A hint."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(fd, position, length, os.POSIX_FADV_DONTNEED)
