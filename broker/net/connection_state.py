"""What a connection is doing, as one of eight states, and what each event makes of it.

Owns the table; it is the specification. Always true: frames are dispatched in `READING` only; whoever is not dispatched
is not read either as soon as something of it lies here; a connection that closes takes no frame any more, one that is
cut sends nothing any more, and one that is lost stays lost. Must not know frames, answers or transports. Pure.

```
WAITING ─ADMITTED─► READING ─MUTE─► MUTED ─LEFT_OVER─► BEHIND      any of these ─CLOSE─► CLOSING
                       ▲ │            │                 │  ▲       any of these and CLOSING ─CUT─► CUT
                       │ └─NO_MEMORY─► STARVED ─MEMORY──┼──┘       all ─LOST─► LOST
                       └────────────CLEAR───────────────┘
```
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """The value says what the connection waits for."""

    __hash__ = object.__hash__  # Enum's own is Python code: 0.2 µs a look-up

    WAITING = "its turn to be admitted; nothing of it is read"
    READING = "the peer; what comes is dispatched as it comes"
    MUTED = "an answer, or the peer to take its answers; nothing of it lies here, so what comes next is read and kept"
    BEHIND = "the same, and undispatched bytes lie here: nothing more is read"
    STARVED = "memory for a frame that is half here: nothing more is read"
    CLOSING = "answers in flight to leave; then it closes"
    CUT = "the transport to tell that it is gone; nothing leaves any more"
    LOST = "nothing; it is over"


class Event(Enum):
    """What may happen to a connection."""

    __hash__ = object.__hash__

    ADMITTED = "the server lets it in"
    MUTE = "a request blocks, too many answers wait, the peer takes none, or it is the others' turn"
    LEFT_OVER = "bytes that may not be dispatched lie here, or a frame that must stay where it was read"
    CLEAR = "nothing of what mutes stands in the way any more"
    NO_MEMORY = "what is left of an incomplete frame needs more memory than the budget has"
    MEMORY = "the budget has room again"
    CLOSE = "we decided to end it, in order"
    CUT = "we decided to end it at once, or its frame can no longer be completed"
    LOST = "the transport is gone"


_OPEN: Final = (State.WAITING, State.READING, State.MUTED, State.BEHIND, State.STARVED)

NEXT: Final[dict[Event, dict[State, State]]] = {
    Event.ADMITTED: {State.WAITING: State.READING},
    Event.MUTE: {State.READING: State.MUTED},
    Event.LEFT_OVER: {State.MUTED: State.BEHIND},
    Event.CLEAR: {State.MUTED: State.READING, State.BEHIND: State.READING},
    Event.NO_MEMORY: {State.READING: State.STARVED},
    Event.MEMORY: {State.STARVED: State.BEHIND},  # whether all is clear is seen next: answers may have piled up
    Event.CLOSE: dict.fromkeys(_OPEN, State.CLOSING),
    Event.CUT: dict.fromkeys((*_OPEN, State.CLOSING), State.CUT),
    Event.LOST: dict.fromkeys(State, State.LOST),
}
"""By event: what becomes of which state. Whatever is not here stays as it is."""

READS: Final = frozenset({State.READING, State.MUTED})
"""States in which bytes are taken from the transport."""

OVER: Final = frozenset({State.CUT, State.LOST})
"""States in which nothing leaves any more."""
