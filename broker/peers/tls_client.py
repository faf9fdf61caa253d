"""TLS to another broker: verifies its certificate and name, and presents this broker's own."""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol

from broker.net.dispatch import CloseReason
from broker.net.tls.layer import TlsLayer
from broker.net.tls.machine import TlsMachine
from broker.peers.stream import PeerStream


class ClientTls(Protocol):
    """The TLS context for connections to other brokers."""

    def client_context(self) -> ssl.SSLContext:
        """The current context."""
        ...


class ClientSession:
    """One TLS session to the broker at `host`. `who`: the broker's name in errors."""

    def __init__(self, stream: PeerStream, tls: ClientTls, host: str, who: str) -> None:
        self._stream = stream
        self._who = who
        self._established: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.protocol = TlsLayer(stream, self, tls.client_context, is_server=False, server_name=host)

    async def established(self) -> None:
        """Wait for the end of the handshake. Raises ConnectionError. A cancelled wait aborts the connection."""
        try:
            await self._established
        except asyncio.CancelledError:
            self.protocol.abort()
            raise

    def began(self) -> None: ...

    def ask_step(self) -> None:
        """Run a step of the handshake on the loop, because brokers make few connections."""
        self.protocol.step_now()

    def complete(self, machine: TlsMachine) -> None:
        if not self._established.done():
            self._established.set_result(None)

    def failed(self, reason: CloseReason, detail: str) -> None:
        if self._established.done():
            self._stream.end(f"TLS: {detail}")
        else:
            self._fail(f"{detail}; check ssl.truststore and certificates of both brokers")

    def lost(self, exc: Exception | None) -> None:
        if not self._established.done():
            self._fail("it closed the connection during the handshake" if exc is None else str(exc))

    def _fail(self, why: str) -> None:
        self._established.set_exception(ConnectionError(f"{self._who}: no TLS session; nothing was sent: {why}"))
        self._established.exception()  # retrieved here, because no caller may wait for it
