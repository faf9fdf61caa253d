"""What a log's flusher is doing, as a table: what may follow what, and what has to be done then.

Owns the states of one log's sync, and whether small files are written beside it. Always true: a sync starts only where
none runs; a timer runs in PUT_OFF and nowhere else; after CLOSED, CLOSING, FAILING and FAILED nothing starts; a failure
is told once. Pure: no loop, no files, no clock. Must not know: who waits, what is due: the shell looks, and says it by
NEEDED, NEEDED_SOON or NOT_NEEDED, where something was appended and no sync runs, and in BETWEEN.

            needed, forced           its round began          appended           ended
    IDLE ───────────────────► ASKED ───────────────► SYNCING ──────────► AGAIN ─────────► BETWEEN
     │ ▲                      ▲   ▲                     │                                 │ │  │
     │ └──────────────────────┼───┼─────────────────────┘ ended       ◄── not needed ─────┘ │  │
     │ needed soon            │   └── needed ──────────────────────────────────────────────┘  │
     └─────────────► PUT_OFF ─┘ timer, hurried, forced, needed        ◄── needed soon ─────────┘
    A failure leads to FAILED and a close to CLOSED, where a sync runs by way of FAILING and CLOSING.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class FlushState(IntEnum):
    """Where the sync of a log stands."""

    IDLE = 0
    PUT_OFF = 1  # something is due, nobody waits for it: a timer will start it (ADR 8)
    ASKED = 2  # its round has not begun: what is appended meanwhile comes along
    SYNCING = 3
    AGAIN = 4  # syncing, and something was appended since it began
    BETWEEN = 5  # that sync is over, the shell looks whether another one is due
    CLOSING = 6  # a sync runs still, nothing starts after it
    CLOSED = 7
    FAILING = 8  # the log failed, a sync runs still
    FAILED = 9


class FlushEvent(IntEnum):
    """What happened."""

    APPENDED = 0  # while a sync runs
    NEEDED = 1  # a sync is due, and somebody waits
    NEEDED_SOON = 2  # one is due, nobody waits
    NOT_NEEDED = 3
    HURRIED = 4  # somebody begins to wait
    TIMER = 5
    FORCED = 6  # whatever is due: a flush, a drain, flush.ms
    BEGAN = 7  # what the sync covers was sampled
    ENDED = 8  # the sync is over, also where there was nothing to do
    FAILED = 9  # a write, a sync or a sealing job did
    CLOSE = 10


class FlushAction(IntEnum):
    """What has to be done about it."""

    NOTHING = 0
    START = 1
    ARM = 2  # start the timer
    TELL = 3  # the owner, that nothing more will be flushed


S, E, A = FlushState, FlushEvent, FlushAction
_STARTS: Final = {E.NEEDED: (S.ASKED, A.START), E.FORCED: (S.ASKED, A.START)}
_RESTS: Final = {E.FAILED: (S.FAILED, A.TELL), E.CLOSE: (S.CLOSED, A.NOTHING)}
_RUNS: Final = {E.FAILED: (S.FAILING, A.TELL), E.CLOSE: (S.CLOSING, A.NOTHING)}

NEXT: Final[dict[FlushState, dict[FlushEvent, tuple[FlushState, FlushAction]]]] = {
    S.IDLE: _STARTS | _RESTS | {E.NEEDED_SOON: (S.PUT_OFF, A.ARM)},
    S.PUT_OFF: _STARTS | _RESTS | {E.HURRIED: (S.ASKED, A.START), E.TIMER: (S.ASKED, A.START)},
    S.ASKED: _RUNS | {E.BEGAN: (S.SYNCING, A.NOTHING), E.ENDED: (S.IDLE, A.NOTHING)},
    S.SYNCING: _RUNS | {E.APPENDED: (S.AGAIN, A.NOTHING), E.ENDED: (S.IDLE, A.NOTHING)},
    S.AGAIN: _RUNS | {E.ENDED: (S.BETWEEN, A.NOTHING)},
    S.BETWEEN: {
        E.NEEDED: (S.ASKED, A.START),
        E.NEEDED_SOON: (S.PUT_OFF, A.ARM),
        E.NOT_NEEDED: (S.IDLE, A.NOTHING),
    },
    S.CLOSING: {E.FAILED: (S.FAILING, A.TELL), E.ENDED: (S.CLOSED, A.NOTHING)},
    S.CLOSED: {E.FAILED: (S.FAILED, A.TELL)},
    S.FAILING: {E.ENDED: (S.FAILED, A.NOTHING)},
    S.FAILED: {},
}
"""Any other event changes nothing in that state."""

RUNNING: Final = frozenset({S.ASKED, S.SYNCING, S.AGAIN, S.CLOSING, S.FAILING})
"""A sync was asked for and is not over."""
OVER: Final = frozenset({S.CLOSING, S.CLOSED, S.FAILING, S.FAILED})
"""Nothing starts any more."""


class FlushStates:
    """See the module."""

    __slots__ = ("is_sealing", "state")

    def __init__(self) -> None:
        self.state = FlushState.IDLE
        self.is_sealing = False
        """Small files are being written, beside whatever sync."""

    def on(self, event: FlushEvent) -> FlushAction:
        following = NEXT[self.state].get(event)
        if following is None:
            return FlushAction.NOTHING
        self.state, action = following
        return action

    @property
    def is_syncing(self) -> bool:
        return self.state in RUNNING

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def may_seal(self) -> bool:
        return not self.is_sealing and self.state not in OVER
