"""A file in memory without a name, for libraries that read secrets from paths only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def nameless_file(data: bytes) -> Iterator[str]:
    """A path at which this process reads `data`, until the end of the block. Nothing reaches a disk."""
    file = os.memfd_create("thermocline", os.MFD_CLOEXEC)
    try:
        written = 0
        while written < len(data):
            written += os.write(file, data[written:])
        os.lseek(file, 0, os.SEEK_SET)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)
