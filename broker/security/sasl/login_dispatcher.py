"""Dispatcher of one peer on a SASL listener: answers only the login until the peer is logged in.

It owns the timers of a login: its deadline, the delay of a refusal, and the end of a session. If the session does not
end, the connection calls the broker's dispatcher directly after the login. Otherwise this object checks each request
against the session's end. A request after the end closes the connection, unless the client logged in again before it
(KIP-368).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from broker.config.network.sasl import SaslListener
from broker.net.buffers import ALLOWANCE
from broker.net.dispatch import Answer, CloseConnection, Dispatcher, Later, Part, Peer
from broker.security.audit import Audit, AuditEvent
from broker.security.sasl.limits import LoginLimits
from broker.security.sasl.login import Check, MakeMechanism, Outcome, PassOn, Refusal, Reply, ServerLogin, Session
from broker.security.sasl.mechanism import TokenVerdict
from broker.security_protocol import OAUTHBEARER
from broker.wire.apis import ApiKey
from seams.clock import Clock
from seams.loop.tasks import Tasks

LOGIN_S: Final = 10.0
"""From admission to the end of the login, as for a TLS handshake (S2)."""
TOKENS_BYTES_MAX: Final = 40 << 10
"""Largest frame before the login if it may hold a JWT: `jwt_verifier.TOKEN_CHARS_MAX` plus a margin. All running logins
together leave room in the frame budget; with Kafka's 512 KiB, 500 clients without a login could block all others.
Tokens of other mechanisms fit the bytes that every connection has."""
_RENEWALS_APART_S: Final = 1.0
"""A client that logs in again more often gets ILLEGAL_SASL_STATE, as in Kafka."""
_USER_CHARS_MAX: Final = 100  # characters of a name in the audit log
_HANDSHAKE: Final = int(ApiKey.SASL_HANDSHAKE).to_bytes(2, "big")


class VerifyToken(Protocol):
    async def __call__(self, token: str) -> TokenVerdict: ...


class ListenerLogins:
    """State shared by all logins of one listener. `broker` answers peers that are logged in."""

    def __init__(
        self,
        name: str,
        config: SaslListener,
        broker: Dispatcher,
        mechanisms: Mapping[str, MakeMechanism],
        verify: VerifyToken,
        limits: LoginLimits,
        clock: Clock,
        tasks: Tasks,
        audit: Audit,
    ) -> None:
        self.name = name
        self.config = config
        self.broker = broker
        self.mechanisms = mechanisms
        self.verify = verify
        self.limits = limits
        self.clock = clock
        self.tasks = tasks
        self.audit = audit
        self.frame_bytes_max = min(config.token_bytes_max, TOKENS_BYTES_MAX if OAUTHBEARER in mechanisms else ALLOWANCE)

    def new_peer(self) -> LoginDispatcher:
        return LoginDispatcher(self)

    def login(self, renews: Session | None = None) -> ServerLogin:
        return ServerLogin(self.mechanisms, self.frame_bytes_max, self._lifetime_ms, renews)

    def _lifetime_ms(self, mechanism: str, expires_ms: int | None) -> int | None:
        """The shorter of the credential's remaining time and connections.max.reauth.ms, as in Kafka."""
        reauth_ms = self.config.reauth_ms.get(mechanism, 0)
        rest_ms = None if expires_ms is None else max(0, expires_ms - self.clock.wall_ms())
        if reauth_ms <= 0:
            return rest_ms
        return reauth_ms if rest_ms is None else min(rest_ms, reauth_ms)


class LoginDispatcher:
    """The `broker.net.dispatch.PeerDispatcher` of one peer."""

    __slots__ = ("_deadline", "_expires_s", "_host", "_login", "_renewed_s", "_session", "_shared")

    def __init__(self, shared: ListenerLogins) -> None:
        self._shared = shared
        self._login: ServerLogin | None = shared.login()  # the login under way
        self._session: Session | None = None
        self._expires_s: float | None = None  # the session's end, by the monotonic clock
        self._renewed_s = float("-inf")
        self._deadline: asyncio.TimerHandle | None = None
        self._host = ""

    def admitted(self, peer: Peer) -> None:
        """See `PeerDispatcher`."""
        assert peer.connection is not None
        self._host = peer.host
        if not self._shared.limits.begin(self._host):
            peer.connection.end("too many logins are under way")
            return
        peer.connection.limit_frames(self._shared.frame_bytes_max)
        peer.on_closed = self._over
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(
            LOGIN_S, peer.connection.end, f"the client did not log in within {LOGIN_S:g} s"
        )

    def dispatch(self, peer: Peer, frame: memoryview) -> Answer:
        """See `Dispatcher.dispatch`."""
        if self._login is None:
            if self._expires_s is not None:
                now_s = self._shared.clock.monotonic_s()
                if frame[:2] == _HANDSHAKE and now_s - self._renewed_s >= _RENEWALS_APART_S:
                    self._renewed_s = now_s
                    self._login = self._shared.login(self._session)
                    return self._follow(peer, self._login.receive(frame), frame)
                if now_s > self._expires_s:
                    raise CloseConnection("its session ended before it logged in again")
            return self._shared.broker.dispatch(peer, frame)
        host = peer.host
        wait_s = self._shared.limits.wait_s(host, self._shared.clock.monotonic_s())
        if wait_s is None:
            raise CloseConnection("too many logins from its address")
        if wait_s == 0:
            return self._follow(peer, self._login.receive(frame), frame)
        return Later.of(self._shared.tasks.spawn("login", self._wait(wait_s, peer, frame), awaited=True), blocks=True)

    def dispatch_run(self, peer: Peer, view: memoryview, pos: int, end: int) -> tuple[int, int, Answer]:
        """See `Dispatcher.dispatch_run`."""
        if self._login is not None:
            return 0, pos, None
        if self._expires_s is not None and self._shared.clock.monotonic_s() > self._expires_s:
            return 0, pos, None  # `dispatch` decides: the frame may begin a renewal
        return self._shared.broker.dispatch_run(peer, view, pos, end)

    async def _wait(self, wait_s: float, peer: Peer, frame: memoryview) -> Answer:
        await asyncio.sleep(wait_s)
        assert self._login is not None
        return self._follow(peer, self._login.receive(frame), frame)

    def _follow(self, peer: Peer, outcome: Outcome, frame: memoryview | None = None) -> Answer:
        if isinstance(outcome, Reply):
            if outcome.session is not None:
                self._succeed(peer, outcome.session)
            return outcome.parts
        if isinstance(outcome, PassOn):
            assert frame is not None
            return self._shared.broker.dispatch(peer, frame)
        if isinstance(outcome, Check):
            return Later.of(self._shared.tasks.spawn("login", self._verify(peer, outcome), awaited=True), blocks=True)
        return self._refuse(peer, outcome)

    async def _verify(self, peer: Peer, check: Check) -> Answer:
        verdict = await self._shared.verify(check.token)
        assert self._login is not None
        return self._follow(peer, self._login.verified(verdict))

    def _succeed(self, peer: Peer, session: Session) -> None:
        shared = self._shared
        is_first = self._session is None
        self._session, self._login = session, None
        peer.principal = session.principal
        shared.audit.note(AuditEvent.LOGIN, session.principal, peer.address, "log in")
        if session.lifetime_ms is None:
            self._expires_s = None
            peer.dispatcher = None
        else:
            now_s = shared.clock.monotonic_s()
            self._expires_s = now_s + session.lifetime_ms / 1000
        if is_first:
            assert peer.connection is not None
            peer.connection.limit_frames(None)
            peer.on_closed = None
            self._over()

    def _refuse(self, peer: Peer, refusal: Refusal) -> Later:
        # The user name is only claimed, so it is not the line's principal: each principal may write lines of its own.
        claimed = f" as User:{refusal.user[:_USER_CHARS_MAX]}" if refusal.user else ""
        what = f"log in{claimed} by {refusal.mechanism or 'no mechanism'} on listener {self._shared.name}"
        self._shared.audit.note(AuditEvent.LOGIN_FAILED, peer.principal, peer.address, what, refusal.why)
        later = Later(blocks=True)
        delay_s = self._shared.config.failure_delay_ms / 1000
        asyncio.get_running_loop().call_later(delay_s, _end, peer, later, refusal.parts, refusal.why)
        return later

    def _over(self) -> None:
        """End the login in the limits: it succeeded, or its connection was closed."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self._shared.limits.end(self._host)


def _end(peer: Peer, later: Later, parts: list[Part] | None, why: str) -> None:
    later.answer(parts)
    if not peer.closed and peer.connection is not None:
        peer.connection.end(why)
