"""`Net` in memory: who listens where, who reaches whom, and what the end of a process or a machine says to others.

Owns listeners and open connections (`transport`). Always true: a kernel closes what its process had open and tells the
other ends; whose power went says nothing: they hear of it when they send something and a kernel runs there again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from seams.files.disk import File
from seams.net import SocketBuffers
from seams.rng import SeededRng
from tests.sim.world.late import Late
from tests.sim.world.links import Links, place_of
from tests.sim.world.loop import PROCESS, Process
from tests.sim.world.transport import LATENCY_S, Address, SimTransport


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
    listens there; `dark` are places without power; `late`: which answers between brokers are late, if any."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: SeededRng) -> None:
        self.loop = loop
        self.rng = rng
        self.hits: Counter[str] = Counter()
        self.links = Links(loop)
        self.links.hits = self.hits
        self.places: dict[Address, str] = {}
        self.dark: set[str] = set()
        self.late: Late | None = None
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
        if transport.get_extra_info("sslcontext") is not None:
            return -1
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

    def has_room(self, transport: asyncio.BaseTransport, share: float) -> bool:
        return True

    def widen(self, transport: asyncio.WriteTransport, size: int) -> None:
        """A window is what it is."""

    def has_left(self, transport: asyncio.BaseTransport) -> bool:
        return transport.is_closing()

    def unacknowledged(self, transport: asyncio.WriteTransport) -> int:
        end = transport.get_extra_info("socket")
        assert isinstance(end, SimTransport)
        return end.in_flight

    async def resolve(self, host: str, timeout_s: float) -> list[str]:
        raise OSError(f"nobody knows {host}")

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
        server = SimTransport(self, None, listener.context, ("127.0.0.1", self._ports), answers=True)
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
                self.forget(transport)
            elif self.links.passes(transport.place, other.place, other.reset, other.context):
                self.cut(transport)
            else:
                self.forget(transport)

    def forget(self, transport: SimTransport) -> None:
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
