"""What is wrong with the logs here, as the controller has to know it.

Owns two lists by place: logs that failed (`unfit`: their replica leads nothing until the log is opened again), and logs
found damaged (`lost`: they do not hold what their place in an in-sync set promises, R18). Always true: a place stands
there from the moment it was told until its log is opened anew or gone; whoever watches hears of each change on the
loop. Must not know heartbeats, nor what the controller makes of it.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.metadata.records import LogPlace
from hotstore.host.open_log import RefusedLog


class LogFailures:
    """Of one broker's replicas, in whatever role. Values say why, for logs and views."""

    def __init__(self) -> None:
        self.unfit: dict[LogPlace, str] = {}
        self.lost: dict[LogPlace, str] = {}
        self.remains: dict[LogPlace, RefusedLog] = {}
        """Of lost ones that are refused altogether: what of them is whole."""
        self._watchers: list[Callable[[], None]] = []

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change from now on. It must neither wait nor raise."""
        self._watchers.append(changed)

    def failed(self, place: LogPlace, why: str) -> None:
        """A write or a sync of this log failed, the disk refuses to open it, or it cannot follow its leader: it takes
        nothing more (D38)."""
        if place not in self.unfit:
            self.unfit[place] = why
            self._changed()

    def damaged(self, place: LogPlace, why: str) -> None:
        """This log lacks what it held, or holds what nobody wrote: the controller has to take it out of its set."""
        if place not in self.lost:
            self.lost[place] = why
            self._changed()

    def refused(self, place: LogPlace, why: str, remains: RefusedLog) -> None:
        """The same of one that was not even opened."""
        self.remains[place] = remains
        self.damaged(place, why)

    def works(self, place: LogPlace) -> None:
        """It takes what comes, in a new role."""
        if self.unfit.pop(place, None) is not None:
            self._changed()

    def over(self, place: LogPlace) -> None:
        """The log was opened anew, or is gone."""
        self.remains.pop(place, None)
        was = self.unfit.pop(place, None), self.lost.pop(place, None)
        if was != (None, None):
            self._changed()

    def _changed(self) -> None:
        for changed in self._watchers:
            changed()
