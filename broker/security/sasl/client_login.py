"""The client's side of a login, for connections between brokers and for the command line's client. Pure.

`ClientLogin` gives the tokens. The caller sends SaslHandshake 1, then each token in SaslAuthenticate 2, and passes the
responses to `check_handshake` and `check_answer`. With SCRAM the server also proves that it knows the password.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from broker.config.network.sasl import PasswordLogin
from broker.error_codes import ErrorCode, error_name
from broker.security.sasl import scram
from broker.security_protocol import PLAIN
from broker.wire.messages import SaslAuthenticateResponse, SaslHandshakeResponse

HANDSHAKE_VERSION: Final = 1
AUTHENTICATE_VERSION: Final = 2
_ERROR_CHARS_MAX: Final = 300


class LoginFailed(ConnectionError):
    """The server refused the login, or did not prove that it knows the password. The message has no secret."""


@dataclass(slots=True)
class SaltedPasswords:
    """Cache of salted passwords for the connections of one user. A cached password saves thousands of hashes."""

    _known: dict[tuple[bytes, int], bytes] = field(default_factory=dict, repr=False)

    def of(self, login: PasswordLogin, salt: bytes, iterations: int) -> bytes:
        """The salted password. The first call takes milliseconds."""
        found = self._known.get((salt, iterations))
        if found is None:
            found = scram.salted_password(login.mechanism, login.password, salt, iterations)
            self._known = {(salt, iterations): found}
        return found


class ClientLogin:
    """One login with a password. `nonce` must not have been used before."""

    def __init__(self, login: PasswordLogin, nonce: str, salted: SaltedPasswords | None = None) -> None:
        self._login = login
        self._nonce = nonce
        self._salted = salted or SaltedPasswords()
        self._is_scram = login.mechanism in scram.HASHES
        self._first = b""
        self._signature: bytes | None = None  # the signature expected from the server

    @property
    def mechanism(self) -> str:
        return self._login.mechanism

    def first_token(self) -> bytes:
        login = self._login
        if login.mechanism == PLAIN:
            return b"\0" + login.username.encode() + b"\0" + login.password.encode()
        assert self._is_scram, login.mechanism
        self._first = scram.client_first(login.username, self._nonce)
        return self._first

    def next_token(self, answer: bytes) -> bytes | None:
        """The next token, in answer to the server's last one; None if the login is complete. SCRAM's first salted
        password takes milliseconds, so a loop calls this in a worker. Raises LoginFailed."""
        if not self._is_scram:
            return None
        try:
            if self._signature is None:
                return self._final(answer)
            self._check(self._signature, answer)
            return None
        except scram.ScramSyntax as unreadable:
            raise LoginFailed(f"login by {self.mechanism}: the server's message: {unreadable}") from None

    def _final(self, answer: bytes) -> bytes:
        mechanism = self.mechanism
        server = scram.read_server_first(answer)
        if not server.nonce.startswith(self._nonce) or len(server.nonce) == len(self._nonce):
            raise LoginFailed(f"login by {mechanism}: the server's answer belongs to another login")
        salted = self._salted.of(self._login, server.salt, server.iterations)
        without_proof = f"c={b64encode(b'n,,').decode()},r={server.nonce}"
        bare = self._first.removeprefix(b"n,,")
        message = bare + b"," + answer + b"," + without_proof.encode()
        keys = scram.keys_of(mechanism, salted)
        self._signature = scram.server_signature(mechanism, keys.server_key, message)
        proof = scram.client_proof(mechanism, salted, message)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def _check(self, signature: bytes, answer: bytes) -> None:
        if not hmac.compare_digest(scram.read_server_final(answer), signature):
            raise LoginFailed(
                f"login by {self.mechanism}: the server did not prove that it knows the password; check that it is the "
                "right server"
            )


class BearerLogin:
    """One login with a token of OAUTHBEARER. `read` returns the token, and is called in a worker."""

    mechanism: Final = "OAUTHBEARER"

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read

    def first_token(self) -> bytes:
        return b"n,,\x01auth=Bearer " + self._read().strip().encode() + b"\x01\x01"

    def next_token(self, answer: bytes) -> bytes | None:
        if answer:
            raise LoginFailed(f"login by OAUTHBEARER: {answer[:_ERROR_CHARS_MAX].decode(errors='replace')}")
        return None


def check_handshake(mechanism: str, answer: SaslHandshakeResponse) -> None:
    """Check the response to SaslHandshake. Raises LoginFailed."""
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        raise LoginFailed(f"login by {mechanism}: the server offers only {', '.join(answer.mechanisms) or 'none'}")
    if answer.error_code != ErrorCode.NONE:
        raise LoginFailed(f"login by {mechanism}: {error_name(answer.error_code)}")


def check_answer(mechanism: str, answer: SaslAuthenticateResponse) -> bytes:
    """The server's token in the response. Raises LoginFailed."""
    if answer.error_code != ErrorCode.NONE:
        says = (answer.error_message or "")[:_ERROR_CHARS_MAX]
        raise LoginFailed(f"login by {mechanism}: {says or error_name(answer.error_code)}")
    return bytes(answer.auth_bytes)
