"""Time as a parameter. Clocks decide *when* something is tried, never *whether* it is allowed: epochs do that.

Waiting is `asyncio.sleep`/`asyncio.timeout` on whatever loop runs (the simulation's loop keeps virtual time).
"""

from __future__ import annotations

import time
from functools import cache
from typing import Protocol


class Clock(Protocol):
    """Three readings of time."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as stored in records; may jump either way."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back and stand still while the machine sleeps: durations and deadlines."""
        ...

    def boottime_s(self) -> float:
        """Seconds that never go back and run on through sleep: tells that a lease may have passed unnoticed."""
        ...

    def boot_id(self) -> str:
        """Names this run of the machine: another one means that the page cache of the last one is gone."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boottime_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        return _boot_id()


@cache
def _boot_id() -> str:
    """No process outlives its boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
