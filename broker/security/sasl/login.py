"""State machine of the login of one connection (Kafka's `SaslServerAuthenticator`). Pure.

    HANDSHAKE ──SaslHandshake──► TOKENS ──the mechanism's last token──► DONE
        an unexpected frame, an unknown mechanism, a refused token ──► FAILED

ApiVersions may come once, before the handshake. The broker's own dispatcher answers it. After a SaslHandshake of
version 0 the tokens are frames without a header. A login that renews a session (KIP-368) begins with SaslHandshake and
must end with the same principal and mechanism.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from broker.error_codes import ErrorCode
from broker.net.dispatch import Part
from broker.security.sasl.mechanism import (
    Authenticated,
    Challenge,
    LoginRefused,
    Mechanism,
    Step,
    TokenVerdict,
    Verification,
)
from broker.wire.apis import ApiKey, is_served, response_header_version
from broker.wire.codec import decode_request, encode_response
from broker.wire.errors import MalformedFrame
from broker.wire.framing import RequestHeader, parse_request_header, response_frame
from broker.wire.message import Message
from broker.wire.messages import (
    ApiVersionsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

TOKENS_MAX: Final = 8
"""Most tokens of one login. No mechanism here needs more than three."""

MakeMechanism = Callable[[], Mechanism]
SessionLifetime = Callable[[str, int | None], int | None]
"""Function of the mechanism and the credential's expiry (wall clock, ms): the session's lifetime in ms; None: no
end."""


class Session(NamedTuple):
    """The principal and mechanism of a login. `lifetime_ms`: length of the session from the login on; None if the
    session does not end."""

    principal: str
    mechanism: str
    lifetime_ms: int | None


class PassOn(NamedTuple):
    """The broker's own dispatcher answers this frame."""


class Reply(NamedTuple):
    """The next response. `parts`: the response; None if there is none. `session` is set when the login succeeded."""

    parts: list[Part] | None
    session: Session | None = None


class Refusal(NamedTuple):
    """The login failed. After a delay the response `parts` is sent, unless it is None, and the connection is closed.
    `why` is for the log and the audit line, and never has a secret in it."""

    parts: list[Part] | None
    why: str
    user: str = ""
    mechanism: str = ""


class Check(NamedTuple):
    """Verify `token` in a worker, then call `verified` with the verdict."""

    token: str


Outcome = PassOn | Reply | Refusal | Check


class _State(Enum):
    VERSIONS_OR_HANDSHAKE = "versions or handshake"
    HANDSHAKE = "handshake"
    TOKENS = "tokens"
    VERIFYING = "verifying"
    OTHER_MECHANISM = "other mechanism"  # a renewal named another mechanism: its next token is refused
    OVER = "over"


class ServerLogin:
    """One login. `mechanisms`: the enabled mechanisms, in order. `renews`: the session that this login renews."""

    def __init__(
        self,
        mechanisms: Mapping[str, MakeMechanism],
        token_bytes_max: int,
        lifetime: SessionLifetime,
        renews: Session | None = None,
    ) -> None:
        self._mechanisms = mechanisms
        self._token_bytes_max = token_bytes_max
        self._lifetime = lifetime
        self._renews = renews
        self._state = _State.VERSIONS_OR_HANDSHAKE if renews is None else _State.HANDSHAKE
        self._name = ""  # name of the mechanism
        self._mechanism: Mechanism
        self._has_headers = True  # tokens come in SaslAuthenticate
        self._tokens = 0
        self._call = RequestHeader(ApiKey.SASL_AUTHENTICATE, 0, 0)  # header of the request whose token is being judged
        self._then: Callable[[TokenVerdict], Challenge | Authenticated]

    def receive(self, frame: memoryview) -> Outcome:
        """The outcome for the next frame (without its length prefix)."""
        if len(frame) > self._token_bytes_max:
            return self._fail(
                None, f"the client sent {len(frame)} bytes before the login; at most {self._token_bytes_max} are read"
            )
        if self._state in (_State.OVER, _State.VERIFYING):
            return self._fail(None, "the client sent a request after its login failed")
        if self._state is _State.TOKENS and not self._has_headers:
            return self._judge(bytes(frame))
        try:
            header, body_at = parse_request_header(frame)
            if self._state in (_State.TOKENS, _State.OTHER_MECHANISM):
                return self._authenticate(header, frame[body_at:])
            return self._before_tokens(header, frame[body_at:])
        except MalformedFrame as malformed:
            return self._fail(None, f"the client sent no Kafka request, or uses another security protocol: {malformed}")

    def verified(self, verdict: TokenVerdict) -> Outcome:
        """The outcome for the verdict of a `Check`."""
        assert self._state is _State.VERIFYING
        self._state = _State.TOKENS
        try:
            return self._follow(self._then(verdict))
        except LoginRefused as refused:
            return self._refuse(refused)

    def _before_tokens(self, header: RequestHeader, body: memoryview) -> Outcome:
        if header.api_key == ApiKey.API_VERSIONS:
            if self._state is not _State.VERSIONS_OR_HANDSHAKE:
                return self._fail(None, "the client sent ApiVersions instead of SaslHandshake")
            if is_served(header.api_key, header.api_version):
                self._state = _State.HANDSHAKE
            return PassOn()  # the answer to an unknown version makes the client ask again
        if header.api_key != ApiKey.SASL_HANDSHAKE:
            return self._fail(None, f"the client sent API {header.api_key} before the login")
        if not is_served(header.api_key, header.api_version):
            return self._fail(None, f"SaslHandshake version {header.api_version} is not served")
        request = decode_request(header.api_key, header.api_version, body)
        assert isinstance(request, SaslHandshakeRequest)
        return self._handshake(header, request.mechanism)

    def _handshake(self, header: RequestHeader, mechanism: str) -> Outcome:
        enabled = list(self._mechanisms)
        make = self._mechanisms.get(mechanism)
        if make is None:
            answer = SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, enabled)
            return self._fail(_frame(header, answer), f"mechanism {mechanism[:40]!r} is not enabled")
        self._name = mechanism
        self._has_headers = header.api_version > 0
        if self._renews is not None and self._renews.mechanism != mechanism:
            self._state = _State.OTHER_MECHANISM
            self._has_headers = True
        else:
            self._state = _State.TOKENS
            self._mechanism = make()
        return Reply(_frame(header, SaslHandshakeResponse(ErrorCode.NONE, enabled)))

    def _authenticate(self, header: RequestHeader, body: memoryview) -> Outcome:
        if header.api_key != ApiKey.SASL_AUTHENTICATE:
            return self._fail(
                _illegal_state(header), f"the client sent API {header.api_key} instead of SaslAuthenticate"
            )
        if not is_served(header.api_key, header.api_version):
            return self._fail(None, f"SaslAuthenticate version {header.api_version} is not served")
        request = decode_request(header.api_key, header.api_version, body)
        assert isinstance(request, SaslAuthenticateRequest)
        self._call = header
        if self._state is _State.OTHER_MECHANISM:
            assert self._renews is not None
            says = (
                f"SASL mechanism '{self._name}' requested by client is not supported for re-authentication of "
                f"mechanism '{self._renews.mechanism}'"
            )
            return self._refuse(LoginRefused(says))
        return self._judge(bytes(request.auth_bytes))

    def _judge(self, token: bytes) -> Outcome:
        self._tokens += 1
        if self._tokens > TOKENS_MAX:
            return self._refuse(LoginRefused(None, why=f"the client sent more than {TOKENS_MAX} tokens"))
        try:
            return self._follow(self._mechanism.evaluate(token))
        except LoginRefused as refused:
            return self._refuse(refused)

    def _follow(self, step: Step) -> Outcome:
        if isinstance(step, Verification):
            self._state = _State.VERIFYING
            self._then = step.then
            return Check(step.token)
        if isinstance(step, Challenge):
            return Reply(self._answer(step.token, 0))
        principal = f"User:{step.name}"
        if self._renews is not None and self._renews.principal != principal:
            old, new = self._renews.principal.removeprefix("User:"), step.name
            says = f"Cannot change principals during re-authentication from User.{old}: User.{new}"
            raise LoginRefused(says, step.name)
        self._state = _State.OVER
        lifetime_ms = self._lifetime(self._name, step.expires_ms)
        session = Session(principal, self._name, lifetime_ms)
        return Reply(self._answer(step.token, lifetime_ms or 0), session)

    def _answer(self, token: bytes, lifetime_ms: int) -> list[Part] | None:
        if not self._has_headers:
            return [len(token).to_bytes(4, "big") + token]
        return _frame(self._call, SaslAuthenticateResponse(ErrorCode.NONE, None, token, lifetime_ms))

    def _refuse(self, refused: LoginRefused) -> Refusal:
        during = "authentication" if self._renews is None else "re-authentication"
        says = refused.says or (
            f"Authentication failed during {during} due to invalid credentials with SASL mechanism {self._name}"
        )
        parts = None
        if self._has_headers:
            parts = _frame(self._call, SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, says, b""))
        return self._fail(parts, str(refused), refused.user)

    def _fail(self, parts: list[Part] | None, why: str, user: str = "") -> Refusal:
        self._state = _State.OVER
        return Refusal(parts, why, user, self._name)


def _frame(header: RequestHeader, response: Message) -> list[Part]:
    body = encode_response(header.api_key, header.api_version, response)
    return response_frame(response_header_version(header.api_key, header.api_version), header.correlation_id, body)


def _illegal_state(header: RequestHeader) -> list[Part] | None:
    """A response with ILLEGAL_SASL_STATE. None for another API or version: the connection is
    then closed without a response."""
    if header.api_key == ApiKey.SASL_HANDSHAKE and is_served(header.api_key, header.api_version):
        return _frame(header, SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, []))
    if header.api_key == ApiKey.API_VERSIONS and is_served(header.api_key, header.api_version):
        return _frame(header, ApiVersionsResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, api_keys=[]))
    return None
