"""PLAIN and OAUTHBEARER as machines: RFC messages, Kafka's refusals, and any bytes."""

from __future__ import annotations

import hmac
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.sasl import plain
from broker.security.sasl.mechanism import Authenticated, Challenge, LoginRefused, NotValid, Verification, Verified
from broker.security.sasl.oauthbearer import OAuthBearerServer
from broker.security.sasl.plain import PlainServer, password_digests

USERS = password_digests({"tim": "tanstaaftanstaaf", "bob": "b"})


def refused_by_plain(token: bytes) -> LoginRefused:
    with pytest.raises(LoginRefused) as refused:
        PlainServer(USERS.get).evaluate(token)
    return refused.value


def test_the_conversation_of_rfc_4616() -> None:
    assert PlainServer(USERS.get).evaluate(b"\0tim\0tanstaaftanstaaf") == Authenticated("tim")
    assert PlainServer(USERS.get).evaluate(b"tim\0tim\0tanstaaftanstaaf") == Authenticated("tim")


def test_plain_says_the_same_of_a_wrong_user_and_of_a_wrong_password() -> None:
    """And compares as often, digests of one length (S4)."""
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    with patch.object(plain, "compare_digest", compare):
        says = {refused_by_plain(token).says for token in (b"\0tim\0wrong", b"\0tom\0wrong", b"\0bob\0a")}
    assert says == {"Authentication failed: Invalid username or password"}
    assert compared == [(32, 32)] * 3


def test_what_plain_refuses_in_kafkas_words() -> None:
    assert refused_by_plain(b"\0\0x").says == "Authentication failed: username not specified"
    assert refused_by_plain(b"\0tim\0").says == "Authentication failed: password not specified"
    other = refused_by_plain(b"bob\0tim\0tanstaaftanstaaf")
    assert other.says is not None and "authorization id that is different" in other.says
    for token in (b"", b"tim", b"\0tim\0a\0b", b"\0\xff\0x"):
        assert refused_by_plain(token).says is None


def test_a_stand_in_for_an_unknown_user_is_nobodys_password() -> None:
    """Though its digest were somebody's: the user has to be known."""
    with patch.object(plain, "compare_digest", lambda *_: True):
        refused_by_plain(b"\0ghost\0x")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_by_plain(token: bytes) -> None:
    refused_by_plain(token)


def bearer(token: bytes = b"a.b.c", head: bytes = b"n,,", extra: bytes = b"") -> bytes:
    return head + b"\x01auth=Bearer " + token + extra + b"\x01\x01"


def test_a_bearer_token_is_handed_to_whoever_verifies() -> None:
    """RFC 7628 section 4.1, with an authorization id and further pairs."""
    message = b"n,a=user@example.com,\x01host=server\x01port=143\x01auth=Bearer vF9dft4qmTc2Nv\x01\x01"
    step = OAuthBearerServer().evaluate(message)
    assert isinstance(step, Verification) and step.token == "vF9dft4qmTc2Nv"
    assert step.then(Verified("user@example.com", 5)) == Authenticated("user@example.com", b"", 5)
    with pytest.raises(LoginRefused, match="different from the token's principal"):
        step.then(Verified("another", 5))


def test_a_refused_token_is_answered_with_json_and_ends_at_the_farewell() -> None:
    """RFC 7628 section 3.2.3; the audit line gets the reason, the client the status."""
    machine = OAuthBearerServer()
    step = machine.evaluate(bearer())
    assert isinstance(step, Verification)
    assert step.then(NotValid("expired")) == Challenge(b'{"status":"invalid_token"}')
    for last in (b"\x01", bearer()):  # a second token is no second chance
        with pytest.raises(LoginRefused) as refused:
            machine.evaluate(last)
        assert refused.value.says == '{"status":"invalid_token"}' and str(refused.value) == "expired"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        bearer(head=b"y,,"),
        bearer(head=b"n,x,"),
        bearer(token=b""),
        bearer(token=b"a b"),
        bearer().replace(b"Bearer", b"Basic"),
        bearer(extra=b"\x01auth=Bearer other"),
        bearer()[:-1],
        b"n,,\x01host=x\x01\x01",
        bearer(token=b"a" * 70_000),
        bearer(head=b"n,a=\xff,"),
    ],
)
def test_messages_without_one_readable_token_are_refused(message: bytes) -> None:
    with pytest.raises(LoginRefused):
        OAuthBearerServer().evaluate(message)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_by_oauthbearer(message: bytes) -> None:
    with pytest.raises(LoginRefused):
        OAuthBearerServer().evaluate(message)
