"""Files as a parameter: the `Disk` protocol and its POSIX implementation.

Owns the system calls on files (`seams.syncs` those for many at once). Always true: a write is either complete or raises
`OSError`; nothing is durable before `File.sync` (content) and `Disk.sync_dir` (names) returned. All calls block: call
them from the loop only where they hit the page cache by design, otherwise through `Workers`. Must not know what the
bytes mean.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from seams import syscalls

Buffer = bytes | bytearray | memoryview

_IOV_MAX = 1024  # Linux' limit for one pwritev
_LOCK_POLL_S = 0.002

_KEEP_SIZE: Final = 1  # FALLOC_FL_KEEP_SIZE; posix_fallocate would change the size
# Without the interpreter's lock: it may wait for the journal. off_t is what c_int64 is wherever MACHINE is named.
_FALLOCATE: Final = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None) if syscalls.MACHINE else None


@dataclass(frozen=True, slots=True)
class FileStat:
    """What a directory entry says. `size` in bytes."""

    size: int
    is_dir: bool


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes of a file system: what an unprivileged process could ever use of it, and what it may still write."""

    total: int
    free: int


class File(Protocol):
    """An open file. Positions and lengths in bytes; errors are `OSError` with its errno."""

    @property
    def path(self) -> str: ...
    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Write all buffers in order from `position`; returns the bytes written, or raises having written some."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; shorter only where the file ends."""
        ...

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill `buffer`; returns how much was there."""
        ...

    def sync(self) -> None:
        """fdatasync: content and size are durable when it returns. After an error assume nothing (fsyncgate)."""
        ...

    def truncate(self, size: int) -> None:
        """Also to the size it has: what `allocate_ahead` took beyond goes back."""
        ...

    def allocate_ahead(self, position: int, end: int) -> None:
        """Take blocks for [`position`, `end`) so that writes there find them; content and size stay as they are.

        Raises OSError (ENOSPC; EOPNOTSUPP where it cannot be done), having taken some or none.
        """
        ...

    def size(self) -> int: ...
    def descriptor(self) -> int | None:
        """For what goes past this protocol (sendfile, syncs by the kernel); None where no kernel file is behind it."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FileRange:
    """`length` bytes of an open file from `position`: what a response sends without reading it into the process."""

    file: File
    position: int
    length: int


class Lock(Protocol):
    """An exclusive advisory lock, held until released or the process dies."""

    def release(self) -> None: ...


class Disk(Protocol):
    """A tree of files. Paths are absolute strings with `/`; errors are `OSError`."""

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        """Open for reading, or both. `exclusive` with `create` refuses an existing file (FileExistsError)."""
        ...

    def stat(self, path: str) -> FileStat | None:
        """None when there is nothing at `path`."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents (existing ones are fine); durable after `sync_dir` of each parent."""
        ...

    def rename(self, source: str, target: str) -> None: ...
    def link(self, source: str, target: str) -> None:
        """Hard link; FileExistsError when `target` is taken (put-if-absent on a directory bucket)."""
        ...

    def unlink(self, path: str) -> None: ...
    def remove_dir(self, path: str) -> None: ...
    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def space(self, path: str) -> Space: ...
    def allocate(self, path: str, size: int) -> None:
        """Make a file of `size` bytes whose space is taken, not only promised. Its content means nothing."""
        ...

    def lock(self, path: str, *, wait_s: float = 0.0) -> Lock:
        """flock `path` (created when missing); BlockingIOError when another process holds it past `wait_s`."""
        ...


def is_full(error: OSError) -> bool:
    """Whether what failed only lacked space, so that trying again later is safe."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def read_file(disk: Disk, path: str) -> bytes:
    """The whole content of a (small) file."""
    file = disk.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def replace_file(disk: Disk, path: str, data: bytes) -> None:
    """Put `data` at `path` so that after any crash it is whole: the old content or the new, never half (ALICE)."""
    temporary = path + ".tmp"
    file = disk.open(temporary, write=True, create=True)
    try:
        file.truncate(0)
        file.write_at(0, [data])
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_dir(path.rsplit("/", 1)[0] or "/")


def remove_tree(disk: Disk, path: str) -> None:
    """Delete a directory and all below it. What is gone already is fine, also when another one is just removing it."""
    found = disk.stat(path)
    if found is None:
        return
    with contextlib.suppress(FileNotFoundError):
        if not found.is_dir:
            disk.unlink(path)
            return
        for name in disk.list_dir(path):
            remove_tree(disk, f"{path}/{name}")
        disk.remove_dir(path)


class PosixFile:
    """`File` over a descriptor."""

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        total = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers[:_IOV_MAX], position)
        if written != total:  # rare: disk nearly full, a signal, or more than IOV_MAX buffers
            self._write_rest(position, buffers, written)
        return total

    def _write_rest(self, position: int, buffers: Sequence[Buffer], written: int) -> None:
        done = 0
        for buffer in buffers:
            view = memoryview(buffer)
            skip = min(max(written - done, 0), len(view))
            at = done + skip
            done += len(view)
            view = view[skip:]
            while len(view):
                count = os.pwrite(self._fd, view, position + at)
                if count == 0:
                    raise OSError(errno.ENOSPC, "write made no progress", self._path)
                at += count
                view = view[count:]

    def read_at(self, position: int, length: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            data = os.pread(self._fd, length - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_into(self, position: int, buffer: memoryview) -> int:
        got = 0
        while got < len(buffer):
            count = os.preadv(self._fd, [buffer[got:]], position + got)
            if count == 0:
                break
            got += count
        return got

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def allocate_ahead(self, position: int, end: int) -> None:
        if _FALLOCATE is None:
            raise OSError(errno.EOPNOTSUPP, "no fallocate here", self._path)
        if _FALLOCATE(self._fd, _KEEP_SIZE, ctypes.c_int64(position), ctypes.c_int64(end - position)) < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), self._path)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def descriptor(self) -> int | None:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # A file that is still being sent when its segment is deleted stays open until the last reader lets go.
        self.close()


class ClosedFile:
    """Stands where a file was let go of: whoever still holds the file itself may go on with it, nobody else gets it."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        raise self._refusal()

    def read_at(self, position: int, length: int) -> bytes:
        raise self._refusal()

    def read_into(self, position: int, buffer: memoryview) -> int:
        raise self._refusal()

    def sync(self) -> None:
        raise self._refusal()

    def truncate(self, size: int) -> None:
        raise self._refusal()

    def allocate_ahead(self, position: int, end: int) -> None:
        raise self._refusal()

    def size(self) -> int:
        raise self._refusal()

    def descriptor(self) -> int | None:
        raise self._refusal()

    def close(self) -> None:
        """It is."""

    def _refusal(self) -> OSError:
        return OSError(errno.EBADF, "closed", self._path)


class _FileLock:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PosixDisk:
    """`Disk` over the real file system."""

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        flags = os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        return PosixFile(os.open(path, flags, 0o644), path)

    def stat(self, path: str) -> FileStat | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStat(found.st_size, os.path.isdir(path))

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def space(self, path: str) -> Space:
        found = os.statvfs(path)
        # As df counts: blocks that are free but reserved (for root, or by a thin volume) are neither ours nor used.
        ours = found.f_blocks - found.f_bfree + found.f_bavail
        return Space(ours * found.f_frsize, found.f_bavail * found.f_frsize)

    def allocate(self, path: str, size: int) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(fd, 0, size)  # where a file system cannot, glibc writes
        finally:
            os.close(fd)

    def lock(self, path: str, *, wait_s: float = 0.0) -> Lock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return _FileLock(fd)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(fd)
                    raise
                time.sleep(_LOCK_POLL_S)
            except BaseException:
                os.close(fd)
                raise
