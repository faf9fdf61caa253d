"""Tokens of OAUTHBEARER: only the tokens that the key signed are accepted, and no key set or token raises.

Input: one byte that chooses the reader, then a token or a JSON Web Key Set. The seeds hold a valid token, so that
changed headers, claims and signatures are near.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from broker.config.network.sasl import TokenRules
from broker.security.sasl.jwt_verifier import read_key_set, verify, verify_unsecured
from broker.security.sasl.mechanism import NotValid, Verified

_RULES: Final = TokenRules("file:///keys", (), None, "scope", "sub", 30, 1000, 100, 1000)
_KEY: Final = ec.derive_private_key(0x2B7E151628AED2A6ABF7158809CF4F3C, ec.SECP256R1())
_KEY_SET: Final = json.dumps(
    {"keys": [{**ECAlgorithm.to_jwk(_KEY.public_key(), as_dict=True), "kid": "e"}, {"kty": "oct", "k": "c2VjcmV0"}]}
).encode()
_KEYS: Final = read_key_set(_KEY_SET)
_CLAIMS: Final[dict[str, Any]] = {"sub": "alice", "exp": 4_000_000_000, "scope": ["a"]}
_SIGNED: Final = jwt.encode(_CLAIMS, _KEY, "ES256", headers={"kid": "e"})
_NOW_S: Final = 1_800_000_000.0


def seeds() -> list[bytes]:
    shared = jwt.encode(_CLAIMS, "secret of thirty-two characters!", "HS256", headers={"kid": "e"})
    return [
        b"\0" + _SIGNED.encode(),
        b"\0" + shared.encode(),
        b"\0" + _unsecured({"alg": "none"}, _CLAIMS),
        b"\1" + _unsecured({"alg": "none"}, _CLAIMS),
        b"\1" + _unsecured({"alg": "none"}, {"sub": "bob", "exp": 1e400, "nbf": -1}),
        b"\2" + _KEY_SET,
        b"\2" + b'{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}',
    ]


def run(data: bytes) -> None:
    if not data:
        return
    text = data[1:].decode("utf-8", "surrogateescape")
    if data[0] % 3 == 0:
        verdict = verify(text, _KEYS, _RULES)
        if isinstance(verdict, Verified):
            assert _of_the_key(text), "a token that the key did not sign"
    elif data[0] % 3 == 1:
        verdict = verify_unsecured(text, _RULES, _NOW_S)
        assert isinstance(verdict, NotValid) or 0 < len(verdict.name) <= 1000
    else:
        try:
            assert read_key_set(data[1:])
        except ValueError as refused:
            assert str(refused)


def _of_the_key(token: str) -> bool:
    """Whether the signed part is that of the valid token; base64 lets the last characters differ."""
    return token.rsplit(".", 1)[0] == _SIGNED.rsplit(".", 1)[0]


def _unsecured(header: dict[str, Any], claims: dict[str, Any]) -> bytes:
    parts = (urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims))
    return b".".join(parts) + b"."
