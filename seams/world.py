"""The seams in one value, passed to whoever wires the house. Owns nothing; must not hold state of its own."""

from __future__ import annotations

from dataclasses import dataclass

from seams.clock import Clock
from seams.disk import Disk
from seams.net import Net
from seams.rng import Rng
from seams.syncs import Syncs
from seams.workers import Workers


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside the process, as parameters."""

    disk: Disk
    workers: Workers
    syncs: Syncs
    clock: Clock
    rng: Rng
    net: Net
