"""One coarse timer for the deadlines of all connections.

Always true: a connection lies in the wheel once, at or before the tick its next deadline falls on, and setting a later
one costs nothing. A tick is about a second of a loop that runs: a process that stood still does not hold it against its
peers. Sans-IO: somebody calls `advance`.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class Timed(Protocol):
    """Something with a deadline, hashed by identity."""

    armed_tick: int
    """Owned by the wheel: the tick it will be looked at, 0 for none."""

    def check_deadlines(self, tick: int) -> int:
        """Act on what is overdue at `tick`; the tick of the next deadline, or 0 for none."""
        ...


T = TypeVar("T", bound=Timed)


class DeadlineWheel(Generic[T]):
    """Things by the tick at which to look at them. `tick` starts at 1."""

    def __init__(self) -> None:
        self.tick = 1
        self._slots: dict[int, dict[T, None]] = {}  # dicts as ordered sets: a simulation must repeat itself

    def __len__(self) -> int:
        """Slots in use: 0 means nobody needs a tick."""
        return len(self._slots)

    def arm(self, thing: T, tick: int) -> None:
        """Look at `thing` at `tick` at the latest (never before the next one)."""
        tick = max(tick, self.tick + 1)
        if thing.armed_tick and thing.armed_tick <= tick:
            return
        self.disarm(thing)
        thing.armed_tick = tick
        self._slots.setdefault(tick, {})[thing] = None

    def disarm(self, thing: T) -> None:
        """Forget `thing`: the wheel must not keep a closed connection for its idle time."""
        if thing.armed_tick:
            slot = self._slots[thing.armed_tick]
            del slot[thing]
            if not slot:
                del self._slots[thing.armed_tick]
            thing.armed_tick = 0

    def advance(self) -> None:
        """One tick passes."""
        self.tick += 1
        slot = self._slots.pop(self.tick, {})
        for thing in slot:
            thing.armed_tick = 0
        for thing in slot:
            following = thing.check_deadlines(self.tick)
            if following:
                self.arm(thing, following)
