"""PLAIN: user and password in one token (RFC 4616). The client sends both in the clear, so the listener should use TLS.

The login of an unknown user takes the same time and gets the same response as one with a wrong password.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from broker.security.sasl.mechanism import Authenticated, LoginRefused

_NOT_A_PASSWORD: Final = bytes(sha256().digest_size)
_WRONG: Final = "Authentication failed: Invalid username or password"


class PlainServer:
    """One login by PLAIN. `find`: the SHA-256 of a user's present password (`password_digests`); None: there is no such
    user."""

    def __init__(self, find: Callable[[str], bytes | None]) -> None:
        self._find = find

    def evaluate(self, token: bytes) -> Authenticated:
        """Judge the only token: [authorization id] NUL user NUL password."""
        parts = token.split(b"\0")
        if len(parts) != 3:
            raise LoginRefused(None, why=f"a PLAIN token has 3 parts, but this one has {len(parts)}")
        try:
            acts_as, user, password = (part.decode() for part in parts)
        except UnicodeDecodeError:
            raise LoginRefused(None, why="the PLAIN token is not UTF-8") from None
        if not user:
            raise LoginRefused("Authentication failed: username not specified")
        if not password:
            raise LoginRefused("Authentication failed: password not specified", user)
        known = self._find(user)
        is_right = compare_digest(sha256(password.encode()).digest(), known or _NOT_A_PASSWORD)
        if known is None or not is_right:
            raise LoginRefused(_WRONG, user)
        if acts_as not in ("", user):
            raise LoginRefused(
                "Authentication failed: Client requested an authorization id that is different from username", user
            )
        return Authenticated(user)


def password_digests(passwords: Mapping[str, str]) -> dict[str, bytes]:
    """Digests of the passwords by user. They have equal length, so the time of a comparison does not depend on a
    password."""
    return {user: sha256(password.encode()).digest() for user, password in passwords.items()}
