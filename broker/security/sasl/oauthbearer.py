"""OAUTHBEARER: a token of an identity provider in place of a password (RFC 7628, KIP-255, KIP-768).

The mechanism parses the client's messages; its caller verifies the token. The answer to a refused token is the RFC's
JSON. The login fails at the client's next message, which has to be one byte 0x01.
"""

from __future__ import annotations

import re
from typing import Final

from broker.security.sasl.mechanism import (
    Authenticated,
    Challenge,
    LoginRefused,
    NotValid,
    Step,
    TokenVerdict,
    Verification,
)

MESSAGE_BYTES_MAX: Final = 64 << 10
_SEPARATOR: Final = "\x01"
_BEGINNING: Final = re.compile(r"n,(?:a=((?:[^,=\x00\x01]|=2C|=3D)+))?,")
_TOKEN: Final = re.compile(r"(\w+) +([-_~+/.a-zA-Z0-9]+=*)", re.ASCII)
_REFUSED: Final = '{"status":"invalid_token"}'


class OAuthBearerServer:
    """One login."""

    def __init__(self) -> None:
        self._is_refused = False
        self._why = ""

    def evaluate(self, token: bytes) -> Step:
        """Check the client's message, or its last message after a refusal."""
        if self._is_refused:
            raise LoginRefused(_REFUSED, why=self._why)
        acts_as, bearer = _read(token)

        def then(verdict: TokenVerdict) -> Challenge | Authenticated:
            if isinstance(verdict, NotValid):
                self._is_refused, self._why = True, verdict.why
                return Challenge(_REFUSED.encode())
            if acts_as not in ("", verdict.name):
                raise LoginRefused(
                    "Authentication failed: Client requested an authorization id that is different from the token's "
                    "principal name",
                    verdict.name,
                )
            return Authenticated(verdict.name, b"", verdict.expires_ms)

        return Verification(bearer, then)


def _read(message: bytes) -> tuple[str, str]:
    """Authorization id and token of a client's initial response. Raises LoginRefused."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise LoginRefused(
            None, why=f"the OAUTHBEARER message has {len(message)} bytes, but at most {MESSAGE_BYTES_MAX} are read"
        )
    try:
        text = bytes(message).decode()
    except UnicodeDecodeError:
        raise LoginRefused(None, why="the OAUTHBEARER message is not UTF-8") from None
    head, *pairs = text.split(_SEPARATOR)
    begins = _BEGINNING.fullmatch(head)
    # Pairs KEY=VALUE follow, each with a separator at its end. One more separator ends the list.
    if begins is None or len(pairs) < 3 or pairs[-2:] != ["", ""]:
        raise LoginRefused(None, why="the OAUTHBEARER message cannot be read")
    values = [pair.partition("=")[2] for pair in pairs[:-2] if pair.partition("=")[0] == "auth"]
    found = _TOKEN.fullmatch(values[0]) if len(values) == 1 else None
    if found is None or found[1].lower() != "bearer":
        raise LoginRefused(None, why="the OAUTHBEARER message does not hold exactly one bearer token")
    acts_as = (begins[1] or "").replace("=2C", ",").replace("=3D", "=")
    return acts_as, found[2]
