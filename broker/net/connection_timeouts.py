"""Time-outs of connections, in ticks of one coarse timer that all connections share. No I/O: ticks are parameters."""

from __future__ import annotations

from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

from broker.net.connection_state import State


class Ticks(NamedTuple):
    """The limits, in ticks of the wheel."""

    frame: int  # from a frame's first byte to its last
    idle: int  # time without a byte from the peer
    stall: int  # time without the peer taking a byte of its responses; after a close, time to take all of them
    handshake: int = 11  # from the admission to the end of the TLS handshake


class Overdue(Enum):
    FRAME = "frame"
    IDLE = "idle"
    TAKING = "taking"
    ANSWER = "answer"


class PeerTimeouts:
    """Deadlines of one connection: to complete a frame, to send any byte, to take responses.

    A frame's time runs only while the broker reads. Idle time stops while the peer waits for a response or is
    throttled. A peer that sometimes takes a byte is not stalled. Ticks begin at 1; 0 means "not awaited".
    """

    __slots__ = ("_limits", "_stalled_since", "_taken", "frame_since", "heard")

    def __init__(self, limits: Ticks) -> None:
        self._limits = limits
        self.heard = 0  # tick of the last byte received; when the broker closes, the tick of the close
        self.frame_since = 0  # tick since when an incomplete frame is read
        self._stalled_since = 0
        self._taken = (0, 0)  # the peer's progress at `_stalled_since`

    def stalled(self, tick: int, taken: tuple[int, int]) -> int:
        """The socket is full; returns the tick to check it."""
        self._stalled_since, self._taken = tick, taken
        return tick + self._limits.stall

    def writable(self) -> None:
        self._stalled_since = 0

    def frame_began(self, tick: int) -> int:
        """An incomplete frame is read; returns the tick by which it must be complete."""
        self.frame_since = tick
        return tick + self._limits.frame

    def spoke(self, tick: int) -> int:
        """The peer was admitted or sent bytes; returns the tick by which it must send again."""
        self.heard = tick
        return tick + self._limits.idle

    def closes(self, tick: int) -> int:
        """The broker closes; returns the tick by which responses in flight must have left."""
        self.heard = tick
        return tick + self._limits.stall

    def overdue(self, tick: int, state: State, *, owes: bool, taken: tuple[int, int]) -> tuple[int, Overdue | None]:
        """The expired deadline at `tick`. If no deadline expired, the tick of the next deadline. `owes`: a response is
        outstanding; `taken`: changes whenever the peer takes bytes (`TransportWriter.progress`)."""
        limits = self._limits
        if self._stalled_since:
            if taken != self._taken:
                return self.stalled(tick, taken), None
            return self._due(tick, self._stalled_since + limits.stall, Overdue.TAKING)
        if state is State.CLOSING:
            return self._due(tick, self.heard + limits.stall, Overdue.ANSWER)
        if owes or state is State.THROTTLED:
            self.heard = tick
        idle = self.heard + limits.idle
        if self.frame_since and state is State.READING and self.frame_since + limits.frame <= idle:
            return self._due(tick, self.frame_since + limits.frame, Overdue.FRAME)
        return self._due(tick, idle, Overdue.IDLE)

    def _due(self, tick: int, deadline: int, late: Overdue) -> tuple[int, Overdue | None]:
        return (0, late) if tick >= deadline else (deadline, None)


class Timed(Protocol):
    """An object with a deadline, hashed by identity."""

    armed_tick: int
    """Set by `DeadlineWheel` only: the tick of the next check, 0 for none."""

    def check_deadlines(self, tick: int) -> int:
        """Handle deadlines that are over at `tick`. Returns the tick of the next deadline, 0 for none."""
        ...


T = TypeVar("T", bound=Timed)


class DeadlineWheel(Generic[T]):
    """One coarse timer for the deadlines of all connections, by tick (from 1 on).

    Each object is in the wheel once, at or before its next deadline; setting a later deadline costs nothing. A tick is
    about a second of a running loop, so a stall of the process does not count against peers. The owner calls `advance`.
    """

    def __init__(self) -> None:
        self.tick = 1
        self._slots: dict[int, dict[T, None]] = {}  # dicts as ordered sets, because a simulation must be reproducible

    def __len__(self) -> int:
        """Slots in use: 0 means that no tick is needed."""
        return len(self._slots)

    def arm(self, thing: T, tick: int) -> None:
        """Check `thing` at `tick` at the latest (never before the next tick)."""
        tick = max(tick, self.tick + 1)
        if thing.armed_tick and thing.armed_tick <= tick:
            return
        self.disarm(thing)
        thing.armed_tick = tick
        self._slots.setdefault(tick, {})[thing] = None

    def disarm(self, thing: T) -> None:
        """Remove `thing`: the wheel must not keep a closed connection for its idle time."""
        if thing.armed_tick:
            slot = self._slots[thing.armed_tick]
            del slot[thing]
            if not slot:
                del self._slots[thing.armed_tick]
            thing.armed_tick = 0

    def advance(self) -> None:
        self.tick += 1
        slot = self._slots.pop(self.tick, {})
        for thing in slot:
            thing.armed_tick = 0
        for thing in slot:
            following = thing.check_deadlines(self.tick)
            if following:
                self.arm(thing, following)
