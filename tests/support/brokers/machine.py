"""What outlives a process: one machine's disk, which forgets what was not synced, and a bucket in memory.

`broker_kit.Place` runs whole brokers on it, `tier_kit.House` the tiering alone.
"""

from __future__ import annotations

from seams.rng import SeededRng
from tests.support.disk.crash_disk import CrashDisk
from tests.support.store.memory_store import MemoryStore


class Machine:
    """`boot` names its current run: it changes with every power cut, and never with a kill."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self.disk = CrashDisk()
        self.memory = MemoryStore()
        self.boots = 1
        self.lives = 0

    @property
    def boot(self) -> str:
        return f"boot-{self.boots}"

    def kill(self) -> None:
        """SIGKILL: the page cache survives."""
        self.disk = self.disk.kill()

    def power_cut(self, keep: float = 0.0) -> None:
        """What was not synced is gone with probability 1 − `keep`; the machine boots again."""
        self.disk = self.disk.crash(SeededRng(f"cut/{self.seed}/{self.boots}"), keep)
        self.boots += 1

    def lose_disk(self) -> None:
        """A new, empty disk; the bucket stays."""
        self.disk = CrashDisk()
        self.boots += 1
