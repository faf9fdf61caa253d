"""Logs a broker in on each new connection to another broker, if the brokers' listener uses SASL (S7).

A new connection replaces one whose session is about to end. The old connection gets no more requests and is closed
after its last response. SCRAM's hashes run once, in a worker: salt and iterations rarely change.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.config.network.sasl import Login, TokenLogin
from broker.peers.stream import PeerStream
from broker.security.sasl.client_login import (
    AUTHENTICATE_VERSION,
    HANDSHAKE_VERSION,
    BearerLogin,
    ClientLogin,
    SaltedPasswords,
    check_answer,
    check_handshake,
)
from broker.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from seams.files.disk import Disk, read_file
from seams.loop.workers import Lane, Workers
from seams.rng import Rng
from seams.world import World

_RENEWED_AT: Final = 0.85  # share of a session after which a new login begins; Kafka's clients take 0.85 to 0.95
_TOKEN_BYTES_MAX: Final = 64 << 10


class LinkLogin:
    """The login of one broker, shared by all its links."""

    def __init__(self, login: Login, workers: Workers, rng: Rng, disk: Disk) -> None:
        self._login = login
        self._workers = workers
        self._rng = rng
        self._disk = disk
        self._salted = SaltedPasswords()

    async def log_in(self, stream: PeerStream) -> float | None:
        """Log in on a new connection. Returns the loop's time at which the connection has to be replaced; None if it
        need not be. Raises LoginFailed and the errors of `PeerStream.ask`."""
        login = self._new_login()
        handshake = await stream.ask(SaslHandshakeRequest(login.mechanism), HANDSHAKE_VERSION)
        assert isinstance(handshake, SaslHandshakeResponse)
        check_handshake(login.mechanism, handshake)
        token: bytes | None = await self._workers.run(login.first_token, lane=Lane.LOGIN)
        lifetime_ms = 0
        while token is not None:
            answer = await stream.ask(SaslAuthenticateRequest(token), AUTHENTICATE_VERSION)
            assert isinstance(answer, SaslAuthenticateResponse)
            lifetime_ms = answer.session_lifetime_ms
            theirs = check_answer(login.mechanism, answer)
            token = await self._workers.run(login.next_token, theirs, lane=Lane.LOGIN)
        if lifetime_ms <= 0:
            return None
        return asyncio.get_running_loop().time() + lifetime_ms / 1000 * _RENEWED_AT

    def _new_login(self) -> ClientLogin | BearerLogin:
        if isinstance(self._login, TokenLogin):
            return BearerLogin(self._read_token)
        return ClientLogin(self._login, self._rng.uuid().hex + self._rng.uuid().hex, self._salted)

    def _read_token(self) -> str:
        assert isinstance(self._login, TokenLogin)
        return read_file(self._disk, self._login.token_file)[:_TOKEN_BYTES_MAX].decode()


def link_login(config: BrokerConfig, world: World) -> LinkLogin | None:
    """The login of this broker; None if the brokers' listener does not speak SASL."""
    login = config.brokers_login
    return None if login is None else LinkLogin(login, world.workers, world.rng, world.disk)
