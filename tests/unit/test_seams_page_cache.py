"""What of a file lies in memory, by the kernel's word."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from seams import page_cache, syscalls
from seams.disk import PosixDisk

SIZE = 64 * mmap.PAGESIZE + 100


def is_told(place: Path) -> bool:
    """Whether this kernel has cachestat (Linux 6.5) and this sandbox lets it through."""
    path = place / "probe"
    path.write_bytes(b"x")
    with path.open("rb") as file:
        return page_cache.is_cached(file.fileno(), 0, 1)


def test_what_was_just_written_is_there_and_what_was_dropped_is_not(tmp_path: Path) -> None:
    if not is_told(tmp_path):
        pytest.skip("this kernel has no cachestat, or a sandbox hides it: files are read instead")
    file = PosixDisk().open(str(tmp_path / "a.log"), write=True, create=True)
    file.write_at(0, [bytes(SIZE)])
    assert file.is_cached(0, SIZE) and file.is_cached(5000, 1) and file.is_cached(SIZE - 1, 100)
    assert not file.is_cached(SIZE, 10) and not file.is_cached(SIZE + 5000, 10) and not file.is_cached(0, 0)
    file.sync()
    descriptor = file.descriptor()
    assert descriptor is not None
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no readahead: one page alone comes back
    file.read_at(0, 1)
    assert file.is_cached(0, 10) and not file.is_cached(0, SIZE)
    file.close()


def test_without_the_call_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(number: int, *_: object) -> int:
        raise OSError(38, "not implemented")

    file = PosixDisk().open(str(tmp_path / "a.log"), write=True, create=True)
    file.write_at(0, [bytes(SIZE)])
    monkeypatch.setattr(syscalls, "call", refused)
    assert not file.is_cached(0, SIZE)
    file.close()
