"""Server's side of one TLS session: the client's principal, and the steps and deadline of the handshake.

`ServerTls` is the interface to certificates; `broker.security.tls` implements it.
"""

from __future__ import annotations

import logging
import ssl
from typing import Protocol

from broker.net.connection import Connection
from broker.net.connection_state import State
from broker.net.dispatch import CloseReason
from broker.net.shared import Shared
from broker.net.tls.handshakes import Handshakes
from broker.net.tls.layer import TlsLayer
from broker.net.tls.machine import TlsFailed, TlsMachine

log = logging.getLogger(__name__)


class PeerRefused(ValueError):
    """A client that completed its handshake may not go on."""


class ServerTls(Protocol):
    """The TLS contexts and principal mapping of a listener."""

    def context(self) -> ssl.SSLContext:
        """The current context; a started session keeps its context."""
        ...

    def principal(self, certificate: bytes | None, suite: str) -> str:
        """The principal of a client with this verified certificate (DER), or of a client without a certificate. Raises
        PeerRefused."""
        ...


class ServerSession:
    """Events of one accepted session. It is in the deadline wheel until its handshake ends."""

    __slots__ = ("_connection", "_handshakes", "_layer", "_shared", "_tls", "armed_tick")

    def __init__(self, connection: Connection, shared: Shared, tls: ServerTls, handshakes: Handshakes) -> None:
        self._connection = connection
        self._shared = shared
        self._tls = tls
        self._handshakes = handshakes
        self.armed_tick = 0  # set by the deadline wheel only
        self._layer = TlsLayer(connection, self, tls.context, is_server=True)

    @property
    def protocol(self) -> TlsLayer:
        """The protocol that the transport drives."""
        return self._layer

    @property
    def address(self) -> str:
        """The peer's host without the port, for the order of handshakes."""
        return self._connection.peer.host

    # -- of the layer

    def began(self) -> None:
        shared = self._shared
        shared.wheel.arm(self, shared.wheel.tick + shared.ticks.handshake)

    def ask_step(self) -> None:
        self._handshakes.ask(self)

    def complete(self, machine: TlsMachine) -> None:
        self._over()
        counters, peer = self._shared.counters, self._connection.peer
        try:
            peer.principal = self._tls.principal(machine.peer_certificate, machine.suite)
        except PeerRefused as refused:
            raise TlsFailed(str(refused)) from refused
        counters.tls_handshakes += 1
        counters.tls_resumed += machine.is_resumed

    def failed(self, reason: CloseReason, detail: str) -> None:
        self._over()
        if reason is CloseReason.TLS_PLAINTEXT:  # logged at most ten times a minute
            peer = self._connection.peer
            log.warning("%s speaks plaintext to listener %s, which is TLS: %s", peer.address, peer.listener, detail)
        self._connection.refused(reason, detail)

    def lost(self, exc: Exception | None) -> None:
        self._over()

    def _over(self) -> None:
        """The handshake is over."""
        self._shared.wheel.disarm(self)
        self._handshakes.leave(self)

    # -- of `Handshakes`

    def step(self) -> None:
        self._layer.step()

    def stepped(self, failure: BaseException | None) -> None:
        self._layer.stepped(failure)

    def give_way(self) -> None:
        self._end("too many handshakes of its address are under way")

    # -- of the wheel

    def check_deadlines(self, tick: int) -> int:
        """See `Timed`. A connection that is not admitted yet is not read, so its handshake time does not run."""
        if self._connection.state is State.WAITING:
            return tick + self._shared.ticks.handshake
        self._end("the handshake was not completed in time")
        return 0

    def _end(self, detail: str) -> None:
        self._connection.refused(CloseReason.TLS_DEADLINE, detail)
        self._layer.abort()
