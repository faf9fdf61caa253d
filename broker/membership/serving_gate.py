"""Serving gate: checks before every response that this process may still answer.

- After another process registered as this node, no request is answered.
- The boot clock includes sleep. If it jumps between two checks by enough for a lease to expire, this process may have
  been replaced. No request is then answered until a poll of `cluster.json` succeeds (C31).
- The check is made before each response leaves, and costs one clock reading a request (0.1 µs).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ServingGate:
    """The gate: open, paused (until `reopen`), or shut for ever (`shut`). `boottime_s`: see `seams.clock.Clock`."""

    __slots__ = ("_boottime_s", "_jump_max_s", "_looked_at", "_opened", "paused", "paused_count", "superseded_by")

    def __init__(self, boottime_s: Callable[[], float], jump_max_s: float) -> None:
        self._boottime_s = boottime_s
        self._jump_max_s = jump_max_s
        self._looked_at = boottime_s()
        self._opened = asyncio.Event()
        self._opened.set()
        self.paused = False
        self.paused_count = 0
        self.superseded_by: str | None = None

    def begin(self) -> None:
        """The lease begins now; an earlier wait does not count as a pause."""
        self._looked_at = self._boottime_s()

    def is_open(self) -> bool:
        """Read the clock and decide whether a response may leave now."""
        now = self._boottime_s()
        if now - self._looked_at > self._jump_max_s:
            self.paused = True
            self.paused_count += 1  # also counted while paused: a poll in flight began before this pause
            self._opened.clear()
        self._looked_at = now
        return not self.paused and self.superseded_by is None

    def reopen(self, pauses: int) -> None:
        """Open the gate, because a poll found this process still registered. The poll began after the pause: at its
        beginning, `paused_count` was `pauses`.
        """
        if self.paused and pauses == self.paused_count and self.superseded_by is None:
            self.paused = False
            self._opened.set()

    def shut(self, by: str) -> None:
        """Another process serves as this node. `by` names it, for the log."""
        if self.superseded_by is None:
            self.superseded_by = by
            self._opened.clear()

    async def opened(self) -> None:
        """Wait until responses may leave again; never returns once shut (the process is about to exit)."""
        while not self.is_open():
            await self._opened.wait()
