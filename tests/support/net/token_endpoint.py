"""A token endpoint (OAuth 2, RFC 6749) for clients that log in by OAUTHBEARER with `method=oidc`.

Owns the server, in a thread of the test's process, and the key with which a client signs assertions (RFC 7523). Its
tokens are those of `sasl_site`, so brokers that trust these keys believe them. Must not know Kafka.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from tests.support.net.http_stand_in import QuietHandler, http_server
from tests.support.processes.sasl_site import token

CLIENT: Final = ("a-client", "its-secret")
SCOPE: Final = "kafka"
KEY_PASSWORD: Final = "of-the-key"
_LIFE_S: Final = 600.0
_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_OF_A_CLOUD: Final = {"api-version", "resource", "client_id"}
"""Parameters that a cloud's metadata endpoint (Azure's IMDS) wants."""


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """`valid` gives tokens to who asks rightly; `malformed` gives something else, `expired` what was valid once."""

    valid: str
    malformed: str
    expired: str
    key_file: Path
    encrypted_key_file: Path


class _Refused(Exception):
    """By RFC 6749 5.2."""


def _check_form(form: Mapping[str, list[str]], authorization: str, key: rsa.RSAPublicKey) -> None:
    """Raises _Refused unless a form asks as the client may."""
    if form.get("scope", [SCOPE]) != [SCOPE]:
        raise _Refused("invalid_scope")
    if form["grant_type"] == [_JWT_BEARER]:
        try:
            jwt.decode(form["assertion"][0], key, ["RS256"], options={"verify_aud": False})
        except jwt.InvalidTokenError:
            raise _Refused("invalid_grant") from None
    elif authorization != "Basic " + base64.b64encode(":".join(CLIENT).encode()).decode():
        raise _Refused("invalid_client")


@contextlib.contextmanager
def token_endpoint(folder: Path, user: str) -> Iterator[TokenEndpoint]:
    """One whose tokens are of `user`; key files are written to `folder`."""
    key = rsa.generate_private_key(65537, 2048)

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            try:
                _check_form(parse_qs(body), self.headers.get("Authorization", ""), key.public_key())
            except _Refused as refused:
                self._answer(400, {"error": str(refused)})
            else:
                self._give()

        def do_GET(self) -> None:
            asked = parse_qs(urlsplit(self.path).query)
            if self.headers.get("Metadata") == "true" and asked.keys() >= _OF_A_CLOUD:
                self._give()
            else:
                self._answer(400, {"error": "invalid_request"})

        def _give(self) -> None:
            given = {
                "/valid": token(user, _LIFE_S),
                "/malformed": "no.token.at-all",
                "/expired": token(user, -_LIFE_S),
            }[urlsplit(self.path).path]
            self._answer(200, {"access_token": given, "expires_in": int(_LIFE_S), "token_type": "Bearer"})

        def _answer(self, status: int, content: Mapping[str, object]) -> None:
            self.reply(status, json.dumps(content))

    def write(name: str, encryption: KeySerializationEncryption) -> Path:
        file = folder / name
        file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        return file

    plain = write("client-key.pem", NoEncryption())
    encrypted = write("client-key-encrypted.pem", BestAvailableEncryption(KEY_PASSWORD.encode()))
    with http_server(Handler) as port:
        url = f"http://127.0.0.1:{port}"
        yield TokenEndpoint(f"{url}/valid", f"{url}/malformed", f"{url}/expired", plain, encrypted)
