"""Logs on this broker that failed or lost records, for reports to the controller.

`unfit`: the log failed, so its replica does not lead until the log is reopened. `lost`: the log is damaged and lacks
records that an in-sync replica must have (R18). An entry stays until the log is reopened or removed.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.metadata.records import LogPlace


class LogFailures:
    """Failures of all roles' logs, by place. Values are the reasons, which logs and views show."""

    def __init__(self) -> None:
        self.unfit: dict[LogPlace, str] = {}
        self.lost: dict[LogPlace, str] = {}
        self._watchers: list[Callable[[], None]] = []

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` on the loop after each later change. `changed` must not wait or raise."""
        self._watchers.append(changed)

    def failed(self, place: LogPlace, why: str) -> None:
        """The log takes no more records (D38): a write or sync failed, the disk refuses to open the log, or the log
        cannot follow its leader.
        """
        if place not in self.unfit:
            self.unfit[place] = why
            self._changed()

    def damaged(self, place: LogPlace, why: str) -> None:
        """The log lacks records that it held, or holds foreign bytes. The controller removes its replica from the
        in-sync set."""
        if place not in self.lost:
            self.lost[place] = why
            self._changed()

    def works(self, place: LogPlace) -> None:
        if self.unfit.pop(place, None) is not None:
            self._changed()

    def over(self, place: LogPlace) -> None:
        """The log was reopened or removed."""
        was = self.unfit.pop(place, None), self.lost.pop(place, None)
        if was != (None, None):
            self._changed()

    def _changed(self) -> None:
        for changed in self._watchers:
            changed()
