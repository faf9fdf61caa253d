"""Brokers log in to one another: before the first request, once for all that wait, anew before the session ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.config.network.sasl import Login, PasswordLogin, TokenLogin
from broker.error_codes import ErrorCode
from broker.metadata.records import ScramCredential
from broker.net.buffers import BufferPool
from broker.peers.connection import PeerConnection
from broker.peers.link_login import LinkLogin
from broker.security.sasl.credentials import credential
from broker.security.sasl.mechanism import Authenticated, LoginRefused
from broker.security.sasl.scram_server import ScramServer
from broker.security_protocol import PLAIN, SCRAM_SHA_512
from broker.wire.apis import ApiKey
from broker.wire.framing import RequestHeader
from broker.wire.messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from seams.rng import SeededRng
from tests.sim.world.net import SimNet
from tests.support.disk.crash_disk import CrashDisk
from tests.support.net.scripted_broker import ScriptedBroker, Told

LOGIN = PasswordLogin(SCRAM_SHA_512, "broker", "hunter2")
USER = credential(LOGIN, b"salt of the user")


class AtOnce:
    """Workers without a thread; `ran` are the functions."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def run(self, function: Any, *arguments: Any, lane: Any = None) -> Any:
        self.ran.append(f"{lane.name}: {function.__name__}")
        await asyncio.sleep(0.001)
        return function(*arguments)


class Trial:
    """A link to a broker that lets `USER` in by SCRAM, or by any token of PLAIN and OAUTHBEARER."""

    def __init__(self, login: Login = LOGIN, lifetime_ms: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self.net = SimNet(loop, SeededRng("login"))  # type: ignore[arg-type]
        self.broker = ScriptedBroker(self.net, self._rule)
        self.lifetime_ms = lifetime_ms
        self.servers: dict[Told, ScramServer] = {}
        self.tokens: list[bytes] = []
        self.is_silent = False
        self.workers = AtOnce()
        self.disk = CrashDisk()
        link = LinkLogin(login, self.workers, SeededRng("nonces"), self.disk)  # type: ignore[arg-type]
        self.link = PeerConnection(self.net, self.broker.address, "me", BufferPool(), 1 << 20, login=link)  # type: ignore[arg-type]

    def _rule(self, told: Told, header: RequestHeader, request: Any) -> None:
        if self.is_silent:
            return
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            is_scram = request.mechanism == SCRAM_SHA_512

            def find(user: str, _: str) -> ScramCredential | None:
                return USER if user == USER.user else None

            if is_scram:
                self.servers[told] = ScramServer(SCRAM_SHA_512, find, "server", b"secret")
            told.answer(header, SaslHandshakeResponse(ErrorCode.NONE, [request.mechanism]))
        elif header.api_key == ApiKey.SASL_AUTHENTICATE:
            self.tokens.append(request.auth_bytes)
            told.answer(header, self._judged(told, request.auth_bytes))
        else:
            told.answer(header, BrokerHeartbeatResponse(controller_epoch=request.current_metadata_offset))

    def _judged(self, told: Told, token: bytes) -> SaslAuthenticateResponse:
        if told not in self.servers:
            return SaslAuthenticateResponse(session_lifetime_ms=self.lifetime_ms)
        try:
            step = self.servers[told].evaluate(token)
        except LoginRefused:
            return SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed")
        lifetime_ms = self.lifetime_ms if isinstance(step, Authenticated) else 0
        return SaslAuthenticateResponse(ErrorCode.NONE, None, step.token, lifetime_ms)  # type: ignore[union-attr]

    async def ask(self, position: int) -> int:
        request = BrokerHeartbeatRequest(broker_id=1, current_metadata_offset=position)
        answer = await self.link.ask(request, 2, 5.0)
        assert isinstance(answer, BrokerHeartbeatResponse)
        return answer.controller_epoch

    def asked(self) -> list[int]:
        return [header.api_key for header in self.broker.heard]


async def test_the_login_comes_before_the_first_request_and_once() -> None:
    """All that wait for the connection are asked after it; its hashes run in a worker."""
    trial = Trial()
    await trial.broker.listen()
    assert await asyncio.gather(*(trial.ask(at) for at in range(5))) == [0, 1, 2, 3, 4]
    login = [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.SASL_AUTHENTICATE]
    assert trial.asked() == [*login, *[ApiKey.BROKER_HEARTBEAT] * 5]
    assert set(trial.workers.ran) == {"LOGIN: first_token", "LOGIN: next_token"}


async def test_a_link_is_replaced_before_its_session_ends() -> None:
    """At 85 % of it; what is in flight on the old connection is still answered, and then that one is closed."""
    trial = Trial(lifetime_ms=10_000)
    await trial.broker.listen()
    assert await trial.ask(1) == 1
    await asyncio.sleep(8)
    assert await trial.ask(2) == 2 and len(trial.broker.connections) == 1
    await asyncio.sleep(1)
    assert await trial.ask(3) == 3
    old, new = trial.broker.connections
    await asyncio.sleep(1)
    assert old.is_lost and not new.is_lost
    assert trial.asked().count(ApiKey.SASL_HANDSHAKE) == 2


async def test_a_refused_login_fails_the_request_unsent_and_shows_no_secret() -> None:
    """And the next request tries again: the password may have been set meanwhile."""
    trial = Trial(PasswordLogin(SCRAM_SHA_512, "broker", "wrong-hunter3"))
    await trial.broker.listen()
    for _ in range(2):
        with pytest.raises(ConnectionError, match="nothing was sent: login by SCRAM-SHA-512") as refused:
            await trial.ask(1)
        assert "hunter3" not in str(refused.value)
    await asyncio.sleep(1)
    assert [connection.is_lost for connection in trial.broker.connections] == [True, True]
    assert ApiKey.BROKER_HEARTBEAT not in trial.asked()


async def test_a_silent_login_ends_with_the_requests_time() -> None:
    trial = Trial()
    await trial.broker.listen()
    trial.is_silent = True
    with pytest.raises(TimeoutError, match="no connection within 5 s"):
        await trial.ask(1)
    await asyncio.sleep(1)
    assert trial.broker.connections[0].is_lost
    trial.is_silent = False
    assert await trial.ask(2) == 2


async def test_a_token_is_read_from_its_file_at_each_login() -> None:
    """So a renewed one counts; a file that is away fails the request and names itself."""
    trial = Trial(TokenLogin("/run/token"))
    await trial.broker.listen()
    with pytest.raises(ConnectionError, match="/run/token"):
        await trial.ask(1)
    trial.disk.make_dirs("/run")
    with_token = trial.disk.open("/run/token", write=True, create=True)
    with_token.write_at(0, [b"abc.def.ghi\n"])
    assert await trial.ask(1) == 1
    assert trial.tokens == [b"n,,\x01auth=Bearer abc.def.ghi\x01\x01"]


async def test_a_password_of_plain() -> None:
    trial = Trial(PasswordLogin(PLAIN, "broker", "hunter2"))
    await trial.broker.listen()
    assert await trial.ask(1) == 1
    assert trial.tokens == [b"\0broker\0hunter2"]
