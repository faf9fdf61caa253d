"""A connection's state, and what follows from it: whether the transport reads, what is overdue, how it ends.

Owns the shell around `connection_state` and `patience`. Always true: it waits in the budget's queue exactly while it is
STARVED; the reason it ends for is the first that was decided, unless it has to be cut; a transport is told to read on
or not only by `follow`. Must not know frames, nor what answers say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from broker.net.connection_state import NEXT, OVER, READS, Event, State
from broker.net.dispatch import CloseReason, Peer
from broker.net.outbox import Outbox
from broker.net.patience import Late, Patience
from broker.net.shared import Shared

log = logging.getLogger(__name__)

# Looked up once: as attributes of their classes they cost 0.1 µs each time.
_BEHIND, _STARVED, _CLOSING = State.BEHIND, State.STARVED, State.CLOSING

_OURS: Final = (CloseReason.SHORT_FILE, CloseReason.SEND_FAILED)  # the peer did nothing wrong


class Lifecycle:
    """One connection's. `memory_freed` is called when the budget has room for whom is STARVED."""

    __slots__ = (
        "_memory_freed",
        "_outbox",
        "_peer",
        "_reason",
        "_shared",
        "_transport",
        "armed_tick",
        "patience",
        "reads",
        "state",
    )

    def __init__(self, shared: Shared, peer: Peer, memory_freed: Callable[[], None]) -> None:
        self._shared = shared
        self._peer = peer
        self._memory_freed = memory_freed
        self._reason = CloseReason.PEER  # why it ends: ours, from CLOSING or CUT on
        self._transport: asyncio.Transport
        self._outbox: Outbox
        self.armed_tick = 0  # the wheel's
        self.patience = Patience(shared.ticks)
        self.reads = True  # what the transport was told last
        self.state = State.WAITING

    def begin(self, transport: asyncio.Transport, outbox: Outbox) -> None:
        """The connection is made; whether it is admitted is said next."""
        self._transport = transport
        self._outbox = outbox

    def admitted(self) -> None:
        """Serve it from now on."""
        self.step(NEXT[Event.ADMITTED])
        wheel = self._shared.wheel
        wheel.arm(self, self.patience.spoke(wheel.tick))
        self.follow()

    def step(self, event: Mapping[State, State]) -> None:
        """`event`: what it makes of each state, a row of `NEXT`."""
        was = self.state
        now = self.state = event.get(was, was)
        if was is _STARVED and now is not was and now is not _BEHIND:
            self._shared.budget.forget(self._memory_freed)  # if it was called already, that wakes the next one

    def follow(self) -> None:
        """Have the transport read, or not, as the state says."""
        reads = self.state in READS
        if reads is not self.reads:
            self.reads = reads
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def starve(self) -> None:
        """An incomplete frame needs memory that is not there."""
        self.step(NEXT[Event.NO_MEMORY])
        self._shared.counters.budget_waits += 1
        self._shared.budget.wait(self._memory_freed)

    def frame_began(self) -> None:
        """An incomplete frame is read on: it has its time from now."""
        wheel = self._shared.wheel
        wheel.arm(self, self.patience.frame_began(wheel.tick))

    def stalled(self) -> None:
        """The socket is full."""
        wheel = self._shared.wheel
        wheel.arm(self, self.patience.stalled(wheel.tick, self._outbox.send.progress))

    def flows(self) -> None:
        """The socket has room again."""
        self.patience.flows()

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self, reason: CloseReason, detail: str) -> None:
        """No more frames from now on; `close_when_done` does the rest. Nothing where it ends already."""
        was = self.state
        self.step(NEXT[Event.CLOSE])
        if self.state is not was:
            self._reason = reason
            wheel = self._shared.wheel
            wheel.arm(self, self.patience.closes(wheel.tick))
            log.debug("closing %s: %s: %s", self._peer.address, reason.value, detail)

    def close_when_done(self) -> None:
        """Once CLOSING, whenever an answer left."""
        if self._outbox.empty:
            self._transport.close()

    def end(self, reason: CloseReason, detail: str) -> None:
        """Both, outside of the dispatch of frames."""
        self.close(reason, detail)
        if self.state is _CLOSING:
            self.follow()
            self.close_when_done()

    def abort(self, reason: CloseReason, detail: str) -> None:
        """Close now, whatever is in flight."""
        self.cut(reason, detail)
        self._transport.abort()

    def cut(self, reason: CloseReason, detail: str) -> None:
        """Nothing leaves any more; the transport is, or is about to be, aborted."""
        if self.state in OVER:
            return
        self.step(NEXT[Event.CUT])
        self._reason = reason
        level = logging.WARNING if reason in _OURS else logging.DEBUG
        log.log(level, "closing %s at once: %s: %s", self._peer.address, reason.value, detail)

    def lost(self) -> None:
        """The transport is gone."""
        self.step(NEXT[Event.LOST])
        self._peer.closed = True
        if self._peer.farewell is not None:
            self._peer.farewell()
        self._shared.counters.closes[self._reason] += 1
        self._shared.wheel.disarm(self)

    def check_deadlines(self, tick: int) -> int:
        """See `deadlines.Timed`."""
        if self.state in OVER:
            return 0
        outbox = self._outbox
        next_tick, late = self.patience.judge(tick, self.state, owes=bool(outbox.answers), taken=outbox.send.progress)
        if late is Late.TAKING:
            self.abort(CloseReason.SLOW_READER, "it takes nothing of its answers")
        elif late is Late.ANSWER:
            self.abort(self._reason, "answers in flight did not come")
        elif late is not None:
            self.end(CloseReason.FRAME_DEADLINE if late is Late.FRAME else CloseReason.IDLE, "deadline passed")
        return next_tick
