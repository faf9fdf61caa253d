"""The disk of this machine: `seams.files.disk` by system calls (`seams.files.syncs` syncs many files at once).

A short write continues until all is written, or raises. A dropped file or directory stays open until its last user is
done, because its descriptor number must not be reused for another file while a late call may use it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import time
from collections.abc import Sequence
from typing import Final

from seams.files import descriptors, syscalls
from seams.files.disk import Buffer, Directory, File, FileStat, Lock, Space

_IOV_MAX = 1024  # Linux' limit for one pwritev
_LOCK_POLL_S = 0.002

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_KEEP_SIZE: Final = 1  # FALLOC_FL_KEEP_SIZE; posix_fallocate would change the size
# The call releases the interpreter's lock, because it may wait for the journal. off_t is int64 on every MACHINE.
_FALLOCATE: Final = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None) if syscalls.MACHINE else None


class PosixFile:
    """`File` over a descriptor."""

    __slots__ = ("__weakref__", "_fd", "_path")

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
            raise OSError(errno.EOPNOTSUPP, "fallocate is not available on this system", self._path)
        if _FALLOCATE(self._fd, _KEEP_SIZE, ctypes.c_int64(position), ctypes.c_int64(end - position)) < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), self._path)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def descriptor(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # A file that is still being sent when its segment is deleted stays open until its last reader is done.
        self.close()


class PosixDirectory:
    """`Directory` over a descriptor. Errors name its path when it was opened."""

    __slots__ = ("_held", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        # A call keeps its own reference to the descriptor while it runs, so `close` does not interrupt it.
        self._held: PosixFile | None = PosixFile(os.open(path, _DIRECTORY), path)

    @property
    def path(self) -> str:
        return self._path

    def open(self, name: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        held, flags = self._opened(), _open_flags(write=write, create=create, exclusive=exclusive)
        try:
            fd = os.open(name, flags, 0o644, dir_fd=held.descriptor())
        except OSError as error:
            raise self._located(error, name) from None
        return PosixFile(fd, f"{self._path}/{name}")

    def stat(self, name: str) -> FileStat | None:
        held = self._opened()
        try:
            found = os.stat(name, dir_fd=held.descriptor())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._located(error, name) from None
        return FileStat(found.st_size, stat.S_ISDIR(found.st_mode))

    def list(self) -> list[str]:
        held = self._opened()
        return sorted(os.listdir(held.descriptor()))

    def rename(self, source: str, target: str) -> None:
        held = self._opened()
        fd = held.descriptor()
        try:
            os.replace(source, target, src_dir_fd=fd, dst_dir_fd=fd)
        except OSError as error:
            raise self._located(error, source, target) from None

    def unlink(self, name: str) -> None:
        held = self._opened()
        try:
            os.unlink(name, dir_fd=held.descriptor())
        except OSError as error:
            raise self._located(error, name) from None

    def sync(self) -> None:
        held = self._opened()
        os.fsync(held.descriptor())

    def close(self) -> None:
        self._held = None

    def _opened(self) -> PosixFile:
        held = self._held
        if held is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        return held

    def _located(self, error: OSError, name: str, second: str | None = None) -> OSError:
        error.filename = f"{self._path}/{name}"
        if second is not None:
            error.filename2 = f"{self._path}/{second}"
        return error


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
        flags = _open_flags(write=write, create=create, exclusive=exclusive)
        return PosixFile(os.open(path, flags, 0o644), path)

    def check_descriptors(self) -> None:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.close(descriptor)
        if not descriptors.has_room(descriptor, descriptors.LOGS):
            raise OSError(errno.EMFILE, descriptors.shortage(descriptors.LOGS))

    def open_dir(self, path: str) -> Directory:
        return PosixDirectory(path)

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
        fd = os.open(path, _DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def space(self, path: str) -> Space:
        found = os.statvfs(path)
        # Count as df does: free blocks that are reserved for root or by a thin volume are neither usable nor used.
        ours = found.f_blocks - found.f_bfree + found.f_bavail
        return Space(ours * found.f_frsize, found.f_bavail * found.f_frsize)

    def allocate(self, path: str, size: int) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(fd, 0, size)  # glibc writes zeros if the file system cannot allocate
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


def _open_flags(*, write: bool, create: bool, exclusive: bool) -> int:
    flags = os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY)
    if create:
        flags |= os.O_CREAT
    if exclusive:
        flags |= os.O_EXCL
    return flags
