"""Frame reader: cuts a byte stream into length-prefixed frames, with few copies.

Between two reads a connection holds one of three things: nothing; an exact copy of an incomplete small frame; or a
pooled buffer. The pooled buffer grows with the received bytes, to at most twice their number, or to twice the size of a
frame that this peer already delivered. A claimed length alone causes no allocation. No I/O: the caller asks `buffer`
where to write, calls `received`, takes frames with `next`, then calls `compact` or `pause`.

Hot path: many small frames are cut from the shared buffer; a large frame is received into its final buffer.
"""

from __future__ import annotations

import struct
from typing import Final

from broker.net.buffers import ALLOWANCE, SHARED_SIZE, BufferPool, FrameBudget, size_class

_PREFIX: Final = struct.Struct(">i")
_read_length = _PREFIX.unpack_from
_NOTHING: Final = memoryview(b"")

_WINDOW_FROM: Final = 64 << 10  # bytes of an expected frame; several smaller frames fit the shared buffer
_AHEAD: Final = 7
_AHEAD_MAX: Final = 1 << 20
"""Room behind an expected large frame: for up to 7 more of them, up to 1 MiB. Without it, a read ends with the frame,
and the next frame leaves the CPU cache before it is read. With it 1 MB frames cost a quarter less CPU (0.65 against
0.89 ms), although part of the next one is copied. 128 KB frames cost a third less (98 against 145 µs), because several
are answered together.
"""


class FrameLengthRefused(Exception):
    """A length prefix that is negative, zero or above the maximum: the rest of the stream is unreadable."""


class FrameReader:
    """The receive side of one connection. The only legal sequences of calls:

    * `buffer` → (read) → `received` → (`next` or `advance_to`)* → `compact`, in one turn of the loop;
    * (`next` or `advance_to`)* → `compact`, for frames left behind;
    * `pause` in place of `compact` when no read follows.

    Views from `next` are valid until the end of the sequence, or from `hold` to `release`. `view[pos:end]` has the
    received bytes that were not taken. Its bytes may be changed in place; `advance_to` takes them.
    """

    __slots__ = (
        "_backing",
        "_budget",
        "_copied",
        "_expected",
        "_frame_bytes_max",
        "_held",
        "_pool",
        "_pooled",
        "charged",
        "end",
        "pos",
        "view",
    )

    def __init__(self, pool: BufferPool, budget: FrameBudget, frame_bytes_max: int) -> None:
        self._pool = pool
        self._budget = budget
        self._frame_bytes_max = frame_bytes_max
        self._backing: bytearray | None = None  # the memory that only `view` uses, if any: pooled, or an exact copy
        self._pooled = False
        self.view = _NOTHING
        self.pos = 0
        self.end = 0
        self.charged = 0  # bytes of the budget that this connection holds; set here only
        self._expected = 0  # whole size of this peer's recent large frames
        self._held = False
        self._copied = 0  # bytes charged for a frame that is held elsewhere

    @property
    def left(self) -> int:
        return self.end - self.pos

    @property
    def stable(self) -> bool:
        """Whether frames come from an exact copy that is never written to: they stay valid without `hold`."""
        return self._backing is not None and not self._pooled and not self.charged

    def limit(self, frame_bytes_max: int) -> None:
        """The maximum of frames whose length was not read yet."""
        self._frame_bytes_max = frame_bytes_max

    def buffer(self) -> memoryview:
        """The buffer for the next bytes; never empty. Must not be called while frames wait behind a held frame."""
        pool = self._pool
        if self._backing is None:
            if self._expected > _WINDOW_FROM and not self._budget.exhausted:
                self._open_window(self._expected + min(_AHEAD * self._expected, _AHEAD_MAX))
                return self.view
            return pool.shared_small if self._budget.exhausted else pool.shared
        if self.end < len(self.view):
            return self.view[self.end :]
        # Copy the incomplete small frame to the start of the shared buffer; new bytes follow it. Copying at most 16 KiB
        # is cheaper than a separate read for the end of one frame.
        left = self.end - self.pos
        pool.shared[:left] = self.view[self.pos : self.end]
        return pool.shared[left : left + ALLOWANCE] if self._budget.exhausted else pool.shared[left:]

    def received(self, count: int) -> None:
        """`count` bytes were written to the result of `buffer`."""
        if self.end == len(self.view):  # this connection's buffer had no room: all bytes are in the shared buffer now
            end = self.end - self.pos + count
            if self._backing is not None:
                self._drop_backing()
            self.view = self._pool.shared
            self.pos = 0
            self.end = end
        else:
            self.end += count

    def next(self) -> memoryview | None:
        """The next whole frame, or None. Raises `FrameLengthRefused`."""
        start = self.pos + 4
        left = self.end - start
        if left < 0:
            return None
        (size,) = _read_length(self.view, self.pos)
        if not 0 < size <= self._frame_bytes_max:
            raise FrameLengthRefused(f"the frame claims {size} bytes; 1 to {self._frame_bytes_max} are accepted")
        if left < size:
            return None
        if size > ALLOWANCE:
            self._expected = max(size + 4, self._expected - (self._expected >> 3))
        self.pos = stop = start + size
        return self.view[start:stop]

    def advance_to(self, pos: int) -> None:
        """Take all frames before `pos`, where the next length prefix is."""
        at = self.pos
        if pos - at > ALLOWANCE:  # note the sizes of large frames, as `next` does
            while at < pos:
                size = 4 + _read_length(self.view, at)[0]
                if size > ALLOWANCE + 4:
                    self._expected = max(size, self._expected - (self._expected >> 3))
                at += size
        self.pos = pos

    def compact(self) -> bool:
        """Free all memory that is not needed until the next read. False when the budget has no room for the incomplete
        frame: call again before the next read."""
        left = self.end - self.pos
        if left == 0 and self._backing is None:  # the case after most reads; this saves a second call
            self.view = _NOTHING
            self.pos = self.end = 0
            return True
        if self._free_if_empty():
            return True
        need = left + 1 if left < 4 else 4 + _read_length(self.view, self.pos)[0]
        return self._compact_incomplete(left, need)

    def pause(self) -> None:
        """As `compact`, when no read follows until the remaining frames are taken."""
        if not self._free_if_empty() and self._backing is None:
            self._keep_copy(self.end - self.pos)

    def _free_if_empty(self) -> bool:
        """Free everything if no bytes are left. Returns True when no further step is needed, even while a frame is
        held."""
        if self.pos == self.end and not self._held:
            self._close_window()
            return True
        return self._held

    def hold(self) -> None:
        """Keep the last frame valid until `release`; bytes read together with it are not moved."""
        if self._backing is None:
            self._backing = self._pool.adopt_shared()
            self._pooled = True
            self._charge_forced(len(self._backing))
        self._held = True

    def hold_copy(self, count: int) -> None:
        """Charge the `count` bytes of a copy of the last frame until `release`."""
        self._copied = count
        self._budget.force(count)

    def release(self) -> None:
        """The held frame is no longer needed. Call `compact` when frames left behind have been taken."""
        self._held = False
        copied, self._copied = self._copied, 0
        if copied:
            self._budget.give(self, copied, self.charged)

    def close(self) -> None:
        """The connection is closed: return all memory but that of a held frame. After `release`, call this again."""
        self.pos = self.end
        if not self._held:
            self._close_window()

    def _compact_incomplete(self, left: int, need: int) -> bool:
        capacity = len(self.view)
        if left < ALLOWANCE:
            if not self.stable:
                self._keep_copy(left)
            return True
        wanted = min(need, max(2 * left, self._expected))
        fits = capacity <= 2 * max(need, self._expected) and (capacity >= need or wanted < need)
        if self._backing is not None and self.pos == 0 and self.end < capacity and fits:
            return True
        cost = size_class(wanted)
        if not self._budget.take(self, cost):
            if self._backing is None:
                self._keep_copy(left)
            return False
        data = self.view[self.pos : self.end]
        self._replace(self._pool.take(wanted), wanted, data, cost)
        return True

    def _replace(self, backing: bytearray, capacity: int, data: memoryview, cost: int) -> None:
        """Move `data` to `backing`, for which `cost` was charged already."""
        left = len(data)
        backing[:left] = data
        self._drop_backing(cost)
        self._backing = backing
        self._pooled = True
        self.view = memoryview(backing)[:capacity]
        self.pos, self.end = 0, left

    def _keep_copy(self, left: int) -> None:
        """Keep an exact copy of the remaining bytes; they are charged only if they exceed the allowance."""
        copy = bytearray(self.view[self.pos : self.end])
        self._drop_backing()
        self._backing = copy
        self.view = memoryview(copy)
        self.pos, self.end = 0, left
        if left > ALLOWANCE:
            self._charge_forced(left)

    def _open_window(self, capacity: int) -> None:
        """Take a pooled buffer before bytes arrive, because this peer sends large frames. The buffer is returned at
        once if no frame follows."""
        self._backing = self._pool.take(capacity)
        self._pooled = True
        self.view = memoryview(self._backing)[:capacity]
        self.pos = self.end = 0
        self._charge_forced(len(self._backing))

    def _close_window(self) -> None:
        if self._pooled and self.end <= min(SHARED_SIZE, self._expected >> 1):
            self._expected >>= 1
        self._drop_backing()
        self.view = _NOTHING
        self.pos = self.end = 0

    def _drop_backing(self, charged: int = 0) -> None:
        """Return the present buffer. The bytes that are still `charged` pay for the next buffer."""
        backing = self._backing
        if backing is not None:
            self._backing = None
            if self._pooled:
                self._pooled = False
                self._pool.give(backing)
        freed, self.charged = self.charged, charged
        if freed:
            self._budget.give(self, freed, charged)

    def _charge_forced(self, count: int) -> None:
        self.charged += count
        self._budget.force(count)
