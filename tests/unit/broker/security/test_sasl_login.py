"""The login of one connection as a conversation of frames: what Kafka's `SaslServerAuthenticator` answers and ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.error_codes import ErrorCode
from broker.security.sasl.login import (
    TOKENS_MAX,
    Check,
    Outcome,
    PassOn,
    Refusal,
    Reply,
    ServerLogin,
    Session,
)
from broker.security.sasl.mechanism import Authenticated, Challenge, LoginRefused, Verified
from broker.security.sasl.oauthbearer import OAuthBearerServer
from broker.security.sasl.plain import PlainServer, password_digests
from broker.wire.apis import ApiKey
from broker.wire.codec import decode_response, encode_request
from broker.wire.framing import FRAME_PREFIX_SIZE, parse_response_header, request_frame
from broker.wire.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

RIGHT = b"\0alice\0secret"
OTHER = b"\0bob\0builder"
WRONG = b"\0alice\0wrong"


class Endless:
    """A mechanism that never has enough."""

    def evaluate(self, token: bytes) -> Challenge:
        return Challenge(b"more")


def login(renews: Session | None = None, lifetime_ms: int | None = None) -> ServerLogin:
    users = password_digests({"alice": "secret", "bob": "builder"})
    mechanisms = {"PLAIN": lambda: PlainServer(users.get), "OAUTHBEARER": OAuthBearerServer, "ENDLESS": Endless}
    return ServerLogin(mechanisms, 1000, lambda _, __: lifetime_ms, renews)  # type: ignore[arg-type]


def frame(key: ApiKey, version: int, request: Any) -> memoryview:
    parts = request_frame(key, version, 7, "me", encode_request(key, version, request))
    return memoryview(b"".join(parts))[FRAME_PREFIX_SIZE:]  # type: ignore[arg-type]


def versions(version: int = 3) -> memoryview:
    return frame(ApiKey.API_VERSIONS, version, ApiVersionsRequest("s", "1"))


def handshake(mechanism: str = "PLAIN", version: int = 1) -> memoryview:
    return frame(ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism))


def token(data: bytes = RIGHT, version: int = 2) -> memoryview:
    return frame(ApiKey.SASL_AUTHENTICATE, version, SaslAuthenticateRequest(data))


def answer(outcome: Outcome, key: ApiKey, version: int) -> Any:
    assert isinstance(outcome, Reply | Refusal) and outcome.parts is not None
    whole = memoryview(b"".join(outcome.parts))[FRAME_PREFIX_SIZE:]  # type: ignore[arg-type]
    correlation_id, at = parse_response_header(whole, key, version)
    assert correlation_id == 7
    return decode_response(key, version, whole[at:])


def shaken(outcome: Outcome, version: int = 1) -> SaslHandshakeResponse:
    found = answer(outcome, ApiKey.SASL_HANDSHAKE, version)
    assert isinstance(found, SaslHandshakeResponse)
    return found


def authenticated(outcome: Outcome, version: int = 2) -> SaslAuthenticateResponse:
    found = answer(outcome, ApiKey.SASL_AUTHENTICATE, version)
    assert isinstance(found, SaslAuthenticateResponse)
    return found


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_login_in_each_version(version: int) -> None:
    """ApiVersions, SaslHandshake, SaslAuthenticate; the lifetime is told from version 1 on."""
    machine = login(lifetime_ms=5000)
    assert machine.receive(versions()) == PassOn()
    assert shaken(machine.receive(handshake())).mechanisms == ["PLAIN", "OAUTHBEARER", "ENDLESS"]
    done = machine.receive(token(version=version))
    assert isinstance(done, Reply) and done.session == Session("User:alice", "PLAIN", 5000)
    told = authenticated(done, version)
    assert (told.error_code, told.auth_bytes) == (ErrorCode.NONE, b"")
    assert told.session_lifetime_ms == (5000 if version else 0)


def test_an_old_client_sends_its_token_without_a_header() -> None:
    """After SaslHandshake 0; the answer is the server's token alone, and a refusal has no answer."""
    machine = login()
    shaken(machine.receive(handshake(version=0)), 0)
    assert machine.receive(memoryview(RIGHT)) == Reply([b"\0\0\0\0"], Session("User:alice", "PLAIN", None))
    machine = login()
    machine.receive(handshake(version=0))
    refused = machine.receive(memoryview(WRONG))
    assert isinstance(refused, Refusal) and refused.parts is None and refused.user == "alice"


def test_an_unknown_version_of_api_versions_may_be_asked_again() -> None:
    """A client of a newer release falls back; after an answer in its version it may not ask twice."""
    machine = login()
    unknown = memoryview(bytearray(versions()))
    unknown[2:4] = (99).to_bytes(2, "big")
    assert machine.receive(unknown) == PassOn()
    assert machine.receive(versions()) == PassOn()
    assert isinstance(machine.receive(versions()), Refusal)


def test_an_unknown_mechanism_is_told_which_there_are() -> None:
    refused = login().receive(handshake("GSSAPI"))
    told = shaken(refused)
    assert isinstance(refused, Refusal) and told.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert told.mechanisms == ["PLAIN", "OAUTHBEARER", "ENDLESS"]


def test_nothing_else_is_answered_before_the_login() -> None:
    """S4: a request that is not of the login ends it, without an answer."""
    for before in ([], [versions()], [versions(), versions()]):
        machine = login()
        outcome: Outcome = PassOn()
        for each in [*before, frame(ApiKey.METADATA, 1, MetadataRequest())]:
            outcome = machine.receive(each)
        assert isinstance(outcome, Refusal) and outcome.parts is None
    assert isinstance(login().receive(token()), Refusal)


def test_between_handshake_and_token_the_error_is_illegal_sasl_state() -> None:
    """Where the response begins with an error code."""
    machine = login()
    machine.receive(handshake())
    refused = machine.receive(handshake())
    assert isinstance(refused, Refusal) and shaken(refused).error_code == ErrorCode.ILLEGAL_SASL_STATE
    machine = login()
    machine.receive(handshake())
    refused = machine.receive(versions())
    assert isinstance(refused, Refusal)
    assert answer(refused, ApiKey.API_VERSIONS, 3).error_code == ErrorCode.ILLEGAL_SASL_STATE
    machine = login()
    machine.receive(handshake())
    refused = machine.receive(frame(ApiKey.METADATA, 1, MetadataRequest()))
    assert isinstance(refused, Refusal) and refused.parts is None


def test_a_refused_token_is_answered_in_kafkas_words() -> None:
    for data, says in (
        (WRONG, "Authentication failed: Invalid username or password"),
        (b"\0", "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"),
    ):
        machine = login()
        machine.receive(handshake())
        refused = machine.receive(token(data))
        assert isinstance(refused, Refusal) and authenticated(refused).error_message == says
        assert authenticated(refused).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert isinstance(machine.receive(token()), Refusal), "it is over"


def test_a_token_that_has_to_be_verified() -> None:
    """The machine waits for the verdict; a frame meanwhile ends the login."""
    message = b"n,,\x01auth=Bearer a.b.c\x01\x01"
    machine = login()
    machine.receive(handshake("OAUTHBEARER"))
    assert machine.receive(token(message)) == Check("a.b.c")
    done = machine.verified(Verified("carol", 99))
    assert isinstance(done, Reply) and done.session == Session("User:carol", "OAUTHBEARER", None)
    machine = login()
    machine.receive(handshake("OAUTHBEARER"))
    machine.receive(token(message))
    assert isinstance(machine.receive(token(message)), Refusal)


def test_tokens_and_bytes_are_bounded() -> None:
    """A mechanism that never ends, and a frame above the maximum."""
    machine = login()
    machine.receive(handshake("ENDLESS"))
    outcomes = [machine.receive(token(b"x")) for _ in range(TOKENS_MAX + 1)]
    assert [isinstance(outcome, Reply) for outcome in outcomes] == [True] * TOKENS_MAX + [False]
    assert isinstance(login().receive(memoryview(bytes(1001))), Refusal)


def test_another_login_keeps_principal_and_mechanism() -> None:
    """KIP-368: another user is refused in Kafka's words, another mechanism at its first token."""
    session = Session("User:alice", "PLAIN", 1000)
    machine = login(session, 2000)
    machine.receive(handshake())
    done = machine.receive(token())
    assert isinstance(done, Reply) and done.session == Session("User:alice", "PLAIN", 2000)
    machine = login(session)
    machine.receive(handshake())
    refused = machine.receive(token(OTHER))
    assert isinstance(refused, Refusal)
    assert authenticated(refused).error_message == (
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )
    machine = login(session)
    assert shaken(machine.receive(handshake("OAUTHBEARER"))).error_code == ErrorCode.NONE
    refused = machine.receive(token(b"n,,"))
    assert isinstance(refused, Refusal)
    assert "not supported for re-authentication of mechanism 'PLAIN'" in (authenticated(refused).error_message or "")
    assert isinstance(login(session).receive(versions()), Refusal)


FRAMES = st.sampled_from(
    [
        versions(),
        handshake(),
        handshake(version=0),
        handshake("OAUTHBEARER"),
        handshake("ENDLESS"),
        token(WRONG),
        token(b"n,,\x01auth=Bearer a.b.c\x01\x01"),
        frame(ApiKey.METADATA, 1, MetadataRequest()),
    ]
)


@given(st.lists(FRAMES | st.binary(min_size=1, max_size=60).map(memoryview), max_size=20))
def test_any_frames_in_any_order_end_in_a_refusal(frames: list[memoryview]) -> None:
    """Never a login without the password, never another exception; nothing but refusals after the first."""
    machine = login()
    over = False
    for each in frames:
        outcome = machine.receive(each)
        assert not (isinstance(outcome, Reply) and outcome.session is not None)
        assert not over or isinstance(outcome, Refusal)
        over = over or isinstance(outcome, Refusal)


def test_a_mechanism_may_refuse_the_verdict() -> None:
    """An authorization id that is not the token's."""
    machine = login()
    machine.receive(handshake("OAUTHBEARER"))
    machine.receive(token(b"n,a=dave,\x01auth=Bearer a.b.c\x01\x01"))
    assert isinstance(machine.verified(Verified("carol", 99)), Refusal)
    assert LoginRefused("x").says == "x" and Authenticated("x").token == b""
