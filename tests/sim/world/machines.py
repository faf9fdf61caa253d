"""A machine of the simulation: what outlives the processes that run on it.

Owns its disk, and the run it is in. Always true: a kill changes nothing of it; a power cut leaves what
`CrashDisk.crash` keeps of the disk, ends the run (another boot id) and starts the boot clock anew; a lost directory is
gone for good, and the run goes on. Must not know processes.
"""

from __future__ import annotations

import asyncio

from seams.rng import SeededRng
from tests.sim.world.clock import SimClock
from tests.support.disk.crash_disk import CrashDisk


class Machine:
    """`boots` counts its runs; `name` is empty for the only one of a world."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "") -> None:
        self._loop = loop
        self.name = name
        self.disk = CrashDisk()
        self.boots = 1
        self._booted_s = loop.time()

    @property
    def boot_id(self) -> str:
        """Of the run it is in."""
        run = f"boot-{self.boots}"
        return f"{self.name}-{run}" if self.name else run

    def clock(self) -> SimClock:
        """Of one process that starts now."""
        return SimClock(self._loop, lambda: self.boot_id, self._booted_s)

    def power_cut(self, keep: float, rng: SeededRng) -> CrashDisk:
        """Of what was not synced each piece survives with probability `keep`. Returns the disk as it was, which dead
        processes still hold."""
        before, self.disk = self.disk, self.disk.crash(rng, keep)
        self.boots += 1
        self._booted_s = self._loop.time()
        return before

    def lose(self, directory: str) -> None:
        """The disk under a data directory is gone for good."""
        self.disk.forget(f"/data/{directory}")
