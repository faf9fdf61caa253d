"""What of a file lies in memory, by the kernel's word."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from seams.files import syscalls
from seams.files.page_cache import is_cached

SIZE = 64 * mmap.PAGESIZE + 100


def is_told(place: Path) -> bool:
    """Whether this kernel has cachestat (Linux 6.5) and this sandbox lets it through."""
    path = place / "probe"
    path.write_bytes(b"x")
    with path.open("rb") as file:
        return is_cached(file.fileno(), 0, 1)


def test_what_was_just_written_is_there_and_what_was_dropped_is_not(tmp_path: Path) -> None:
    if not is_told(tmp_path):
        pytest.skip("this kernel has no cachestat, or a sandbox hides it: files are read instead")
    with (tmp_path / "a.log").open("w+b", buffering=0) as file:
        fd = file.fileno()
        file.write(bytes(SIZE))
        assert is_cached(fd, 0, SIZE) and is_cached(fd, 5000, 1) and is_cached(fd, SIZE - 1, 1)
        assert not is_cached(fd, SIZE, -1) and not is_cached(fd, 0, 0)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no readahead: one page alone comes back
        os.pread(fd, 1, 0)
        assert is_cached(fd, 0, 10) and not is_cached(fd, 0, SIZE)


def test_without_the_call_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(number: int, *_: object) -> int:
        raise OSError(38, "not implemented")

    monkeypatch.setattr(syscalls, "call", refused)
    assert not is_told(tmp_path)
