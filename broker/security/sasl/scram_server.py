"""SCRAM-SHA-256 and SCRAM-SHA-512, the server's side (RFC 5802, KIP-84).

The salt of a user without a credential is derived from the name and a secret, so it is the same each time. The login
then fails at the end, like one with a wrong password. The messages thus do not reveal whether a user exists (S4).
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Callable

from broker.metadata.records import ScramCredential
from broker.security.sasl import scram
from broker.security.sasl.mechanism import Authenticated, Challenge, LoginRefused

FindCredential = Callable[[str, str], ScramCredential | None]
"""By user and mechanism."""


class ScramServer:
    """One login. `nonce`: a server nonce that was never used before. `secret`: the salts of unknown users are derived
    from it."""

    def __init__(self, mechanism: str, find: FindCredential, nonce: str, secret: bytes) -> None:
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce
        self._secret = secret
        self._first: scram.ClientFirst | None = None
        self._credential: ScramCredential
        self._server_first = ""

    def evaluate(self, token: bytes) -> Challenge | Authenticated:
        """Judge the client's first message, and at the second call its final message."""
        user = self._first.user if self._first is not None else ""
        try:
            return self._begin(token) if self._first is None else self._end(self._first, token)
        except scram.ScramSyntax as unreadable:
            raise LoginRefused(None, user, why=f"SCRAM: {unreadable}") from None

    def _begin(self, token: bytes) -> Challenge:
        first = scram.read_client_first(token)
        if first.acts_as not in ("", first.user):
            raise LoginRefused(
                "Authentication failed: Client requested an authorization id that is different from username",
                first.user,
            )
        found = self._find(first.user, self._mechanism)
        decoy = self._decoy(first.user)
        self._credential = decoy if found is None else found
        nonce = first.nonce + self._nonce
        self._server_first = scram.server_first(nonce, self._credential.salt, self._credential.iterations)
        self._first = first
        return Challenge(self._server_first.encode())

    def _end(self, first: scram.ClientFirst, token: bytes) -> Authenticated:
        final = scram.read_client_final(token)
        # Kafka's client sends the binding of `n,,` even if it names an authorization id.
        if final.binding not in (first.gs2.encode(), b"n,,"):
            raise LoginRefused(None, first.user, why="the client changed the channel binding during the login")
        if not hmac.compare_digest(final.nonce, first.nonce + self._nonce):
            raise LoginRefused(None, first.user, why="the nonce belongs to another login")
        message = f"{first.bare},{self._server_first},{final.without_proof}".encode()
        credential = self._credential
        is_right = scram.is_proof(self._mechanism, credential.stored_key, message, final.proof)
        signature = scram.server_signature(self._mechanism, credential.server_key, message)
        # Minutes may have passed since the first message: the user may be deleted, or have another password.
        is_current = self._find(first.user, self._mechanism) == credential
        if not (is_right and is_current):
            raise LoginRefused(
                None, first.user, why="the user does not exist for this mechanism, or the password is wrong"
            )
        return Authenticated(first.user, b"v=" + b64encode(signature))

    def _decoy(self, user: str) -> ScramCredential:
        """A credential that no password matches."""
        key = hmac.digest(self._secret, f"{self._mechanism}:{user}".encode(), "sha512")
        digest_bytes = 64 if scram.HASHES[self._mechanism] == "sha512" else 32
        return ScramCredential(
            user, self._mechanism, key[: scram.SALT_BYTES], key[:digest_bytes], key[:digest_bytes], scram.ITERATIONS_MIN
        )
