"""The clocks of one simulated process: loop time, and a wall clock that the nemesis makes jump.

Always true: the monotonic and boot clocks follow the loop and run on while a process is paused; the boot clock begins
with the machine's run, and `boot_id` names that run: both change with every power cut and never with a kill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

EPOCH_MS = 1_750_000_000_000


class SimClock:
    """`boot_id_now` names the machine's current run, which began at the loop's time `booted_s`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, boot_id_now: Callable[[], str], booted_s: float = 0.0) -> None:
        self._loop = loop
        self._booted_s = booted_s
        self._boot_id = boot_id_now()
        self.jump_ms = 0

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.jump_ms

    def monotonic_s(self) -> float:
        return self._loop.time()

    def boottime_s(self) -> float:
        return self._loop.time() - self._booted_s

    def boot_id(self) -> str:
        return self._boot_id
