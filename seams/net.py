"""The network as a parameter: listening, connecting, and sending a file's bytes without copying them.
Protocols above it use asyncio transports only."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import socket
import struct
import termios
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import msgspec

from seams.files import descriptors
from seams.files.disk import File

_INT: Final = struct.Struct("i")
_BACKLOG = 4096  # connections the kernel may hold while accepts are paced (max.connection.creation.rate)


class Listener(Protocol):
    """A bound address, which accepts connections from `accept` until closed."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that were bound (port 0 picks one)."""
        ...

    async def accept(self) -> None:
        """Accept connections from now on; before that they are refused. Raises OSError."""
        ...

    async def close(self) -> None:
        """Stop accepting; open connections stay."""
        ...


class SocketBuffers(NamedTuple):
    """Bytes of the kernel's buffers of each connection; -1 leaves the size to the kernel."""

    send: int = -1
    receive: int = -1


class Net(Protocol):
    """Incoming and outgoing connections."""

    async def bind(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol], buffers: SocketBuffers
    ) -> Listener:
        """Raises OSError for an address that is taken, or that this machine does not have."""
        ...

    async def connect(
        self, host: str, port: int, protocol: asyncio.BaseProtocol, timeout_s: float
    ) -> asyncio.Transport:
        """Connect `protocol` to the listener at `host` and `port`; returns the transport of its `connection_made`.

        Raises TimeoutError after `timeout_s`, counted over all addresses of the name; ConnectionRefusedError if no
        address has a listener; another OSError for an unknown name or a missing route. After an error or a cancellation
        no connection stays open; a protocol that got `connection_made` also gets `connection_lost`."""
        ...

    async def resolve(self, host: str, timeout_s: float) -> list[str]:
        """The addresses of a host name; an address resolves to itself. Raises OSError (also TimeoutError) if the name
        cannot be resolved."""
        ...

    def send_file(self, transport: asyncio.WriteTransport, file: File, position: int, length: int) -> int:
        """Send from the file now, without waiting. Returns the bytes sent, 0 at the file's end, or -1 if this file
        cannot be sent over this transport.

        The result is also less than `length` if the socket took no more. Raises BlockingIOError if the socket takes no
        bytes now. A ConnectionError comes from the peer, any other OSError from the file.
        """
        ...

    def when_roomy(self, transport: asyncio.WriteTransport, tell: Callable[[], None]) -> Callable[[], None] | None:
        """Call `tell` on the loop repeatedly while the socket has room, even if the transport buffers nothing. Returns
        the function that stops it, to be called before the transport is closed; None if the socket cannot be watched,
        or if this process has too few free descriptors."""
        ...

    def has_room(self, transport: asyncio.BaseTransport, share: float) -> bool:
        """Whether this new connection may be kept, as one of those that may take `share` of the descriptors."""
        ...

    def widen(self, transport: asyncio.WriteTransport, size: int) -> None:
        """Let the kernel buffer `size` bytes of what is sent, up to net.core.wmem_max."""
        ...

    def unacknowledged(self, transport: asyncio.WriteTransport) -> int:
        """Bytes in the kernel that the peer has not taken yet; 0 if unknown."""
        ...

    def has_left(self, transport: asyncio.BaseTransport) -> bool:
        """Whether the peer closed its end. A transport that is not read sees that only when it is read again."""
        ...


class _TcpListener(msgspec.Struct, frozen=True, eq=False):
    server: asyncio.Server
    address: tuple[str, int]

    async def accept(self) -> None:
        await self.server.start_serving()

    async def close(self) -> None:
        self.server.close()


async def _connected(host: str, port: int) -> socket.socket:
    """Connect to the first address of the name that accepts. asyncio itself joins several failures into one OSError,
    which does not show whether all addresses refused. Raises as `Net.connect`.
    """
    loop, failures = asyncio.get_running_loop(), list[OSError]()
    for family, kind, proto, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            connecting = socket.socket(family, kind, proto)
            try:
                connecting.setblocking(False)
                await loop.sock_connect(connecting, address)
            except BaseException:
                connecting.close()
                raise
        except OSError as failure:
            failures.append(failure)
        else:
            return connecting
    raise next((failure for failure in failures if not isinstance(failure, ConnectionRefusedError)), failures[0])


class TcpNet:
    """`Net` over TCP on the running loop."""

    async def bind(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol], buffers: SocketBuffers
    ) -> Listener:
        server = await asyncio.get_running_loop().create_server(
            factory, host, port, backlog=_BACKLOG, start_serving=False
        )
        for listening in server.sockets:  # accepted connections inherit these
            if buffers.send >= 0:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers.send)
            if buffers.receive >= 0:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers.receive)
        bound = server.sockets[0].getsockname()
        return _TcpListener(server, (bound[0], bound[1]))

    async def connect(
        self, host: str, port: int, protocol: asyncio.BaseProtocol, timeout_s: float
    ) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            connected = await _connected(host, port)
            try:
                transport, _ = await loop.create_connection(lambda: protocol, sock=connected)
            except BaseException:
                connected.close()
                raise
        return transport

    async def resolve(self, host: str, timeout_s: float) -> list[str]:
        async with asyncio.timeout(timeout_s):
            try:
                found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except UnicodeError as unreadable:  # not a host name at all
                raise OSError(f"{host!r} is not a host name: {unreadable}") from unreadable
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    def send_file(self, transport: asyncio.WriteTransport, file: File, position: int, length: int) -> int:
        source = file.descriptor()
        peer: socket.socket | None = transport.get_extra_info("socket")
        if source is None or peer is None or transport.get_extra_info("sslcontext") is not None:
            return -1
        return os.sendfile(peer.fileno(), source, position, length)

    def when_roomy(self, transport: asyncio.WriteTransport, tell: Callable[[], None]) -> Callable[[], None] | None:
        loop = asyncio.get_running_loop()
        try:
            # The loop reserves the transport's descriptor for the transport, so a duplicate is watched here.
            watched = os.dup(transport.get_extra_info("socket").fileno())
        except OSError:  # no descriptor left
            return None
        if not descriptors.has_room(watched, descriptors.CONNECTIONS):
            os.close(watched)
            return None

        def end() -> None:
            loop.remove_writer(watched)
            os.close(watched)

        loop.add_writer(watched, tell)
        return end

    def has_room(self, transport: asyncio.BaseTransport, share: float) -> bool:
        peer: socket.socket | None = transport.get_extra_info("socket")
        return peer is None or descriptors.has_room(peer.fileno(), share)

    def widen(self, transport: asyncio.WriteTransport, size: int) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    def unacknowledged(self, transport: asyncio.WriteTransport) -> int:
        peer: socket.socket | None = transport.get_extra_info("socket")
        if peer is None or peer.fileno() < 0:
            return 0
        count: int = _INT.unpack(fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, bytes(_INT.size)))[0]
        return count

    def has_left(self, transport: asyncio.BaseTransport) -> bool:
        peer: socket.socket | None = transport.get_extra_info("socket")
        if peer is None or peer.fileno() < 0:
            return transport.is_closing()
        poll = select.poll()
        poll.register(peer.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))
