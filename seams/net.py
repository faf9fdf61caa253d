"""The network as a parameter: listening, connecting, and sending a file's bytes without copying them.

Owns sockets. Protocols above see asyncio transports only. Must not know frames or Kafka.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from seams.disk import File

_INT: Final = struct.Struct("i")
_BACKLOG = 4096  # connections the kernel may hold while accepts are paced (max.connection.creation.rate)


class Listener(Protocol):
    """A bound address that is nobody else's, and accepts connections from `accept` until closed."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port really bound (port 0 picks one)."""
        ...

    async def accept(self) -> None:
        """Take connections from now on; until then they are refused. Raises OSError."""
        ...

    async def close(self) -> None:
        """Stop accepting; open connections stay."""
        ...


class SocketBuffers(NamedTuple):
    """Bytes of the kernel's buffers of each connection; -1 leaves the size to the kernel."""

    send: int = -1
    receive: int = -1


class Net(Protocol):
    """Where connections come from, and where they lead to."""

    async def bind(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol], buffers: SocketBuffers
    ) -> Listener:
        """Raises OSError for an address that is taken, or not this machine's."""
        ...

    async def connect(
        self, host: str, port: int, protocol: asyncio.BaseProtocol, timeout_s: float
    ) -> asyncio.Transport:
        """Connect `protocol` to who listens there: the transport that its `connection_made` was given.

        Waits for `timeout_s` at most, over all addresses that the name stands for; then TimeoutError.
        ConnectionRefusedError: nobody listens, at any of them. Any other OSError: no such name, or no way there. After
        an error, or when cancelled, no connection is left open; a protocol that heard of one hears of its loss too.
        """
        ...

    def send_file(self, transport: asyncio.WriteTransport, file: File, position: int, length: int) -> int:
        """Send from the file now, without waiting: bytes sent, 0 where the file ends, -1 when this pair cannot.

        Fewer than `length` also when the socket took no more; BlockingIOError when it takes nothing. Other OSErrors are
        the file's, or, as ConnectionError, the peer's.
        """
        ...

    def when_roomy(self, transport: asyncio.WriteTransport, tell: Callable[[], None]) -> Callable[[], None] | None:
        """Call `tell` on the loop, again and again, while the socket has room for more, though the transport buffers
        nothing. Returns what ends that, to be called before the transport is gone; None where it cannot be waited for.
        """
        ...

    def widen(self, transport: asyncio.WriteTransport, size: int) -> None:
        """Let the kernel keep `size` bytes of what is sent, as far as it lets us (net.core.wmem_max)."""
        ...

    def unacknowledged(self, transport: asyncio.WriteTransport) -> int:
        """Bytes the kernel keeps because the peer has not taken them yet; 0 where nobody knows."""
        ...


class _TcpListener:
    def __init__(self, server: asyncio.Server, address: tuple[str, int]) -> None:
        self._server = server
        self._address = address

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    async def accept(self) -> None:
        await self._server.start_serving()

    async def close(self) -> None:
        self._server.close()


async def _connected(host: str, port: int) -> socket.socket:
    """To the first address of the name that takes it. Asyncio makes one OSError of several failures, which does not
    tell whether all refused. Raises as `Net.connect`."""
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
        for listening in server.sockets:  # what it accepts inherits them
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

    def send_file(self, transport: asyncio.WriteTransport, file: File, position: int, length: int) -> int:
        source = file.descriptor()
        peer: socket.socket | None = transport.get_extra_info("socket")
        if source is None or peer is None or transport.get_extra_info("sslcontext") is not None:
            return -1
        return os.sendfile(peer.fileno(), source, position, length)

    def when_roomy(self, transport: asyncio.WriteTransport, tell: Callable[[], None]) -> Callable[[], None] | None:
        loop = asyncio.get_running_loop()
        try:
            # The transport owns its descriptor in the loop; under another number the socket is ours to watch.
            watched = os.dup(transport.get_extra_info("socket").fileno())
        except OSError:  # no descriptor left
            return None

        def end() -> None:
            loop.remove_writer(watched)
            os.close(watched)

        loop.add_writer(watched, tell)
        return end

    def widen(self, transport: asyncio.WriteTransport, size: int) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    def unacknowledged(self, transport: asyncio.WriteTransport) -> int:
        peer: socket.socket | None = transport.get_extra_info("socket")
        if peer is None or peer.fileno() < 0:
            return 0
        count: int = _INT.unpack(fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, bytes(_INT.size)))[0]
        return count
