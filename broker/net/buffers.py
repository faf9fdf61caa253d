"""Receive memory: one buffer shared by every connection of the loop, pooled ones for large frames, a budget over all.

Always true: the shared buffer holds nothing between two reads, so an idle connection owns no buffer; memory held for
frames in flight is charged to the budget, by what is really allocated and never by what a peer claims. Sans-IO.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

SHARED_SIZE: Final = 256 << 10
"""One read of a busy connection: 16 pipelined requests of 16 KB; above it a read costs more than its system call."""

ALLOWANCE: Final = 16 << 10
"""What a connection may keep uncharged (an incomplete small frame); also the read size when the budget is used up."""

_CLASS_MIN: Final = 64 << 10


def size_class(size: int) -> int:
    """The capacity a buffer of `size` bytes really gets: four steps per power of two, so at most a quarter is waste."""
    if size <= _CLASS_MIN:
        return _CLASS_MIN
    step = 1 << ((size - 1).bit_length() - 3)
    return -(-size // step) * step


class BufferPool:
    """Receive buffers of one loop. Fresh memory costs a page fault per 4 KiB (60-130 µs a MiB), so some is kept."""

    def __init__(self, idle_bytes_max: int = 32 << 20) -> None:
        self._idle_bytes_max = idle_bytes_max
        self._idle: dict[int, list[bytearray]] = {}
        self.idle_bytes = 0
        self.shared = memoryview(bytearray(SHARED_SIZE))
        self.shared_small = self.shared[:ALLOWANCE]

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes with anything in it."""
        capacity = size_class(size)
        idle = self._idle.get(capacity)
        if idle:
            self.idle_bytes -= capacity
            return idle.pop()
        return bytearray(capacity)

    def give(self, buffer: bytearray) -> None:
        """Take a buffer back; nobody may use a view of it any more."""
        capacity = len(buffer)
        if self.idle_bytes + capacity <= self._idle_bytes_max:
            self.idle_bytes += capacity
            self._idle.setdefault(capacity, []).append(buffer)

    def adopt_shared(self) -> bytearray:
        """Hand the shared buffer, with what was just read into it, to one connection; the loop goes on with another."""
        adopted = self.shared.obj
        assert isinstance(adopted, bytearray)
        self.shared = memoryview(self.take(SHARED_SIZE))
        self.shared_small = self.shared[:ALLOWANCE]
        return adopted


class FrameBudget:
    """Bytes that all frames in flight may hold together.

    Always true: `used <= limit` beyond the allowances, and somebody can always go on. A part of the limit is a reserve
    that one owner at a time may use: without it, frames that are all half received could wait for each other for ever.
    """

    def __init__(self, limit: int, frame_bytes_max: int) -> None:
        self.limit = limit
        self.used = 0
        self.exhausted = False
        self._open_limit = limit - min(frame_bytes_max, limit // 2)
        self._reserve_owner: object | None = None
        self._waiters: deque[Callable[[], None]] = deque()

    def take(self, owner: object, count: int) -> bool:
        """Charge `count` bytes, or say no. An owner that was told no should `wait`."""
        if self.used + count > self._open_limit and owner is not self._reserve_owner:
            if self._reserve_owner is not None:
                self.exhausted = True
                return False
            self._reserve_owner = owner
        self.force(count)
        return True

    def force(self, count: int) -> None:
        """Charge bytes that are already there."""
        self.used += count
        self.exhausted = self.used >= self._open_limit

    def give(self, owner: object, count: int, left: int) -> None:
        """Return `count` bytes; `left` is what `owner` still holds."""
        self.used -= count
        assert self.used >= 0, "more frame bytes returned than taken"
        if left == 0 and owner is self._reserve_owner:
            self._reserve_owner = None
        self.exhausted = self.used >= self._open_limit
        self.wake_next()

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when there may be room. Whoever was woken calls `wake_next` when done trying."""
        self._waiters.append(wake)

    def forget(self, wake: Callable[[], None]) -> None:
        """Stop waiting."""
        if wake in self._waiters:
            self._waiters.remove(wake)

    def wake_next(self) -> None:
        """Wake the longest waiting one if there is room for anybody."""
        if self._waiters and (self._reserve_owner is None or not self.exhausted):
            self._waiters.popleft()()
