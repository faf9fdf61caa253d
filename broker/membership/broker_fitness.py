"""This broker's fitness to lead, for its heartbeats.

A broker is unfit while it stops, while its disk is full, and when this broker, but not the controller, has had no
answer from the bucket for a minute (D20, D39). Every report has the current state, so the next heartbeat makes up for a
lost heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.controller.decisions.fitness import Fitness
from broker.partition.log_failures import LogFailures

CUT_OFF_S: Final = 60.0  # an outage of only this broker makes it unfit after this time; most outages are shorter


class BrokerFitness:
    """The fitness of this broker. `is_disk_full`: whether the data directory accepts no appends."""

    def __init__(self, log_failures: LogFailures, is_disk_full: Callable[[], bool]) -> None:
        self._log_failures = log_failures
        self._is_disk_full = is_disk_full
        self.is_stopping = False
        self.is_cut_off = False
        """Whether the bucket has not answered for `CUT_OFF_S` while the controller reached it."""

    def now(self) -> Fitness:
        log_failures = self._log_failures
        return Fitness(bool(self.why), tuple(log_failures.unfit), tuple(log_failures.lost))

    @property
    def why(self) -> str:
        """The reason to lead only partitions that no other broker can lead; empty while this broker is fit."""
        if self.is_stopping:
            return "it is stopping"
        if self.is_cut_off:
            return "the bucket does not answer this broker, but answers others"
        return "its disk is full" if self._is_disk_full() else ""

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` when a log here failed or lost records. Other causes have to be polled."""
        self._log_failures.watch(changed)
