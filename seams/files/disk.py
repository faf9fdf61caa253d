"""Files as a parameter: the `File`, `Directory` and `Disk` protocols, and functions over them.

A write is complete or raises `OSError`. Nothing is durable before `File.sync` (content) and `Disk.sync_dir` or
`Directory.sync` (names) returned. All calls block: use them on the loop only where they hit the page cache by design,
otherwise through `Workers`. `seams.files.posix_disk` has the real disk.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from typing import Protocol

import msgspec

Buffer = bytes | bytearray | memoryview


class FileStat(msgspec.Struct, frozen=True):
    """A directory entry. `size` in bytes."""

    size: int
    is_dir: bool


class Space(msgspec.Struct, frozen=True):
    """Bytes of a file system: the total and the free bytes of an unprivileged process."""

    total: int
    free: int


class File(Protocol):
    """An open file. Positions and lengths in bytes; errors are `OSError` with its errno."""

    @property
    def path(self) -> str: ...
    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Write all buffers in order from `position`; returns the number of bytes. If it raises, some bytes may be
        written."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; shorter only at the file's end."""
        ...

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill `buffer`; returns how many bytes were read."""
        ...

    def sync(self) -> None:
        """fdatasync: content and size are durable when it returns. After an error assume nothing (fsyncgate)."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate to `size`. A truncation to the current size frees the blocks that `allocate_ahead` allocated beyond
        it.
        """
        ...

    def allocate_ahead(self, position: int, end: int) -> None:
        """Allocate blocks for [`position`, `end`); content and size do not change.

        Raises OSError (ENOSPC; EOPNOTSUPP if unsupported); some blocks may be allocated then."""
        ...

    def size(self) -> int: ...
    def descriptor(self) -> int | None:
        """The descriptor for calls outside this protocol (sendfile, syncs by the kernel); None if there is no kernel
        file."""
        ...

    def close(self) -> None: ...


class FileRange(msgspec.Struct, frozen=True):
    """`length` bytes of an open file from `position`. A response sends them without reading them into the process."""

    file: File
    position: int
    length: int


class Directory(Protocol):
    """An open directory. It stays the same directory when it is renamed, so a late call works in the directory in which
    it began.

    Names hold no `/`. A removed directory has no names, and none can be made (ENOENT). After `close` every call raises
    OSError (EBADF).
    """

    @property
    def path(self) -> str:
        """The path at which it was opened, for messages only."""
        ...

    def open(self, name: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        """As `Disk.open`."""
        ...

    def stat(self, name: str) -> FileStat | None: ...
    def list(self) -> list[str]:
        """Its names, sorted."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Both names are in this directory."""
        ...

    def unlink(self, name: str) -> None: ...
    def sync(self) -> None:
        """Make its names durable."""
        ...

    def close(self) -> None:
        """Running calls continue to their end."""
        ...


class Lock(Protocol):
    """An exclusive advisory lock, held until released or the process dies."""

    def release(self) -> None: ...


class Disk(Protocol):
    """A tree of files. Paths are absolute strings with `/`; errors are `OSError`."""

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        """Open for reading, or for reading and writing. `exclusive` with `create` raises FileExistsError for an
        existing file."""
        ...

    def check_descriptors(self) -> None:
        """Raise OSError (EMFILE) if this process has too few free descriptors for one more new log."""
        ...

    def open_dir(self, path: str) -> Directory: ...
    def stat(self, path: str) -> FileStat | None:
        """None if there is nothing at `path`."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents unless they exist; durable after `sync_dir` of each parent."""
        ...

    def rename(self, source: str, target: str) -> None: ...
    def link(self, source: str, target: str) -> None:
        """Hard link; raises FileExistsError if `target` exists (put-if-absent on a directory bucket)."""
        ...

    def unlink(self, path: str) -> None: ...
    def remove_dir(self, path: str) -> None: ...
    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def space(self, path: str) -> Space: ...
    def allocate(self, path: str, size: int) -> None:
        """Make a file of `size` bytes with allocated blocks and undefined content."""
        ...

    def lock(self, path: str, *, wait_s: float = 0.0) -> Lock:
        """flock `path` (created if missing); raises BlockingIOError if another process holds it
        longer than `wait_s`."""
        ...


def is_full(error: OSError) -> bool:
    """Whether the error is only a lack of space, so that a later try is safe."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def read_file(disk: Disk, path: str) -> bytes:
    """The whole content of a (small) file."""
    return _read_all(disk.open(path))


def read_in(directory: Directory, name: str) -> bytes:
    """The whole content of a (small) file in `directory`."""
    return _read_all(directory.open(name))


def replace_file(disk: Disk, path: str, data: bytes) -> None:
    """Replace the content of `path` atomically: after a crash the file has the old or the new content, never a mixture
    (ALICE)."""
    temporary = path + ".tmp"
    _write_all(disk.open(temporary, write=True, create=True), data)
    disk.rename(temporary, path)
    disk.sync_dir(path.rsplit("/", 1)[0] or "/")


def replace_in(directory: Directory, name: str, data: bytes) -> None:
    """As `replace_file`."""
    temporary = name + ".tmp"
    _write_all(directory.open(temporary, write=True, create=True), data)
    directory.rename(temporary, name)
    directory.sync()


def _read_all(file: File) -> bytes:
    with contextlib.closing(file):
        return file.read_at(0, file.size())


def _write_all(file: File, data: bytes) -> None:
    with contextlib.closing(file):
        file.truncate(0)
        file.write_at(0, [data])
        file.sync()


def remove_tree(disk: Disk, path: str) -> None:
    """Delete a directory and all below it. Names that are gone already are ignored, even if another call removes them
    concurrently."""
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


class ClosedFile(msgspec.Struct, frozen=True, eq=False):
    """Takes the place of a file that was dropped: every call gets EBADF. Calls that hold the old file may still use
    it."""

    path: str

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
        """Does nothing: the file is closed already."""

    def _refusal(self) -> OSError:
        return OSError(errno.EBADF, "closed", self.path)
