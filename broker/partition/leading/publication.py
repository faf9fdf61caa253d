"""Publishes the partitions of one topic that this broker was asked to lead together.

An open partition is published within `TOGETHER_S`, even if other partitions still open. Partitions that open within
that time are published together, so clients see one change. The topic is published when all attempts ended, even if no
partition opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.partition.leading.leader_role import LeaderRole

log = logging.getLogger(__name__)

TOGETHER_S: Final = 0.5


class Publication:
    """The publication of one topic's partitions. `publish` makes the given roles visible. `indexes`: the partitions to
    be led."""

    def __init__(self, topic: str, indexes: list[int], publish: Callable[[list[LeaderRole]], None]) -> None:
        self._topic = topic
        self._publish = publish
        self._missing = dict.fromkeys(indexes)
        self._ready: dict[int, LeaderRole] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.was_given_up = False
        self.over = asyncio.Event()  # set when each partition serves, stays offline, or is no longer to be led

    @property
    def ready_count(self) -> int:
        return len(self._ready)

    def ready(self, role: LeaderRole) -> None:
        self._ready[role.index] = role
        self._missing.pop(role.index, None)
        if not self._missing:
            self._publish_ready()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOGETHER_S, self._publish_ready)

    def drop(self, index: int, *, is_given_up: bool = False) -> None:
        """The partition will not be published, because it stays offline or its role ended."""
        self.was_given_up |= is_given_up
        self._ready.pop(index, None)
        if index in self._missing:
            del self._missing[index]
            if not self._missing:
                self._publish_ready()

    def _publish_ready(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ready, self._ready = self._ready, {}
        is_last = not self._missing
        if (ready or is_last) and not self.over.is_set():
            roles = [role for _, role in sorted(ready.items())]
            self._log_lost({role.index: lost for role in roles if (lost := role.lost) is not None})
            self._publish(roles)
        if is_last:
            self.over.set()

    def _log_lost(self, lost: Mapping[int, tuple[int, int]]) -> None:
        """Log one line per topic with the offsets that may be lost. The number of lost records is unknown, because only
        the lost disk had their number."""
        if not lost:
            return
        shown = ", ".join(f"{index} [{first}, {end})" for index, (first, end) in sorted(lost.items())[:3])
        log.warning(
            "%s: records above the bucket's end, if there were any, are lost in %d partition%s; declared gaps: "
            "%s%s; `thermocline tier status --topic %s` has them all",
            self._topic,
            len(lost),
            "s" * (len(lost) > 1),
            shown,
            f" and {len(lost) - 3} more" if len(lost) > 3 else "",
            self._topic,
        )
