"""`Net` in memory: connections with latency, split reads, a bounded pipe, and disconnects at any moment.

Owns transports and listeners. Always true: bytes of one direction arrive in order and once, or the connection is lost;
a callback runs in the process of the protocol it belongs to, so a dead or paused process hears nothing; a pipe holds
at most `WINDOW` bytes that its reader has not taken. What crosses a cut link waits there (links): a connection stalls,
and learns of its other end's death when the link is healed. Whose power went says nothing: the other ends hear of it
when they send something and a kernel runs there again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from seams.disk import File
from seams.net import SocketBuffers
from seams.rng import SeededRng
from tests.sim.links import Links, place_of
from tests.sim.loop import PROCESS, Process

WINDOW = 64 << 10
LATENCY_S = (0.0001, 0.003)

Address = tuple[str, int]


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, net: SimNet, protocol: Any, context: Context, peername: Address) -> None:
        super().__init__()
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
            self._arrives_at = max(self._arrives_at, self._loop.time() + self._latency_s())
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

    def _cross(self, arrive: Callable[..., None], *args: Any) -> None:
        """Something of the other side comes in, now or when its link is healed; who lost power sends nothing again."""
        if self.other.silent:
            return
        again = partial(self._cross, arrive, *args)
        if self._net.links.passes(self.other.place, self.place, again, self.context):
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
            self._net._forget(self)  # `_accept` tells
        else:
            self.lose(ConnectionResetError(104, "reset"))


class SimListener:
    """A bound address of one process."""

    def __init__(self, net: SimNet, address: Address, factory: Callable[[], Any], context: Context) -> None:
        self.net, self._address, self.factory, self.context = net, address, factory, context
        self.accepts = False

    @property
    def address(self) -> Address:
        return self._address

    @property
    def process(self) -> Process | None:
        return self.context.get(PROCESS)

    async def accept(self) -> None:
        self.accepts = True

    async def close(self) -> None:
        if self.net.listeners.get(self._address) is self:
            del self.net.listeners[self._address]


class SimNet:
    """The network of one run. `hits` counts what took effect; `places` says where an address is, also while nobody
    listens there; `dark` are places without power."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: SeededRng) -> None:
        self.loop = loop
        self.rng = rng
        self.hits: Counter[str] = Counter()
        self.links = Links(loop)
        self.links.hits = self.hits
        self.places: dict[Address, str] = {}
        self.dark: set[str] = set()
        self._unheard: list[SimTransport] = []  # they sent to the dark, and will be told when power is back
        self.listeners: dict[Address, SimListener] = {}
        self.open: dict[SimTransport, None] = {}
        self._ports = 50_000

    async def bind(self, host: str, port: int, factory: Callable[[], Any], buffers: SocketBuffers) -> SimListener:
        if port == 0:
            self._ports += 1
        address = (host or "0.0.0.0", port or self._ports)
        if address in self.listeners:
            raise OSError(98, f"address already in use: {address}")
        listener = SimListener(self, address, factory, copy_context())
        self.listeners[address] = listener
        self.places[address] = place_of(listener.context)
        return listener

    def send_file(self, transport: asyncio.WriteTransport, file: File, position: int, length: int) -> int:
        assert isinstance(transport, SimTransport)
        count = min(transport.room(), length)
        if count <= 0:
            raise BlockingIOError(11, "full")
        if self.rng.randrange(4) == 0:
            return -1  # as under TLS
        data = file.read_at(position, count)
        transport.send_now(data)
        return len(data)

    def when_roomy(self, transport: asyncio.WriteTransport, tell: Callable[[], None]) -> Callable[[], None] | None:
        assert isinstance(transport, SimTransport)
        return None if self.rng.randrange(4) == 0 else transport.watch(tell)  # as without descriptors

    def widen(self, transport: asyncio.WriteTransport, size: int) -> None:
        """A window is what it is."""

    def unacknowledged(self, transport: asyncio.WriteTransport) -> int:
        assert isinstance(transport, SimTransport)
        return transport.in_flight

    async def connect(self, host: str, port: int, protocol: Any, timeout_s: float) -> SimTransport:
        """See `seams.net.Net`. A paused process accepts (its kernel does), a dead one refuses; a place without power or
        behind a cut link, either way, does not answer."""
        address = (host, port)
        here, there = place_of(copy_context()), self.places.get(address, "")
        async with asyncio.timeout(timeout_s):
            delay_s = self.links.delay_s(here, there) + self.links.delay_s(there, here)
            await asyncio.sleep(self.rng.uniform(*LATENCY_S) + delay_s)
            await self.links.until_up((here, there), (there, here))
            while there in self.dark:
                self.hits["waited"] += 1
                await self.links.change()
                await self.links.until_up((here, there), (there, here))
        listener = self.listeners.get(address)
        if listener is None or not listener.accepts or (listener.process is not None and listener.process.dead):
            raise ConnectionRefusedError(111, f"connection refused: {address}")
        self._ports += 1
        server = SimTransport(self, None, listener.context, ("127.0.0.1", self._ports))
        client = SimTransport(self, protocol, copy_context(), address)
        server.other, client.other = client, server
        self.open[client] = self.open[server] = None
        self.loop.call_soon(self._accept, listener, server, context=listener.context)
        protocol.connection_made(client)
        return client

    def _accept(self, listener: SimListener, server: SimTransport) -> None:
        server.protocol = listener.factory()
        server.protocol.connection_made(server)
        if server._lost:  # gone before anybody looked
            server.protocol.connection_lost(ConnectionResetError(104, "reset"))

    def drop_process(self, process: Process) -> None:
        """Its kernel closes everything the process had open, and tells the other ends; one without power does not."""
        process.unplugged = process.place in self.dark
        for address, listener in list(self.listeners.items()):
            if listener.process is process:
                del self.listeners[address]
        for transport in list(self.open):
            if transport.context.get(PROCESS) is not process:
                continue
            other = transport.other
            if process.unplugged:
                self._forget(transport)
            elif self.links.passes(transport.place, other.place, other.reset, other.context):
                self.cut(transport)
            else:
                self._forget(transport)

    def _forget(self, transport: SimTransport) -> None:
        transport._lost = transport._closing = True
        self.open.pop(transport, None)

    def unheard(self, sender: SimTransport) -> None:
        """It sent to an end whose power went: a kernel that runs there again answers with a reset."""
        there = sender.other.place
        if there in self.dark:
            self._unheard.append(sender)
        else:
            self.loop.call_later(self.rng.uniform(*LATENCY_S), self._tell, sender, context=sender.context)

    def _tell(self, sender: SimTransport) -> None:
        """Of the reset, now or when the link is healed."""
        links, again = self.links, partial(self._tell, sender)
        if links.passes(sender.other.place, sender.place, again, sender.context):
            sender.reset()

    def power_on(self, place: str) -> None:
        """A kernel runs there again."""
        if place in self.dark:
            self.dark.discard(place)
            waiting, self._unheard = self._unheard, []
            for sender in waiting:
                self.unheard(sender)
            self.links.tell()

    def cut(self, transport: SimTransport) -> None:
        """A connection breaks: bytes under way to either side may be lost."""
        for end in (transport, transport.other):
            end._lost = end._closing = True
            self.open.pop(end, None)
            if end.protocol is not None:
                self.loop.call_later(
                    self.rng.uniform(*LATENCY_S),
                    end.protocol.connection_lost,
                    ConnectionResetError(104, "reset"),
                    context=end.context,
                )
