"""Connections of the HTTP port: limits their number, and adds TLS by `broker.net.tls.layer` below aiohttp's protocol.

The number of connections and the time of each handshake are bounded. If the port is full, or the process has few free
descriptors, a new connection replaces another connection: the longest silent connection of the address with the most
connections. Idle connections thus cannot block a liveness probe, whose failure would restart the broker. asyncio's own
TLS is not used, because asyncio's TLS would hold 256 KiB per connection from the first byte on.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from broker.net.dispatch import CloseReason
from broker.net.tls.handshakes import Handshakes
from broker.net.tls.layer import TlsLayer
from broker.net.tls.machine import TlsMachine
from seams.files import descriptors
from seams.net import TcpNet

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 256
_HANDSHAKE_S: Final = 10.0
_room = memoryview(bytearray(64 << 10))


class HttpConnections:
    """Makes the protocol of each connection. `http` makes the protocol of aiohttp, `context` gives the present TLS
    context; None: the port speaks plaintext. `handshakes` runs the steps of TLS.
    """

    def __init__(
        self,
        http: Callable[[], asyncio.Protocol],
        context: Callable[[], ssl.SSLContext] | None,
        handshakes: Handshakes,
    ) -> None:
        self._http = http
        self._context = context
        self._handshakes = handshakes
        self._open = _Open()

    def __call__(self) -> asyncio.BaseProtocol:
        inner = _Buffered(self._http(), self._open)
        return inner if self._context is None else _Session(inner, self._context, self._handshakes).protocol


class _Aborted(Protocol):
    def abort(self) -> None: ...


class _Open:
    """The open connections; the longest silent connection is first."""

    def __init__(self) -> None:
        self._hosts: dict[_Aborted, str] = {}

    def add(self, connection: _Aborted, host: str, *, has_room: bool) -> None:
        if self._hosts and (len(self._hosts) >= CONNECTIONS_MAX or not has_room):
            ((crowd, _),) = Counter(self._hosts.values()).most_common(1)
            longest = next(one for one, its_host in self._hosts.items() if its_host == crowd)
            del self._hosts[longest]
            log.debug("closing a connection of %s to the HTTP port: it is full", crowd)
            longest.abort()
        self._hosts[connection] = host

    def heard(self, connection: _Aborted) -> None:
        if (host := self._hosts.pop(connection, None)) is not None:
            self._hosts[connection] = host

    def remove(self, connection: _Aborted) -> None:
        self._hosts.pop(connection, None)


class _Buffered(asyncio.BufferedProtocol):
    """Adapts a streaming protocol to the interface of a buffered protocol. The connection is counted from its
    beginning, before a handshake.
    """

    def __init__(self, inner: asyncio.Protocol, open_: _Open) -> None:
        self._inner = inner
        self._open = open_
        self._transport: asyncio.BaseTransport | None = None
        self.host = ""

    def abort(self) -> None:
        assert isinstance(self._transport, asyncio.WriteTransport)
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        address = transport.get_extra_info("peername")
        self.host = str(address[0]) if address else ""
        self._open.add(self, self.host, has_room=TcpNet().has_room(transport, descriptors.CONNECTIONS))
        self._inner.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _room

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes:
            self._open.heard(self)
            self._inner.data_received(bytes(_room[:nbytes]))

    def eof_received(self) -> None:
        self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.remove(self)
        self._inner.connection_lost(exc)


class _Session:
    """Events of one session of TLS."""

    def __init__(self, inner: _Buffered, context: Callable[[], ssl.SSLContext], handshakes: Handshakes) -> None:
        self._deadline: asyncio.TimerHandle | None = None
        self._inner = inner
        self._handshakes = handshakes
        self.protocol = TlsLayer(inner, self, context, is_server=True)

    def began(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(_HANDSHAKE_S, self.protocol.abort)

    def ask_step(self) -> None:
        self._handshakes.ask(self)

    def complete(self, machine: TlsMachine) -> None:
        self._over()

    def failed(self, reason: CloseReason, detail: str) -> None:
        log.debug("closing a connection to the HTTP port: %s: %s", reason.value, detail)

    def lost(self, exc: Exception | None) -> None:
        self._over()

    def _over(self) -> None:
        self._handshakes.leave(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # -- of `Handshakes`

    @property
    def address(self) -> str:
        return self._inner.host

    def step(self) -> None:
        self.protocol.step()

    def stepped(self, failure: BaseException | None) -> None:
        self.protocol.stepped(failure)

    def give_way(self) -> None:
        self.protocol.abort()
