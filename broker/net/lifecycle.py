"""Life of a connection: applies its state to reading, deadlines and closing. A connection waits in the budget's queue
exactly while it is STARVED. The first reason to close is reported, unless the connection is cut later. Only
`update_reading` pauses and resumes reading.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from broker.net.connection_state import NEXT, OVER, READS, Event, State
from broker.net.connection_timeouts import Overdue, PeerTimeouts
from broker.net.dispatch import CloseReason, Peer
from broker.net.response_queue import Outbox
from broker.net.shared import Shared

log = logging.getLogger(__name__)

# These values are looked up once: a look-up as an attribute of the class costs 0.1 µs each time.
_BEHIND, _STARVED, _CLOSING = State.BEHIND, State.STARVED, State.CLOSING

_OURS: Final = (CloseReason.SHORT_FILE, CloseReason.SEND_FAILED)  # failures of the broker, not of the peer


class Lifecycle:
    """The life of one connection. `memory_freed` is called when the budget has room while the connection is STARVED,
    `throttle_over` when its throttle time passed."""

    __slots__ = (
        "_memory_freed",
        "_outbox",
        "_peer",
        "_reason",
        "_shared",
        "_throttle",
        "_throttle_over",
        "_transport",
        "armed_tick",
        "reads",
        "state",
        "timeouts",
    )

    def __init__(
        self, shared: Shared, peer: Peer, memory_freed: Callable[[], None], throttle_over: Callable[[], None]
    ) -> None:
        self._shared = shared
        self._peer = peer
        self._memory_freed = memory_freed
        self._throttle_over = throttle_over
        self._throttle: asyncio.TimerHandle | None = None  # runs while the peer is throttled
        self._reason = CloseReason.PEER  # set by the broker from CLOSING or CUT on
        self._transport: asyncio.Transport
        self._outbox: Outbox
        self.armed_tick = 0  # set by the deadline wheel only
        self.timeouts = PeerTimeouts(shared.ticks)
        self.reads = True  # the transport is not paused
        self.state = State.WAITING

    def begin(self, transport: asyncio.Transport, outbox: Outbox) -> None:
        """The connection was made; it is not admitted yet."""
        self._transport = transport
        self._outbox = outbox

    def admitted(self) -> None:
        self.step(NEXT[Event.ADMITTED])
        wheel = self._shared.wheel
        wheel.arm(self, self.timeouts.spoke(wheel.tick))
        self.update_reading()

    def step(self, event: Mapping[State, State]) -> None:
        """Apply `event`, a row of `NEXT`."""
        was = self.state
        now = self.state = event.get(was, was)
        if was is _STARVED and now is not was and now is not _BEHIND:
            self._shared.budget.forget(self._memory_freed)  # a callback that was called already wakes the next waiter

    def update_reading(self) -> None:
        reads = self.state in READS
        if reads is not self.reads:
            self.reads = reads
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def pause_again(self) -> None:
        """Pause again: Python 3.11.2 (Debian 12) begins to read after `connection_made`, although that paused reading.
        Later versions do not."""
        if not self.reads:
            self._transport.resume_reading()
            self._transport.pause_reading()

    def starve(self) -> None:
        """An incomplete frame needs memory that the budget does not have."""
        self.step(NEXT[Event.NO_MEMORY])
        self._shared.counters.budget_waits += 1
        self._shared.budget.wait(self._memory_freed)

    @property
    def is_throttled(self) -> bool:
        return self._throttle is not None

    def throttle(self, throttle_ms: int) -> None:
        """Stop reading for this time, but at most for the idle time, so that the broker notices a lost peer. An earlier
        throttle that ends later remains in effect."""
        loop, timer = asyncio.get_running_loop(), self._throttle
        until_s = loop.time() + min(throttle_ms, self._shared.limits.idle_ms_max) / 1000
        if self.state in OVER or (timer is not None and timer.when() >= until_s):
            return
        if timer is not None:
            timer.cancel()
        self._throttle = loop.call_at(until_s, self._end_throttle)
        self.step(NEXT[Event.THROTTLE])
        self.update_reading()

    def _end_throttle(self) -> None:
        self._throttle = None
        self.step(NEXT[Event.THROTTLE_OVER])
        self._throttle_over()

    def frame_began(self) -> None:
        """An incomplete frame is read: its deadline runs from now."""
        wheel = self._shared.wheel
        wheel.arm(self, self.timeouts.frame_began(wheel.tick))

    def stalled(self) -> None:
        wheel = self._shared.wheel
        wheel.arm(self, self.timeouts.stalled(wheel.tick, self._outbox.send.progress))

    def writable(self) -> None:
        self.timeouts.writable()

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self, reason: CloseReason, detail: str) -> None:
        """Read no more frames; `close_when_done` then closes the transport. No effect on a connection that is already
        ending."""
        was = self.state
        self.step(NEXT[Event.CLOSE])
        if self.state is not was:
            self._reason = reason
            wheel = self._shared.wheel
            wheel.arm(self, self.timeouts.closes(wheel.tick))
            log.debug("closing %s: %s: %s", self._peer.address, reason.value, detail)

    def close_when_done(self) -> None:
        """Close the transport if all responses left; called for each response that leaves while CLOSING."""
        if self._outbox.empty:
            self._transport.close()

    def end(self, reason: CloseReason, detail: str) -> None:
        """`close` and `close_when_done`, outside of the dispatch of frames."""
        self.close(reason, detail)
        if self.state is _CLOSING:
            self.update_reading()
            self.close_when_done()

    def abort(self, reason: CloseReason, detail: str) -> None:
        self.cut(reason, detail)
        self._transport.abort()

    def cut(self, reason: CloseReason, detail: str) -> None:
        """Stop sending; the transport is, or is about to be, aborted."""
        if self.state in OVER:
            return
        self.step(NEXT[Event.CUT])
        self._reason = reason
        level = logging.WARNING if reason in _OURS else logging.DEBUG
        log.log(level, "closing %s at once: %s: %s", self._peer.address, reason.value, detail)

    def lost(self) -> None:
        self.step(NEXT[Event.LOST])
        if self._throttle is not None:
            self._throttle.cancel()
        self._peer.closed = True
        if self._peer.on_closed is not None:
            self._peer.on_closed()
        self._shared.counters.closes[self._reason] += 1
        self._shared.wheel.disarm(self)

    def check_deadlines(self, tick: int) -> int:
        """See `Timed`."""
        if self.state in OVER:
            return 0
        outbox = self._outbox
        next_tick, late = self.timeouts.overdue(tick, self.state, owes=bool(outbox.answers), taken=outbox.send.progress)
        if late is Overdue.TAKING:
            self.abort(CloseReason.SLOW_READER, "it does not read its responses")
        elif late is Overdue.ANSWER:
            self.abort(self._reason, "its requests in flight were not answered in time")
        elif late is not None:
            self.end(CloseReason.FRAME_DEADLINE if late is Overdue.FRAME else CloseReason.IDLE, "deadline passed")
        return next_tick
