"""What the targets share: a cursor over a fuzzer's bytes, a guard on memory, and the end of a loop.

Must not know any parser.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Iterator


class Cursor:
    """Takes numbers and pieces off the front of a fuzzer's bytes; beyond their end everything is zero or empty."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, size: int = 1) -> int:
        """An unsigned integer of `size` bytes."""
        return int.from_bytes(self.take(size), "big")

    def take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        self._at += size
        return piece

    def rest(self) -> bytes:
        return self._data[self._at :]


def end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the loop's tasks, also those that begin as others end, and close it."""
    while left := asyncio.all_tasks(loop):
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.close()


@contextlib.contextmanager
def memory_within(bytes_max: int) -> Iterator[None]:
    """Fails when the process's greatest resident size grew by more than `bytes_max` meanwhile (C heaps included)."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown <= bytes_max, f"resident memory grew by {grown} bytes, {bytes_max} are allowed"
