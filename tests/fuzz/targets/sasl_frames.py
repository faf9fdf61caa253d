"""Frames of a client that has not logged in: any bytes in any order end in a refusal, never in a login.

Input: frames, each behind one byte with its length. A new login begins after each refusal, so that one input reaches
several. The mechanisms know a user whose password is in no seed.
"""

from __future__ import annotations

from typing import Final

from broker.config.network.sasl import PasswordLogin
from broker.metadata.records import ScramCredential
from broker.security.sasl.credentials import credential
from broker.security.sasl.login import TOKENS_MAX, Check, Reply, ServerLogin
from broker.security.sasl.mechanism import NotValid
from broker.security.sasl.oauthbearer import OAuthBearerServer
from broker.security.sasl.plain import PlainServer, password_digests
from broker.security.sasl.scram_server import ScramServer
from broker.security_protocol import SCRAM_SHA_256
from broker.wire.apis import ApiKey
from broker.wire.codec import encode_request
from broker.wire.framing import request_frame
from broker.wire.message import Message
from broker.wire.messages import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest

_PASSWORD: Final = "never in an input: 2b7e1516"
_USERS: Final = password_digests({"alice": _PASSWORD})
_ALICE: Final = credential(PasswordLogin(SCRAM_SHA_256, "alice", _PASSWORD), b"salt of the user")


def seeds() -> list[bytes]:
    versions = _frame(ApiKey.API_VERSIONS, 3, ApiVersionsRequest("s", "1"))
    plain = b"\0alice\0wrong"
    first, final = b"n,,n=alice,r=abc", b"c=biws,r=abcserver,p=" + b"A" * 43 + b"="
    bearer = b"n,a=alice,\x01host=h\x01auth=Bearer a.b.c\x01\x01"
    return [
        _joined(versions, _handshake("PLAIN"), _token(plain)),
        _joined(_handshake("PLAIN", 0), plain),
        _joined(versions, _handshake(SCRAM_SHA_256), _token(first), _token(final)),
        _joined(_handshake(SCRAM_SHA_256, 0), first, final),
        _joined(_handshake("OAUTHBEARER"), _token(bearer), _token(b"\x01")),
        _joined(_handshake("GSSAPI"), _handshake("OAUTHBEARER", 0), bearer),
    ]


def run(data: bytes) -> None:
    at, login, tokens = 0, _login(), 0
    while at < len(data):
        size = data[at]
        frame = memoryview(data)[at + 1 : at + 1 + size]
        at += 1 + size
        outcome = login.receive(frame)
        tokens += 1
        if isinstance(outcome, Check):
            assert len(outcome.token) <= size
            outcome = login.verified(NotValid("a fuzzer's"))
        if isinstance(outcome, Reply):
            assert outcome.session is None, "logged in without the password"
            assert tokens <= TOKENS_MAX + 3
        elif hasattr(outcome, "why"):
            assert _PASSWORD not in outcome.why
            login, tokens = _login(), 0


def _login() -> ServerLogin:
    def find(user: str, mechanism: str) -> ScramCredential | None:
        return _ALICE if (user, mechanism) == ("alice", SCRAM_SHA_256) else None

    mechanisms = {
        "PLAIN": lambda: PlainServer(_USERS.get),
        SCRAM_SHA_256: lambda: ScramServer(SCRAM_SHA_256, find, "server", b"secret"),
        "OAUTHBEARER": OAuthBearerServer,
    }
    return ServerLogin(mechanisms, 200, lambda _, __: None)  # type: ignore[arg-type]


def _handshake(mechanism: str, version: int = 1) -> bytes:
    return _frame(ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism))


def _token(data: bytes) -> bytes:
    return _frame(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(data))


def _frame(key: ApiKey, version: int, request: Message) -> bytes:
    parts = request_frame(key, version, 7, "me", encode_request(key, version, request))
    return b"".join(parts)[4:]  # type: ignore[arg-type]


def _joined(*frames: bytes) -> bytes:
    return b"".join(bytes([len(frame)]) + frame for frame in frames)
