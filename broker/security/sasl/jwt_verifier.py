"""Verifies the tokens of OAUTHBEARER: signature, issuer, audience, time (KIP-255, KIP-768).

It runs in a worker, because verifying a signature takes tenths of a millisecond. Only signatures by a private key are
accepted. An unsigned token and a token signed by a shared secret are always refused. A separate validator for tests
accepts unsigned tokens. No message repeats a token.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from typing import Any, Final

import jwt

from broker.config.network.sasl import TokenRules
from broker.security.sasl.mechanism import NotValid, TokenVerdict, Verified

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
TOKEN_CHARS_MAX: Final = 32 << 10
_NAME_CHARS_MAX: Final = 1000
_SURROGATE: Final = re.compile("[\ud800-\udfff]")  # JSON can escape it alone, and UTF-8 cannot encode it

Keys = Mapping[str, jwt.PyJWK]
"""Keys by key id; a key without an id has the empty string."""


def read_key_set(text: bytes) -> dict[str, jwt.PyJWK]:
    """The keys of a JWKS that verify signatures. Raises ValueError with the reason."""
    try:
        rows = json.loads(text)["keys"]
        found = {}
        for row in rows:
            if row.get("use", "sig") != "sig" or row.get("kty") not in ("RSA", "EC", "OKP"):
                continue
            try:
                found[str(row.get("kid", ""))] = jwt.PyJWK(row)
            except jwt.PyJWTError:  # the algorithm of this key is not supported
                continue
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as malformed:
        raise ValueError(f"the answer is not a JSON Web Key Set: {type(malformed).__name__}") from None
    if not found:
        raise ValueError("the key set has no key that verifies signatures (RSA, EC or OKP)")
    return found


def verify(token: str, keys: Keys, rules: TokenRules) -> TokenVerdict:
    """Verify a signed token."""
    if len(token) > TOKEN_CHARS_MAX:
        return NotValid(f"the token has {len(token)} characters, but at most {TOKEN_CHARS_MAX} are read")
    try:
        header = jwt.get_unverified_header(token)
        key = keys.get(str(header.get("kid", ""))) or (next(iter(keys.values())) if len(keys) == 1 else None)
        if key is None:
            return NotValid("the token is signed by a key that is not in the key set")
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS or key.algorithm_name not in (algorithm, *_same_key(algorithm)):
            return NotValid("the token names another algorithm than its key")
        claims = jwt.decode(
            token,
            key.key,
            algorithms=[algorithm],
            audience=list(rules.audience) or None,
            issuer=rules.issuer,
            leeway=rules.clock_skew_s,
            options={"require": ["exp"], "verify_aud": bool(rules.audience), "verify_sub": False},
        )
    except jwt.PyJWTError as refused:
        return NotValid(f"{type(refused).__name__}")
    except (ValueError, TypeError, OverflowError, RecursionError) as malformed:  # the cryptography library raises it
        return NotValid(f"the token is malformed: {type(malformed).__name__}")
    return _verified(claims, rules)


def _same_key(algorithm: str) -> tuple[str, ...]:
    """Whether the key fits the algorithm. An RSA key fits all RSA algorithms, although PyJWT assigns one of them to a
    key without `alg`.
    """
    family = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
    return family if algorithm in family else ()


def verify_unsecured(token: str, rules: TokenRules, now_s: float) -> TokenVerdict:
    """Check an unsigned token (`alg` none), like Kafka's unsecured validator. Anybody can make one."""
    parts = token.split(".")
    if len(token) > TOKEN_CHARS_MAX or len(parts) != 3 or parts[2]:
        return NotValid("the token is not an unsecured token")
    try:
        header, claims = (json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in parts[:2])
        expires_s, begins_s = float(claims["exp"]), float(claims.get("nbf", 0))
        is_unsecured = header["alg"] == "none"
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
        binascii.Error,
    ) as malformed:
        return NotValid(f"the token is malformed: {type(malformed).__name__}")
    if not is_unsecured:
        return NotValid("the token is signed, but unsecured tokens are expected")
    if not begins_s - rules.clock_skew_s <= now_s < expires_s + rules.clock_skew_s:
        return NotValid("the token is not valid now")
    return _verified(claims, rules)


def _verified(claims: Mapping[str, Any], rules: TokenRules) -> TokenVerdict:
    name, expires_s = claims.get(rules.sub_claim), claims.get("exp")
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARS_MAX or _SURROGATE.search(name):
        return NotValid(f"the token has no user name in its claim {rules.sub_claim}")
    scope = claims.get(rules.scope_claim, "")
    if not isinstance(scope, str | list):
        return NotValid(f"the claim {rules.scope_claim} of the token is not a scope")
    if not isinstance(expires_s, int | float) or not 0 < expires_s < 1 << 40:
        return NotValid("the token has no expiry time")
    return Verified(name, int(expires_s * 1000))
