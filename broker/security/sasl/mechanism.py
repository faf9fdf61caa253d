"""Interface of the server's SASL mechanisms: they take tokens and return the result of a login.

No I/O, no clock. A mechanism object serves one login. For any input it returns `Authenticated` or raises `LoginRefused`
after at most a few tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec


class LoginRefused(Exception):
    """The login failed. `says` is the message for the client, the same for a wrong user and a wrong password. If it is
    None, the message has only the mechanism's name. `user` is the claimed user, for the audit line."""

    def __init__(self, says: str | None, user: str = "", why: str = "") -> None:
        super().__init__(why or says or "invalid credentials")
        self.says = says
        self.user = user


class Challenge(NamedTuple):
    """The server's next token. The client has to send another token."""

    token: bytes


class Authenticated(NamedTuple):
    """The login succeeded as user `name`. `token`: the server's last token. `expires_ms`: expiry of the credential, by
    the wall clock."""

    name: str
    token: bytes = b""
    expires_ms: int | None = None


class Verified(msgspec.Struct, frozen=True):
    """A token is valid. The user is from its signed claims."""

    name: str
    expires_ms: int


class NotValid(msgspec.Struct, frozen=True):
    """A token is not valid. `why` is for the audit line, and never has the token in it."""

    why: str


TokenVerdict = Verified | NotValid


class Verification(msgspec.Struct, frozen=True):
    """A verification that runs in a worker, because it may take milliseconds: the token, and the continuation for the
    verdict."""

    token: str
    then: Callable[[TokenVerdict], Challenge | Authenticated]
    """Raises LoginRefused."""


Step = Challenge | Authenticated | Verification


class Mechanism(Protocol):
    def evaluate(self, token: bytes) -> Step:
        """Judge the client's next token. Raises LoginRefused."""
        ...
