"""The network as a parameter: listening, connecting, and sending a file's bytes without copying them.

Owns sockets. Protocols above see asyncio transports only. Must not know frames or Kafka.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import NamedTuple, Protocol

from seams.disk import File

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
        ConnectionRefusedError: nobody listens. Any other OSError: no such name, or no way there. After an error, or
        when cancelled, no connection is left open; a protocol that heard of one hears of its loss too.
        """
        ...

    def send_file(self, transport: asyncio.WriteTransport, file: File, position: int, length: int) -> int:
        """Send from the file now, without waiting: bytes sent, 0 when the socket is full, -1 when this pair cannot."""
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
        async with asyncio.timeout(timeout_s):
            transport, _ = await asyncio.get_running_loop().create_connection(lambda: protocol, host, port)
        return transport

    def send_file(self, transport: asyncio.WriteTransport, file: File, position: int, length: int) -> int:
        source = file.descriptor()
        peer: socket.socket | None = transport.get_extra_info("socket")
        if source is None or peer is None or transport.get_extra_info("sslcontext") is not None:
            return -1
        try:
            return os.sendfile(peer.fileno(), source, position, length)
        except BlockingIOError:
            return 0
