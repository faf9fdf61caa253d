"""How long a peer may take: to complete a frame, to say anything at all, to take its answers.

Owns the ticks since when each of these is awaited. Always true: a peer is judged only for what it could do: a frame's
time runs only while we read, idleness not while it waits for our answer; who takes a byte now and then is slow, not
dead. Must not know what becomes of who is late. Pure: ticks come in (`deadlines`).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from broker.net.connection_state import State


class Ticks(NamedTuple):
    """The limits, in ticks of the wheel."""

    frame: int  # from a frame's first byte to its last
    idle: int  # without a byte from the peer
    stall: int  # without the peer taking a byte of its answers; also for answers to come once we close


class Late(Enum):
    """What a peer, or once we close an answer, was too late with."""

    FRAME = "frame"
    IDLE = "idle"
    TAKING = "taking"
    ANSWER = "answer"


class Patience:
    """One connection's. Ticks begin at 1: 0 stands for "not awaited"."""

    __slots__ = ("_limits", "_stalled_since", "_taken", "frame_since", "heard")

    def __init__(self, limits: Ticks) -> None:
        self._limits = limits
        self.heard = 0  # tick of the last byte in; once closing, of the decision
        self.frame_since = 0  # tick since when we read for the frame that is incomplete
        self._stalled_since = 0
        self._taken = (0, 0)  # what the peer had taken then

    def stalled(self, tick: int, taken: tuple[int, int]) -> int:
        """The socket is full; the tick to look at it."""
        self._stalled_since, self._taken = tick, taken
        return tick + self._limits.stall

    def flows(self) -> None:
        """The socket has room again."""
        self._stalled_since = 0

    def frame_began(self, tick: int) -> int:
        """An incomplete frame is read on; the tick by which it must be whole."""
        self.frame_since = tick
        return tick + self._limits.frame

    def spoke(self, tick: int) -> int:
        """The peer is let in, or was heard; the tick by which it must be heard again."""
        self.heard = tick
        return tick + self._limits.idle

    def closes(self, tick: int) -> int:
        """We decided to close; the tick by which answers in flight must have left."""
        self.heard = tick
        return tick + self._limits.stall

    def judge(self, tick: int, state: State, *, owes: bool, taken: tuple[int, int]) -> tuple[int, Late | None]:
        """What is overdue at `tick`, else the tick of the next deadline. `owes`: we owe the peer an answer; `taken`:
        changes whenever it takes something (`SendPath.progress`)."""
        limits = self._limits
        if self._stalled_since:
            if taken != self._taken:
                return self.stalled(tick, taken), None
            return self._due(tick, self._stalled_since + limits.stall, Late.TAKING)
        if state is State.CLOSING:
            return self._due(tick, self.heard + limits.stall, Late.ANSWER)
        if owes:
            self.heard = tick
        idle = self.heard + limits.idle
        if self.frame_since and state is State.READING and self.frame_since + limits.frame <= idle:
            return self._due(tick, self.frame_since + limits.frame, Late.FRAME)
        return self._due(tick, idle, Late.IDLE)

    def _due(self, tick: int, deadline: int, late: Late) -> tuple[int, Late | None]:
        return (0, late) if tick >= deadline else (deadline, None)
