"""One end of a simulated connection: latency, split reads, a bounded pipe, and disconnects at any moment.

Always true: bytes of one direction arrive in order and once, or the connection is lost; a callback runs in the process
of the protocol it belongs to, so a dead or paused process hears nothing; a pipe holds at most `WINDOW` bytes that its
reader has not taken. What crosses a cut link waits there (links): a connection stalls, and learns of its other end's
death when the link is healed. Must not know listeners, nor why something is cut.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, Protocol

from seams.rng import SeededRng
from tests.sim.world.late import Late
from tests.sim.world.links import CLIENTS, Links, place_of
from tests.sim.world.loop import PROCESS

WINDOW = 64 << 10
LATENCY_S = (0.0001, 0.003)

Address = tuple[str, int]


class Between(Protocol):
    """What a transport needs of its net."""

    loop: asyncio.AbstractEventLoop
    rng: SeededRng
    hits: Counter[str]
    links: Links
    late: Late | None
    open: dict[SimTransport, None]

    def unheard(self, sender: SimTransport) -> None: ...
    def forget(self, transport: SimTransport) -> None: ...


class SimTransport(asyncio.Transport):
    """One end of a connection; `answers`: the one that was connected to."""

    def __init__(
        self, net: Between, protocol: Any, context: Context, peername: Address, *, answers: bool = False
    ) -> None:
        super().__init__()
        self._answers = answers
        self._net = net
        self._loop = net.loop
        self.protocol = protocol
        self.context = context
        self.place = place_of(context)
        self._peername = peername
        self.other: SimTransport
        self._unread = bytearray()  # arrived, not taken by the protocol
        self._in_flight = 0  # sent by us, not taken by the other side
        self._buffer = bytearray()  # written, no room in the pipe yet
        self._arrives_at = 0.0
        self._reading = True
        self._closing = False
        self._lost = False
        self._high = WINDOW
        self._write_paused = False
        self._watcher: Callable[[], None] | None = None  # is told when there is room

    # --- what protocols call ---
    def write(self, data: Any) -> None:
        if self._closing or self._lost:
            return
        self._buffer += data
        self._push()
        if len(self._buffer) > self._high and not self._write_paused:
            self._write_paused = True
            self.protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = WINDOW if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._feed, context=self.context)

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self
        return self._peername if name == "peername" else default

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._buffer:
                self._hang_up()

    def abort(self) -> None:
        self._closing = True
        self._buffer.clear()
        self._hang_up()

    # --- what `SimNet` calls ---
    @property
    def silent(self) -> bool:
        """Its power went, with all that its kernel would send, or send again; nobody says so."""
        process = self.context.get(PROCESS)
        return process is not None and process.unplugged

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def watch(self, tell: Callable[[], None]) -> Callable[[], None]:
        assert self._watcher is None, "watched already"
        self._watcher = tell
        self._loop.call_soon(self._tell_room, context=self.context)

        def end() -> None:
            assert self._watcher is tell, "ended before"
            self._watcher = None

        return end

    def _tell_room(self) -> None:
        if self._watcher is not None and self.room() > 0:
            self._watcher()

    # --- the pipe ---
    def room(self) -> int:
        return 0 if self._buffer or self.is_closing() else WINDOW - self._in_flight

    def send_now(self, data: bytes) -> None:
        self._buffer += data
        self._push()

    def _push(self) -> None:
        """Give the pipe what it has room for, in pieces that arrive in order."""
        rng = self._net.rng
        while self._buffer and self._in_flight < WINDOW:
            count = min(len(self._buffer), WINDOW - self._in_flight)
            if count > 1 and rng.randrange(16) == 0:
                count = 1 + rng.randrange(min(count, 64)) if rng.randrange(2) else 1
                self._net.hits["split"] += 1
            piece = bytes(self._buffer[:count])
            del self._buffer[:count]
            self._in_flight += count
            self._arrives_at = max(self._arrives_at, self._loop.time() + self._latency_s() + self._late_s())
            self._loop.call_at(
                self._arrives_at, self.other._cross, self.other._arrived, piece, context=self.other.context
            )
            if self.other.silent:
                self._net.unheard(self)
        if not self._buffer and self._closing:
            self._hang_up()

    def _latency_s(self) -> float:
        """Of what we send now."""
        return self._net.rng.uniform(*LATENCY_S) + self._net.links.delay_s(self.place, self.other.place)

    def _late_s(self) -> float:
        """Of an answer to another broker; clients' are in time."""
        late = self._net.late
        if late is None or not self._answers or CLIENTS in (self.place, self.other.place):
            return 0.0
        return late.answered_s()

    def _cross(self, arrive: Callable[..., None], *args: Any) -> None:
        """Something of the other side comes in, now or when its link is healed; who lost power sends nothing again."""
        if self.other.silent:
            return
        links, there, here = self._net.links, self.other.place, self.place
        if links.up(there, here) or links.passes(there, here, partial(self._cross, arrive, *args), self.context):
            arrive(*args)

    def _arrived(self, piece: bytes) -> None:
        if not self._lost:
            self._unread += piece
            self._feed()

    def _feed(self) -> None:
        taken = 0
        while self._unread and self._reading and not self._lost and not self._closing:
            buffer = self.protocol.get_buffer(-1)
            count = min(len(buffer), len(self._unread))
            buffer[:count] = self._unread[:count]
            del self._unread[:count]
            taken += count
            del buffer
            self.protocol.buffer_updated(count)
        if taken:
            self._loop.call_later(
                self._latency_s(), self.other._cross, self.other._acked, taken, context=self.other.context
            )

    def _acked(self, count: int) -> None:
        self._in_flight -= count
        if self._lost:
            return
        self._push()
        if not self._buffer and self._write_paused:
            self._write_paused = False
            self.protocol.resume_writing()
        self._tell_room()

    def _hang_up(self) -> None:
        """Our side is done: we hear of it now, the other side after what is under way."""
        self.lose(None)
        when = max(self._arrives_at, self._loop.time()) + self._latency_s()
        self._loop.call_at(when, self.other._cross, self.other.lose, None, context=self.other.context)

    def lose(self, failure: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._net.open.pop(self, None)
            self._loop.call_soon(self.protocol.connection_lost, failure, context=self.context)

    def reset(self) -> None:
        """The other side's kernel knows nothing of this connection."""
        if self.protocol is None:
            self._net.forget(self)  # `_accept` tells
        else:
            self.lose(ConnectionResetError(104, "reset"))
