"""Randomness as a parameter: UUIDs and jitter, from the system or from a seed.

No other code draws random numbers, so one seed repeats a run.
"""

from __future__ import annotations

import random
import uuid
from typing import Protocol


class Rng(Protocol):
    def uniform(self, low: float, high: float) -> float: ...
    def randrange(self, stop: int) -> int: ...
    def uuid(self) -> uuid.UUID:
        """A fresh version-4 UUID: topic ids, directory ids, commit ids, object names."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """Bytes that nobody can guess: keys and nonces."""
        ...


class _Drawn:
    """Draws from one source."""

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


class SystemRng(_Drawn):
    """The operating system's randomness."""

    def __init__(self) -> None:
        super().__init__(random.SystemRandom())


class SeededRng(_Drawn):
    """A reproducible source: same seed, same draws."""

    def __init__(self, seed: int | str) -> None:
        super().__init__(random.Random(seed))
