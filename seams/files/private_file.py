"""Small files written atomically, such as secrets that only their owner may read. All calls block."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Final

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_BYTES_MAX: Final = 1 << 20


def read_private(path: str) -> bytes:
    """The file's bytes. Raises PermissionError if other users than its owner may use it, OSError."""
    with open(path, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if mode & _OTHERS:
            raise PermissionError(f"{path} has mode {stat.S_IMODE(mode):04o}: run chmod 600 on it")
        return file.read(_BYTES_MAX)


def write_private(path: str, data: bytes, *, replace: bool = False, mode: int = 0o600) -> None:
    """Write the file durably: all of it or nothing. Raises FileExistsError unless `replace`, OSError."""
    temporary = f"{path}.{os.getpid()}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # left by a process with the same id: a container's first process has id 1
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
        directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
