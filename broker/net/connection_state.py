"""State table of a connection: nine states, and the transitions of each event. The table is the specification.

Frames are dispatched in `READING` only. A connection with undispatched bytes is read only in `READING`. A closing
connection reads no frame, a cut connection sends nothing, and a lost connection stays lost.

```
    WAITING ─ADMITTED─► READING ─MUTE─► MUTED ─LEFT_OVER─► BEHIND      any of these ─CLOSE─► CLOSING
                           ▲ │            │                 │  ▲       any of these and CLOSING ─CUT─► CUT
                           │ └─NO_MEMORY─► STARVED ─MEMORY──┼──┘       all ─LOST─► LOST
                           └────────────CLEAR───────────────┘
    READING, MUTED and BEHIND ─THROTTLE─► THROTTLED ─THROTTLE_OVER─► BEHIND
```
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """State of a connection; the value names the thing for which the connection waits."""

    __hash__ = object.__hash__  # the hash of Enum is Python code: 0.2 µs a look-up

    WAITING = "admission; nothing is read"
    READING = "bytes of the peer; frames are dispatched as they arrive"
    MUTED = (
        "a response, or the peer to take its responses; no undispatched bytes yet, so the next ones are read and kept"
    )
    BEHIND = "as MUTED, with undispatched bytes: nothing more is read"
    STARVED = "memory for a partly received frame: nothing more is read"
    THROTTLED = "the end of its throttle time (KIP-219); responses leave, nothing is read or dispatched"
    CLOSING = "responses in flight to leave; then it closes"
    CUT = "the transport's connection_lost; nothing is sent"
    LOST = "nothing; it is over"


class Event(Enum):
    __hash__ = object.__hash__

    ADMITTED = "the server admits it"
    MUTE = "a request blocks, too many responses wait, the peer takes none, or other connections have their turn"
    LEFT_OVER = "bytes remain that may not be dispatched, or a frame that must stay where it was read"
    CLEAR = "no reason to mute remains"
    NO_MEMORY = "an incomplete frame needs more memory than the budget has"
    MEMORY = "the budget has room again"
    THROTTLE = "its client is over a quota"
    THROTTLE_OVER = "the throttle time passed"
    CLOSE = "the broker closes it, after its responses"
    CUT = "the broker closes it at once, or a response cannot be completed"
    LOST = "the transport is gone"


_OPEN: Final = (State.WAITING, State.READING, State.MUTED, State.BEHIND, State.STARVED, State.THROTTLED)

NEXT: Final[dict[Event, dict[State, State]]] = {
    Event.ADMITTED: {State.WAITING: State.READING},
    Event.MUTE: {State.READING: State.MUTED},
    Event.LEFT_OVER: {State.MUTED: State.BEHIND},
    Event.CLEAR: {State.MUTED: State.READING, State.BEHIND: State.READING},
    Event.NO_MEMORY: {State.READING: State.STARVED},
    Event.MEMORY: {State.STARVED: State.BEHIND},  # not READING: many responses may be waiting
    Event.THROTTLE: dict.fromkeys((State.READING, State.MUTED, State.BEHIND), State.THROTTLED),
    Event.THROTTLE_OVER: {State.THROTTLED: State.BEHIND},  # not READING: a request may still be under way
    Event.CLOSE: dict.fromkeys(_OPEN, State.CLOSING),
    Event.CUT: dict.fromkeys((*_OPEN, State.CLOSING), State.CUT),
    Event.LOST: dict.fromkeys(State, State.LOST),
}
"""The transitions of each event. A state that is not listed does not change."""

READS: Final = frozenset({State.READING, State.MUTED})
"""States in which the transport is read."""

OVER: Final = frozenset({State.CUT, State.LOST})
"""States in which nothing is sent."""
