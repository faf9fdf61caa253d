"""How fit this broker is to lead, gathered from whoever knows, for its heartbeats.

Owns what makes all of it unfit: it is told to stop, its disk is full, or the bucket is away from it for a minute while
others reach it (D20, D39). Always true: it says how things are now, so that a heartbeat lost is made good by the next,
and what is over is over by itself. Must not know what the controller does with it (controller.fitness).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.controller.decisions.fitness import Fitness
from broker.partition.log_failures import LogFailures

CUT_OFF_S: Final = 60.0
"""So long is the bucket away from this broker alone before others are to lead: an outage is most often over sooner."""


class BrokerFitness:
    """Of one broker. `is_disk_full`: whether nothing may be appended in its data directory."""

    def __init__(self, log_failures: LogFailures, is_disk_full: Callable[[], bool]) -> None:
        self._log_failures = log_failures
        self._is_disk_full = is_disk_full
        self.is_stopping = False
        self.is_cut_off = False
        """Whether the bucket has been away for `CUT_OFF_S`, and the controller reached it for as long."""

    def now(self) -> Fitness:
        """As it is."""
        log_failures = self._log_failures
        return Fitness(bool(self.why), tuple(log_failures.unfit), tuple(log_failures.lost))

    @property
    def why(self) -> str:
        """Why it is to lead only what no other can; empty while it is fit."""
        if self.is_stopping:
            return "it stops"
        if self.is_cut_off:
            return "the bucket is away from it, and not from others"
        return "its disk is full" if self._is_disk_full() else ""

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` when a log here failed or was found damaged. What else there is has to be looked at."""
        self._log_failures.watch(changed)
