"""Partitions of one topic that this broker was told to lead together, on their way to clients.

Owns which of them are open and not published. Always true: one that is open is published soon, whatever the others wait
for; those that open within `TOGETHER_S` are published at once: one change of what clients see, not many; the topic is
published when all are over, though none may have opened. Must not know how a partition is opened.
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
    """See the module. `publish` lets clients see these; `indexes`: those that are to be led."""

    def __init__(self, topic: str, indexes: list[int], publish: Callable[[list[LeaderRole]], None]) -> None:
        self._topic = topic
        self._publish = publish
        self._missing = dict.fromkeys(indexes)
        self._ready: dict[int, LeaderRole] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.was_given_up = False
        self.over = asyncio.Event()
        """Each of them serves, stays offline, or is not to be led any more."""

    @property
    def ready_count(self) -> int:
        """Partitions that are open and not published."""
        return len(self._ready)

    def ready(self, role: LeaderRole) -> None:
        """It is open."""
        self._ready[role.index] = role
        self._missing.pop(role.index, None)
        if not self._missing:
            self._hand_over()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOGETHER_S, self._hand_over)

    def drop(self, index: int, *, is_given_up: bool = False) -> None:
        """It is not to be published: it stays offline, or its role is over."""
        self.was_given_up |= is_given_up
        self._ready.pop(index, None)
        if index in self._missing:
            del self._missing[index]
            if not self._missing:
                self._hand_over()

    def _hand_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ready, self._ready = self._ready, {}
        is_last = not self._missing
        if (ready or is_last) and not self.over.is_set():
            roles = [role for _, role in sorted(ready.items())]
            self._tell_lost({role.index: lost for role in roles if (lost := role.lost) is not None})
            self._publish(roles)
        if is_last:
            self.over.set()

    def _tell_lost(self, lost: Mapping[int, tuple[int, int]]) -> None:
        """One line a topic, however many partitions: what may be gone, and where to look. Nothing but the lost disk
        could tell how much of it there was."""
        if not lost:
            return
        shown = ", ".join(f"{index} [{first}, {end})" for index, (first, end) in sorted(lost.items())[:3])
        log.warning(
            "%s: what %d partition%s got after the bucket's end, if anything, is lost; offsets that clients may have "
            "seen are declared gaps: %s%s; `thermocline tier status --topic %s` names each",
            self._topic,
            len(lost),
            "s" * (len(lost) > 1),
            shown,
            f" and {len(lost) - 3} more" if len(lost) > 3 else "",
            self._topic,
        )
