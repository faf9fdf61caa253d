"""Receive buffers: one buffer that all connections share, pooled buffers for large frames, and a budget for all
buffers.

The shared buffer holds nothing between two reads, so an idle connection has no buffer. The budget charges allocated
bytes, never the length that a peer claims. No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

SHARED_SIZE: Final = 256 << 10
"""One read of a busy connection: 16 pipelined requests of 16 KB. A larger read costs more than the system calls that it
saves."""

ALLOWANCE: Final = 16 << 10
"""Bytes that a connection holds without charge (an incomplete small frame); also the read size when the budget is used
up."""

_CLASS_MIN: Final = 64 << 10


def size_class(size: int) -> int:
    """The real capacity of a buffer of `size` bytes: four steps per power of two, so at most a quarter is unused."""
    if size <= _CLASS_MIN:
        return _CLASS_MIN
    step = 1 << ((size - 1).bit_length() - 3)
    return -(-size // step) * step


class BufferPool:
    """Receive buffers of one event loop. New memory costs a page fault per 4 KiB (60-130 µs a MiB), so some buffers are
    reused."""

    def __init__(self, idle_bytes_max: int = 32 << 20) -> None:
        self._idle_bytes_max = idle_bytes_max
        self._idle: dict[int, list[bytearray]] = {}
        self.idle_bytes = 0
        self.shared = memoryview(bytearray(SHARED_SIZE))
        self.shared_small = self.shared[:ALLOWANCE]

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes with undefined content."""
        capacity = size_class(size)
        idle = self._idle.get(capacity)
        if idle:
            self.idle_bytes -= capacity
            return idle.pop()
        return bytearray(capacity)

    def give(self, buffer: bytearray) -> None:
        """Return a buffer. No view of it may be used any more."""
        capacity = len(buffer)
        if self.idle_bytes + capacity <= self._idle_bytes_max:
            self.idle_bytes += capacity
            self._idle.setdefault(capacity, []).append(buffer)

    def adopt_shared(self) -> bytearray:
        """Give the shared buffer with its content to one connection. All other connections share a new buffer from now
        on."""
        adopted = self.shared.obj
        assert isinstance(adopted, bytearray)
        self.shared = memoryview(self.take(SHARED_SIZE))
        self.shared_small = self.shared[:ALLOWANCE]
        return adopted


class FrameBudget:
    """Bytes that all frames in flight may hold together: `used <= limit`, beyond the allowances.

    Part of the limit is a reserve that only one owner at a time may use, so that at least one frame can always be
    completed. Without it, half received frames could wait for each other for ever.
    """

    def __init__(self, limit: int, frame_bytes_max: int) -> None:
        self.limit = limit
        self.used = 0
        self.exhausted = False
        self._open_limit = limit - min(frame_bytes_max, limit // 2)
        self._reserve_owner: object | None = None
        self._waiters: deque[Callable[[], None]] = deque()

    def take(self, owner: object, count: int) -> bool:
        """Charge `count` bytes. After False the owner should `wait`."""
        if self.used + count > self._open_limit and owner is not self._reserve_owner:
            if self._reserve_owner is not None:
                self.exhausted = True
                return False
            self._reserve_owner = owner
        self.force(count)
        return True

    def force(self, count: int) -> None:
        """Charge bytes that are allocated already."""
        self.used += count
        self.exhausted = self.used >= self._open_limit

    def give(self, owner: object, count: int, left: int) -> None:
        """Return `count` bytes. `left`: the bytes that `owner` still holds."""
        self.used -= count
        assert self.used >= 0, "more frame bytes returned than taken"
        if left == 0 and owner is self._reserve_owner:
            self._reserve_owner = None
        self.exhausted = self.used >= self._open_limit
        self.wake_next()

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when there may be room. The woken caller calls `wake_next` after its attempt."""
        self._waiters.append(wake)

    def forget(self, wake: Callable[[], None]) -> None:
        if wake in self._waiters:
            self._waiters.remove(wake)

    def wake_next(self) -> None:
        """Wake the longest waiting caller if there is room."""
        if self._waiters and (self._reserve_owner is None or not self.exhausted):
            self._waiters.popleft()()
