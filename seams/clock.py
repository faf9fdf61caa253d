"""Clock: time as a parameter.

Clocks decide when something is tried, never whether it is allowed; epochs decide that. Waiting is `asyncio.sleep` or
`asyncio.timeout` on the running loop; the simulation's loop keeps virtual time.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Protocol


class Clock(Protocol):
    """Three clocks, and the machine's boot id."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as stored in records; may jump forward or back."""
        ...

    def monotonic_s(self) -> float:
        """Monotonic seconds that stop while the machine sleeps: for durations and deadlines."""
        ...

    def boottime_s(self) -> float:
        """Monotonic seconds that include sleep; they show that a lease may have expired during the sleep."""
        ...

    def boot_id(self) -> str:
        """Id of the machine's boot. A different id means that the page cache of the last boot is gone."""
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
    """Cached: no process outlives its boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
