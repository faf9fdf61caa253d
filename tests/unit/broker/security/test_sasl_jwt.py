"""Tokens: signatures by a key set, Kafka's rules of audience, issuer and time, and the known attacks on JWTs."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from msgspec.structs import replace

from broker.config.network.sasl import TokenRules
from broker.security.sasl.jwt_verifier import read_key_set, verify, verify_unsecured
from broker.security.sasl.mechanism import NotValid, TokenVerdict, Verified

RULES = TokenRules("file:///keys", (), None, "scope", "sub", 30, 1000, 100, 1000)
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
KEY_SET = json.dumps(
    {
        "keys": [
            {**RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True), "kid": "r", "use": "sig"},
            {**ECAlgorithm.to_jwk(EC_KEY.public_key(), as_dict=True), "kid": "e"},
            {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
            {"kty": "RSA", "kid": "broken"},
        ]
    }
).encode()
KEYS = read_key_set(KEY_SET)
NOW_S = int(time.time())  # PyJWT reads the clock itself
ENDS_S = NOW_S + 86_400  # long after the tests ended


def claims(**changes: Any) -> dict[str, Any]:
    return {"sub": "alice", "exp": ENDS_S} | changes


def signed(key: Any = RSA_KEY, algorithm: str = "RS256", kid: str = "r", **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm, headers={"kid": kid})


def judged(token: str, **rules: Any) -> TokenVerdict:
    return verify(token, KEYS, replace(RULES, **rules))


def test_signed_tokens_are_their_subjects() -> None:
    """By RSA and by elliptic curves; the session ends with the token."""
    assert judged(signed()) == Verified("alice", ENDS_S * 1000)
    assert judged(signed(algorithm="PS512")) == Verified("alice", ENDS_S * 1000)
    assert judged(signed(EC_KEY, "ES256", "e")) == Verified("alice", ENDS_S * 1000)
    assert judged(signed(uid="bob"), sub_claim="uid") == Verified("bob", ENDS_S * 1000)


def test_audience_issuer_and_time_are_checked() -> None:
    """Each by the config that names it, with the configured skew."""
    assert isinstance(judged(signed(aud="us"), audience=("them", "us")), Verified)
    assert isinstance(judged(signed(iss="https://idp"), issuer="https://idp"), Verified)
    assert isinstance(judged(signed(exp=int(time.time()) - 10)), Verified)
    refused = [
        judged(signed(aud="others"), audience=("us",)),
        judged(signed(), audience=("us",)),
        judged(signed(iss="https://evil"), issuer="https://idp"),
        judged(signed(), issuer="https://idp"),
        judged(signed(exp=NOW_S - 100)),
        judged(signed(exp=NOW_S - 10), clock_skew_s=0),
        judged(signed(nbf=ENDS_S)),
        judged(signed(sub=5)),
        judged(signed(sub="")),
        judged(signed(), sub_claim="uid"),
        judged(jwt.encode({"sub": "alice"}, RSA_KEY, "RS256", headers={"kid": "r"})),
    ]
    assert all(isinstance(verdict, NotValid) for verdict in refused)


def test_a_name_that_no_response_can_carry_is_refused() -> None:
    """As a principal it would fail where it is encoded: in an envelope to the controller, in a description of ACLs."""
    assert judged(signed(sub="\ud800")) == NotValid("the token has no user name in its claim sub")
    assert judged(signed(sub="zoë 𝄞")) == Verified("zoë 𝄞", ENDS_S * 1000)


def test_attacks_on_the_header_are_refused() -> None:
    """No signature, a public key as a shared secret, a key of another kind, a key that is not in the set, a key that
    the token brings along."""
    public = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    other = rsa.generate_private_key(65537, 2048)

    def forged(header: dict[str, Any], signature: bytes = b"") -> str:
        parts = (json.dumps(header).encode(), json.dumps(claims()).encode(), signature)
        return ".".join(urlsafe_b64encode(part).decode().rstrip("=") for part in parts)

    import hashlib
    import hmac

    body = forged({"alg": "HS256", "kid": "r"}).rsplit(".", 1)[0]
    mac = urlsafe_b64encode(hmac.digest(public, body.encode(), hashlib.sha256)).decode().rstrip("=")
    jwk = RSAAlgorithm.to_jwk(other.public_key(), as_dict=True)
    refused = [
        forged({"alg": "none", "kid": "r"}),
        forged({"alg": "None"}),
        f"{body}.{mac}",
        signed(other),
        signed(other, kid="unknown"),
        signed(EC_KEY, "ES256", "r"),
        signed(RSA_KEY, "RS256", "e"),
        jwt.encode(claims(), other, "RS256", headers={"kid": "x", "jwk": jwk}),
        signed(RSA_KEY, "RS256", "shared"),
        signed()[:-2],
        "x" * 40_000,
        "",
        "a.b.c",
    ]
    assert [judged(token) for token in refused if isinstance(judged(token), Verified)] == []


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b'{"keys":[]}', b'{"keys":[1]}', b'{"keys":{}}', b"\xff", b"[" * 5000]
)
def test_what_is_no_key_set_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"key|Key"):
        read_key_set(text)


def test_shared_secrets_and_broken_keys_are_left_out_of_a_set() -> None:
    assert set(KEYS) == {"r", "e"}


def unsecured(header: object, body: object) -> str:
    return ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (header, body)) + "."


def test_unsecured_tokens_where_they_are_asked_for() -> None:
    """Only unsigned ones, in their time."""
    none = {"alg": "none"}
    assert verify_unsecured(unsecured(none, claims()), RULES, NOW_S) == Verified("alice", ENDS_S * 1000)
    for token in (
        signed(),
        unsecured({"alg": "RS256"}, claims()),
        unsecured(none, claims(exp=1)),
        unsecured(none, claims(nbf=NOW_S + 100)),
        unsecured(none, claims(exp="soon")),
        unsecured(none, claims(exp=10**400)),
        unsecured(none, [1]),
        unsecured(1, claims()),
    ):
        assert isinstance(verify_unsecured(token, RULES, NOW_S), NotValid)


@given(st.text(max_size=100) | st.lists(st.binary(max_size=40), min_size=3, max_size=3))
def test_any_text_is_judged(text: str | list[bytes]) -> None:
    """A verdict, never another exception; no verdict repeats the token."""
    token = text if isinstance(text, str) else ".".join(urlsafe_b64encode(part).decode() for part in text)
    for verdict in (judged(token), verify_unsecured(token, RULES, NOW_S)):
        assert isinstance(verdict, NotValid)
