"""The dispatcher of a peer that has to log in, in virtual time: deadlines, delays, limits, sessions that end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.config.network.sasl import SaslListener
from broker.error_codes import ErrorCode
from broker.net.buffers import ALLOWANCE
from broker.net.dispatch import Answer, CloseConnection, Later, Peer
from broker.net.limits import NetLimits
from broker.security.audit import Audit, AuditEvent
from broker.security.sasl import limits as limits_module
from broker.security.sasl.limits import (
    TOKENS_PER_S,
    TOKENS_PER_S_OF_ADDRESS,
    UNDER_WAY_MAX,
    UNDER_WAY_PER_ADDRESS_MAX,
    LoginLimits,
    LoginRate,
)
from broker.security.sasl.login import Reply
from broker.security.sasl.login_dispatcher import LOGIN_S, ListenerLogins, LoginDispatcher
from broker.security.sasl.logins import Logins
from broker.security.sasl.mechanism import NotValid, TokenVerdict, Verified
from broker.security.sasl.oauthbearer import OAuthBearerServer
from broker.security.sasl.plain import PlainServer, password_digests
from seams.loop.tasks import Tasks
from tests.sim.world.clock import SimClock
from tests.unit.broker.security.test_sasl_login import RIGHT, WRONG, authenticated, handshake, shaken, token, versions

EXPIRED = NotValid("expired")
BEARER = b"n,,\x01auth=Bearer a.b.c\x01\x01"


class Broker:
    """The broker's own dispatcher: remembers whom it answered."""

    def __init__(self) -> None:
        self.principals: list[str] = []

    def dispatch(self, peer: Peer, frame: memoryview) -> Answer:
        self.principals.append(peer.principal)
        return [b"answer"]

    def dispatch_run(self, peer: Peer, view: memoryview, pos: int, end: int) -> tuple[int, int, Answer]:
        self.principals.append(f"run of {peer.principal}")
        return 1, end, [b"answer"]


class Connection:
    """The connection of the peer."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.limits: list[int | None] = []

    def end(self, reason: str) -> None:
        self.ended.append(reason)

    def limit_frames(self, frame_bytes_max: int | None) -> None:
        self.limits.append(frame_bytes_max)


class Room:
    """One listener, one client."""

    def __init__(self, reauth_ms: int = 0, verdict: TokenVerdict = EXPIRED) -> None:
        loop = asyncio.get_running_loop()
        self.clock = SimClock(cast(Any, loop), lambda: "boot")
        self.broker = Broker()
        self.tasks = Tasks()
        self.limits = LoginLimits()
        self.audit = Audit(self.clock.monotonic_s)
        self.verdict = verdict
        users = password_digests({"alice": "secret"})
        config = SaslListener(("PLAIN", "OAUTHBEARER"), 4000, 100, {"PLAIN": reauth_ms}, {}, None)
        made: dict[str, Callable[[], Any]] = {"PLAIN": lambda: PlainServer(users.get), "OAUTHBEARER": OAuthBearerServer}
        self.logins = ListenerLogins(
            "IN", config, self.broker, made, self._verify, self.limits, self.clock, self.tasks, self.audit
        )
        self.peer, self.connection, self.gate = self.another()

    async def _verify(self, _: str) -> TokenVerdict:
        await asyncio.sleep(0.5)
        return self.verdict

    def another(self, address: str = "10.0.0.1:1") -> tuple[Peer, Connection, LoginDispatcher]:
        peer, connection, gate = Peer(1, address, "IN"), Connection(), self.logins.new_peer()
        peer.dispatcher, peer.connection = gate, connection
        gate.admitted(peer)
        return peer, connection, gate

    async def send(self, frame: memoryview) -> Any:
        """The parts of the answer."""
        answer = self.gate.dispatch(self.peer, frame)
        return await answer.future if isinstance(answer, Later) else answer

    async def log_in(self) -> None:
        await self.send(handshake())
        assert authenticated(Reply(await self.send(token(RIGHT)))).error_code == 0


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def test_after_the_login_the_broker_is_asked_directly() -> None:
    """The dispatcher takes itself away, so that a request costs nothing; frames are bounded until then."""
    room = Room()
    assert await room.send(versions()) == [b"answer"]
    await room.log_in()
    assert room.peer.principal == "User:alice" and room.peer.dispatcher is None
    assert room.connection.limits == [4000, None]
    assert room.limits.under_way == 0 and room.peer.on_closed is None
    assert await room.send(versions()) == [b"answer"], "frames of the same read still come here"
    assert room.gate.dispatch_run(room.peer, memoryview(b"xx"), 0, 2) == (1, 2, [b"answer"])
    await asyncio.sleep(2 * LOGIN_S)
    assert room.connection.ended == []


@pytest.mark.parametrize(
    ("mechanism", "configured", "most"),
    [("PLAIN", 524_288, 16 << 10), ("OAUTHBEARER", 524_288, 40 << 10), ("PLAIN", 900, 900)],
)
async def test_frames_before_a_login_leave_room_for_others(mechanism: str, configured: int, most: int) -> None:
    """Found by a penetration test: 560 half frames of 512 KiB, of nobody who logged in, used up the budget of frames
    that all connections share, and a producer of 400 KB waited for seconds."""
    room = Room()
    config = SaslListener((mechanism,), configured, 100, {}, {}, None)
    room.logins = ListenerLogins(
        "IN", config, room.broker, {mechanism: OAuthBearerServer}, room._verify, room.limits, room.clock, room.tasks,
        room.audit,
    )  # fmt: skip
    _, connection, _ = room.another()
    assert connection.limits == [most]
    assert most <= ALLOWANCE or UNDER_WAY_MAX * most < 3 / 4 * NetLimits().frame_bytes_total_max


async def test_a_refusal_is_answered_late_and_closes() -> None:
    """After connection.failed.authentication.delay.ms; the loop runs meanwhile."""
    room = Room()
    await room.send(handshake())
    began = now_s()
    assert authenticated(Reply(await room.send(token(WRONG)))).error_code == 58
    assert now_s() - began == pytest.approx(0.1)
    assert room.connection.ended == ["Authentication failed: Invalid username or password"]
    assert room.audit.counts[AuditEvent.LOGIN_FAILED] == 1
    assert room.peer.principal == "User:ANONYMOUS" and room.peer.dispatcher is room.gate


async def test_a_login_has_ten_seconds() -> None:
    """From admission on, whatever the client sends or does not send."""
    room = Room()
    await room.send(handshake())
    await asyncio.sleep(LOGIN_S - 0.1)
    assert room.connection.ended == []
    await asyncio.sleep(0.2)
    assert room.connection.ended == ["the client did not log in within 10 s"]


async def test_logins_under_way_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is closed; one that goes away makes room."""
    monkeypatch.setattr(limits_module, "UNDER_WAY_MAX", 2)
    room = Room()
    second, _, _ = room.another()
    _, third, _ = room.another()
    assert third.ended == ["too many logins are under way"]
    assert second.on_closed is not None
    second.on_closed()
    _, fourth, _ = room.another()
    assert fourth.ended == [] and room.limits.under_way == 2


async def test_one_address_holds_no_more_than_its_share_of_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that say nothing: two addresses could keep everybody out for as long as they opened new ones."""
    monkeypatch.setattr(limits_module, "UNDER_WAY_PER_ADDRESS_MAX", 2)
    room = Room()
    second, kept, _ = room.another("10.0.0.1:2")
    _, refused, _ = room.another("10.0.0.1:3")
    _, other, _ = room.another("10.0.0.2:1")
    assert refused.ended == ["too many logins are under way"]
    assert (kept.ended, other.ended) == ([], [])
    assert second.on_closed is not None
    second.on_closed()
    _, again, _ = room.another("10.0.0.1:4")
    assert again.ended == []
    assert [room.another("")[1].ended for _ in range(4)] == [[]] * 4, "a network without addresses has no shares"
    assert 4 * UNDER_WAY_PER_ADDRESS_MAX <= UNDER_WAY_MAX


async def test_what_one_address_is_refused_is_not_taken_from_others() -> None:
    """Ten seconds' worth of all clients at once from one address: another one is judged without waiting long."""
    room = Room()
    for _ in range(10 * TOKENS_PER_S):
        room.limits.wait_s("10.0.0.1", now_s())
    wait_s = room.limits.wait_s("10.0.0.2", now_s())
    assert wait_s is not None and wait_s < 2.1


async def test_a_storm_of_one_address_waits_and_others_do_not() -> None:
    """Tokens above the rate wait; far above it the connection is closed."""
    room = Room()
    for _ in range(2 * TOKENS_PER_S_OF_ADDRESS):
        room.limits.wait_s("10.0.0.1", now_s())
    began = now_s()
    shaken(Reply(await room.send(handshake())))
    assert now_s() - began == pytest.approx(1.0, abs=0.01)
    assert room.limits.wait_s("10.0.0.2", now_s()) == 0
    for _ in range(5 * TOKENS_PER_S_OF_ADDRESS):
        room.limits.wait_s("10.0.0.1", now_s())
    with pytest.raises(CloseConnection):
        await room.send(token())


def test_a_rate_allows_its_burst_and_then_its_pace() -> None:
    rate = LoginRate(10)
    assert [rate.wait_s(100.0) for _ in range(12)] == pytest.approx([0.0] * 10 + [0.1, 0.2])
    assert rate.wait_s(200.0) == 0


async def test_a_session_ends_unless_the_client_logs_in_again() -> None:
    """connections.max.reauth.ms: requests are served before the end, close the connection after it, and a new login
    moves the end."""
    room = Room(reauth_ms=10_000)
    await room.log_in()
    assert room.peer.dispatcher is room.gate
    await asyncio.sleep(9)
    assert await room.send(versions()) == [b"answer"]
    assert room.gate.dispatch_run(room.peer, memoryview(b"xx"), 0, 2)[0] == 1
    await room.log_in()
    await asyncio.sleep(9)
    assert await room.send(versions()) == [b"answer"]
    await asyncio.sleep(2)
    assert room.gate.dispatch_run(room.peer, memoryview(b"xx"), 0, 2)[0] == 0
    with pytest.raises(CloseConnection, match="session ended"):
        await room.send(versions())
    await room.log_in()  # as in Kafka, also after the end
    assert await room.send(versions()) == [b"answer"]
    assert set(room.broker.principals) == {"User:alice", "run of User:alice"}
    assert room.connection.limits == [4000, None]


async def test_another_login_is_refused_within_a_second() -> None:
    """The broker answers that handshake: ILLEGAL_SASL_STATE, as Kafka."""
    room = Room(reauth_ms=10_000)
    await room.log_in()
    await room.log_in()
    assert await room.send(handshake()) == [b"answer"]
    await asyncio.sleep(1.1)
    shaken(Reply(await room.send(handshake())))


async def test_nothing_runs_while_a_client_logs_in_again() -> None:
    """A request between the handshake and the token ends it; the fast path does not slip by."""
    room = Room(reauth_ms=10_000)
    await room.log_in()
    await asyncio.sleep(2)
    await room.send(handshake())
    assert room.gate.dispatch_run(room.peer, memoryview(b"xx"), 0, 2)[0] == 0
    answered = len(room.broker.principals)
    await room.send(versions())
    assert len(room.broker.principals) == answered and room.connection.ended != []


async def test_a_user_of_plain_that_a_reload_removed_renews_no_session() -> None:
    """Regression: whoever had begun to log in again before the reload was logged in by the old users after it."""
    config = SaslListener(("PLAIN",), 4000, 100, {"PLAIN": 60_000}, {"alice": "secret"}, None)
    room = Room()
    world = cast(Any, SimpleNamespace(clock=room.clock))
    logins = Logins({"IN": config}, room.broker, world, room.tasks, room.audit, "BROKERS")
    listener = logins.of_listener("IN")
    assert listener is not None
    room.logins = listener
    room.peer, room.connection, room.gate = room.another()
    await room.log_in()
    await asyncio.sleep(10)
    await room.send(handshake())
    logins.use_plain_users({"IN": replace(config, plain_users={})})
    assert authenticated(Reply(await room.send(token(RIGHT)))).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert room.connection.ended


async def test_a_token_is_verified_beside_the_loop() -> None:
    """Valid until its expiry, which ends the session; a refused one is answered with JSON."""
    room = Room()
    room.verdict = Verified("carol", room.clock.wall_ms() + 5500)
    await room.send(handshake("OAUTHBEARER"))
    told = authenticated(Reply(await room.send(token(BEARER))))
    assert told.session_lifetime_ms == 5000 and room.peer.principal == "User:carol"
    await asyncio.sleep(6)
    with pytest.raises(CloseConnection):
        await room.send(versions())
    room = Room()
    await room.send(handshake("OAUTHBEARER"))
    assert authenticated(Reply(await room.send(token(BEARER)))).auth_bytes == b'{"status":"invalid_token"}'
    assert authenticated(Reply(await room.send(token(b"\x01")))).error_message == '{"status":"invalid_token"}'
