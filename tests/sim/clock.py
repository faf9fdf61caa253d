"""The clocks of one simulated process: loop time, and a wall clock that the nemesis makes jump.

Always true: the monotonic and boot clocks follow the loop and run on while a process is paused; `boot_id` changes with
every power cut and never with a kill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

EPOCH_MS = 1_750_000_000_000


class SimClock:
    """`boot_id_now` names the machine's current run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, boot_id_now: Callable[[], str]) -> None:
        self._loop = loop
        self._boot_id = boot_id_now()
        self.jump_ms = 0

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.jump_ms

    def monotonic_s(self) -> float:
        return self._loop.time()

    def boottime_s(self) -> float:
        return self._loop.time()

    def boot_id(self) -> str:
        return self._boot_id
