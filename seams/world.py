"""The seams in one value, passed to whoever wires the house. Owns nothing; must not hold state of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from seams.afterwards import Afterwards
from seams.beats import Beats
from seams.clock import Clock
from seams.disk import Disk
from seams.net import Net
from seams.rng import Rng
from seams.syncs import Syncs
from seams.workers import Workers

log = logging.getLogger(__name__)


def _as_it_is() -> None:
    """Python's collector goes on looking at everything."""


def _is_refused(why: str) -> None:
    log.error("a defect, please report it: %s", why)


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside the process, as parameters."""

    disk: Disk
    workers: Workers
    syncs: Syncs
    clock: Clock
    rng: Rng
    net: Net
    keep_objects: Callable[[], None] = _as_it_is
    """What was made so far lives long: the collector need not look at it again (`gc.freeze`; O(1)). For a process that
    is one broker; where brokers come and go in a process, their cycles would never be freed."""
    afterwards: Afterwards = field(default_factory=Afterwards)
    """For what the answers to a round of syncs lead to."""
    beats: Beats = field(default_factory=Beats)
    """When what looks now and then does so."""
    late_effect: Callable[[str], None] = _is_refused
    """Told of work that would have changed a log after its role was over, and was refused: a defect. Tests raise."""
