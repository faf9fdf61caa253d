"""The server's side of TLS on one listener: whom a connection belongs to, and until when its handshake must be over.

The door to certificates is `ServerTls`; `broker.security.tls` is behind it.
"""

from __future__ import annotations

import ssl
from typing import Protocol

from broker.net.connection import Connection
from broker.net.connection_state import State
from broker.net.dispatch import CloseReason
from broker.net.shared import Shared
from broker.net.tls_layer import TlsLayer
from broker.net.tls_machine import TlsMachine

ANONYMOUS = "User:ANONYMOUS"


class ServerTls(Protocol):
    """What a listener needs of its certificates."""

    def context(self) -> ssl.SSLContext:
        """The present one; sessions that began keep theirs."""
        ...

    def principal(self, certificate: bytes) -> str:
        """Of a client with this verified certificate (DER)."""
        ...


class ServerSession:
    """Events of one accepted session. Until its handshake is over it lies in the wheel."""

    __slots__ = ("_connection", "_layer", "_shared", "_tls", "armed_tick")

    def __init__(self, connection: Connection, shared: Shared, tls: ServerTls) -> None:
        self._connection = connection
        self._shared = shared
        self._tls = tls
        self.armed_tick = 0  # the wheel's
        self._layer = TlsLayer(connection, self, tls.context, is_server=True)

    @property
    def protocol(self) -> TlsLayer:
        """For the transport."""
        return self._layer

    def began(self) -> None:
        shared = self._shared
        shared.wheel.arm(self, shared.wheel.tick + shared.ticks.handshake)

    def established(self, machine: TlsMachine) -> None:
        shared, peer = self._shared, self._connection.peer
        shared.wheel.disarm(self)
        shared.counters.tls_handshakes += 1
        shared.counters.tls_resumed += machine.is_resumed
        certificate = machine.peer_certificate
        peer.encrypted = True
        peer.principal = ANONYMOUS if certificate is None else self._tls.principal(certificate)

    def failed(self, reason: CloseReason, detail: str) -> None:
        self._shared.wheel.disarm(self)
        self._connection.refused(reason, detail)

    def lost(self, exc: Exception | None) -> None:
        self._shared.wheel.disarm(self)

    def check_deadlines(self, tick: int) -> int:
        """See `Timed`. A connection that was not admitted yet was not read."""
        if self._connection.state is State.WAITING:
            return tick + self._shared.ticks.handshake
        self._connection.refused(CloseReason.TLS_DEADLINE, "the handshake was not completed in time")
        self._layer.abort()
        return 0
