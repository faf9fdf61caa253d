"""May this process still answer? The gate every answer passes.

Owns the rule of design 1: a process whose node another one serves as answers nothing more; one whose clock (the kind
that runs on through sleep) jumped so far between two looks that a lease may have passed since its last beat answers
nothing until a poll of `cluster.json` succeeded (C31: a process that was stopped, or a machine that slept, may have
been replaced meanwhile). Always true: closed is decided before the answer leaves, not at the next tick. Hot path: one
clock reading a request (0.1 µs). Must not know who polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ServingGate:
    """Open, paused (until `reopen`), or shut for ever (`shut`). `boottime_s` is seams.Clock's."""

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
        """The lease begins now: what passed before, while another's was waited for, is no pause."""
        self._looked_at = self._boottime_s()

    def is_open(self) -> bool:
        """Look at the clock and say whether an answer may leave now."""
        now = self._boottime_s()
        if now - self._looked_at > self._jump_max_s:
            self.paused = True
            self.paused_count += 1  # also while paused: a poll that is under way says nothing of the time since
            self._opened.clear()
        self._looked_at = now
        return not self.paused and self.superseded_by is None

    def reopen(self, pauses: int) -> None:
        """A poll that began when `paused_count` was `pauses`, so after that pause, found us still in charge."""
        if self.paused and pauses == self.paused_count and self.superseded_by is None:
            self.paused = False
            self._opened.set()

    def shut(self, by: str) -> None:
        """Another process serves as this node: `by` says who, for the log."""
        if self.superseded_by is None:
            self.superseded_by = by
            self._opened.clear()

    async def opened(self) -> None:
        """Wait until answers may leave again; never returns once shut (the process is about to exit)."""
        while not self.is_open():
            await self._opened.wait()
