"""States of one log's sync as a pure transition table.

A sync starts only if none runs. The timer runs only in DEFERRED. Nothing starts after CLOSED, CLOSING, FAILING or
FAILED. A failure is reported once. `Flusher` decides whether a sync is due, after an append while no sync runs and in
DECIDING. It then sends NEEDED, NEEDED_SOON or NOT_NEEDED.

            needed, forced           its round began          appended           ended
    IDLE ───────────────────► REQUESTED ───────────► SYNCING ──────────► DIRTY ─────────► DECIDING
     │ ▲                      ▲   ▲                     │                                 │ │  │
     │ └──────────────────────┼───┼─────────────────────┘ ended       ◄── not needed ─────┘ │  │
     │ needed soon            │   └── needed ──────────────────────────────────────────────┘  │
     └────────────► DEFERRED ─┘ timer, awaited, forced, needed        ◄── needed soon ────────┘

    A failure leads to FAILED, and a close to CLOSED. While a sync runs, FAILING or CLOSING comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class FlushState(IntEnum):
    """State of a log's sync."""

    IDLE = 0
    DEFERRED = 1  # a sync is due and no request waits for it; a timer will start it (ADR 8)
    REQUESTED = 2  # the round has not begun; the sync covers appends until it begins
    SYNCING = 3
    DIRTY = 4  # syncing, and batches were appended since it began
    DECIDING = 5  # the sync ended; `Flusher` decides whether another one is due
    CLOSING = 6  # a sync still runs, and no other follows
    CLOSED = 7
    FAILING = 8  # the log failed while a sync was running
    FAILED = 9


class FlushEvent(IntEnum):
    APPENDED = 0  # batches were appended while a sync was running
    NEEDED = 1  # a sync is due, and a request waits for it
    NEEDED_SOON = 2  # a sync is due, no request waits for it
    NOT_NEEDED = 3
    AWAITED = 4  # a request begins to wait for a deferred sync
    TIMER = 5
    FORCED = 6  # by flush, drain or flush.ms, even if no sync is due
    BEGAN = 7  # the range of the sync is set
    ENDED = 8  # the sync ended, or had no work
    FAILED = 9  # a write, a sync or a seal job failed
    CLOSE = 10


class FlushAction(IntEnum):
    NOTHING = 0
    START = 1
    ARM = 2  # start the timer
    REPORT = 3  # report the failure to the owner


S, E, A = FlushState, FlushEvent, FlushAction
_STARTS: Final = {E.NEEDED: (S.REQUESTED, A.START), E.FORCED: (S.REQUESTED, A.START)}
_RESTS: Final = {E.FAILED: (S.FAILED, A.REPORT), E.CLOSE: (S.CLOSED, A.NOTHING)}
_RUNS: Final = {E.FAILED: (S.FAILING, A.REPORT), E.CLOSE: (S.CLOSING, A.NOTHING)}

NEXT: Final[dict[FlushState, dict[FlushEvent, tuple[FlushState, FlushAction]]]] = {
    S.IDLE: _STARTS | _RESTS | {E.NEEDED_SOON: (S.DEFERRED, A.ARM)},
    S.DEFERRED: _STARTS | _RESTS | {E.AWAITED: (S.REQUESTED, A.START), E.TIMER: (S.REQUESTED, A.START)},
    S.REQUESTED: _RUNS | {E.BEGAN: (S.SYNCING, A.NOTHING), E.ENDED: (S.IDLE, A.NOTHING)},
    S.SYNCING: _RUNS | {E.APPENDED: (S.DIRTY, A.NOTHING), E.ENDED: (S.IDLE, A.NOTHING)},
    S.DIRTY: _RUNS | {E.ENDED: (S.DECIDING, A.NOTHING)},
    S.DECIDING: {
        E.NEEDED: (S.REQUESTED, A.START),
        E.NEEDED_SOON: (S.DEFERRED, A.ARM),
        E.NOT_NEEDED: (S.IDLE, A.NOTHING),
    },
    S.CLOSING: {E.FAILED: (S.FAILING, A.REPORT), E.ENDED: (S.CLOSED, A.NOTHING)},
    S.CLOSED: {E.FAILED: (S.FAILED, A.REPORT)},
    S.FAILING: {E.ENDED: (S.FAILED, A.NOTHING)},
    S.FAILED: {},
}
"""Other events do not change that state."""

RUNNING: Final = frozenset({S.REQUESTED, S.SYNCING, S.DIRTY, S.CLOSING, S.FAILING})
"""A sync was requested and has not ended."""
OVER: Final = frozenset({S.CLOSING, S.CLOSED, S.FAILING, S.FAILED})
"""No further sync starts."""


@dataclass(slots=True)
class FlushStates:
    """The state of one log's sync, and whether its small files are being written."""

    state: FlushState = FlushState.IDLE
    is_sealing: bool = False

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
