"""All seams in one value."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from seams.clock import Clock
from seams.files.disk import Disk
from seams.files.syncs import Syncs
from seams.loop.afterwards import Afterwards
from seams.loop.beats import Beats
from seams.loop.workers import Workers
from seams.net import Net
from seams.rng import Rng

log = logging.getLogger(__name__)


def _as_it_is() -> None:
    """Freezes nothing: Python's garbage collector keeps scanning all objects."""


def _at_once(release: Callable[[], None]) -> None:
    release()


def _is_refused(why: str) -> None:
    log.error("a defect, please report it: %s", why)


class World(msgspec.Struct, frozen=True):
    """Everything outside the process, as parameters."""

    disk: Disk
    workers: Workers
    syncs: Syncs
    clock: Clock
    rng: Rng
    net: Net
    keep_objects: Callable[[], None] = _as_it_is
    """Objects made so far are long-lived: the collector need not scan them again (`gc.freeze`; O(1)). For a process
    that is one broker; where brokers come and go, their cycles would never be freed."""
    after_workers: Callable[[Callable[[], None]], object] = _at_once
    """Takes the release of a lock, at a stop. A call that a worker runs cannot be cancelled, and may change what the
    lock protects: a process releases it when its workers are over. In tests, calls of a stopped broker are over."""
    afterwards: Afterwards = msgspec.field(default_factory=Afterwards)
    """Defers the actions after a round of syncs."""
    beats: Beats = msgspec.field(default_factory=Beats)
    """Times of periodic checks."""
    late_effect: Callable[[str], None] = _is_refused
    """Called for a refused change of a log after its role ended, which is a defect. Tests raise."""
