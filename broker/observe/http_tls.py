"""TLS of the HTTP port: `broker.net.tls_layer` beneath aiohttp's protocol.

Connections are bounded in number, and each handshake in time, so that a port which others reach costs little. Asyncio's
own TLS would hold 256 KiB a connection from its first byte on.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final

from broker.net.dispatch import CloseReason
from broker.net.tls_layer import TlsLayer
from broker.net.tls_machine import TlsMachine

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 256
_HANDSHAKE_S: Final = 10.0
_room = memoryview(bytearray(64 << 10))


class HttpsConnections:
    """Makes the protocol of each connection. `http` makes aiohttp's, `context` gives the present TLS context."""

    def __init__(self, http: Callable[[], asyncio.Protocol], context: Callable[[], ssl.SSLContext]) -> None:
        self._http = http
        self._context = context
        self._open: dict[_Session, None] = {}

    def __call__(self) -> TlsLayer:
        return _Session(self._http(), self._context, self._open).protocol


class _Buffered(asyncio.BufferedProtocol):
    """A streaming protocol, as a buffered one."""

    def __init__(self, inner: asyncio.Protocol) -> None:
        self._inner = inner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _room

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes:
            self._inner.data_received(bytes(_room[:nbytes]))

    def eof_received(self) -> None:
        self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)


class _Session:
    """Events of one session."""

    def __init__(
        self, inner: asyncio.Protocol, context: Callable[[], ssl.SSLContext], open_: dict[_Session, None]
    ) -> None:
        self._open = open_
        self._deadline: asyncio.TimerHandle | None = None
        self.protocol = TlsLayer(_Buffered(inner), self, context, is_server=True)

    def began(self) -> None:
        if len(self._open) >= CONNECTIONS_MAX:
            self.protocol.abort()
            return
        self._open[self] = None
        self._deadline = asyncio.get_running_loop().call_later(_HANDSHAKE_S, self.protocol.abort)

    def ask_step(self) -> None:
        """On the loop, in a turn of its own: there are few."""
        asyncio.get_running_loop().call_soon(self.protocol.step_now)

    def complete(self, machine: TlsMachine) -> None:
        self._over()

    def failed(self, reason: CloseReason, detail: str) -> None:
        log.debug("closing a connection to the HTTP port: %s: %s", reason.value, detail)

    def lost(self, exc: Exception | None) -> None:
        self._over()
        self._open.pop(self, None)

    def _over(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
