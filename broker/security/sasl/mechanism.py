"""What a SASL mechanism of the server is: tokens in, and what became of the login out. No I/O, no clock.

A mechanism judges one login and is dropped after it. Whatever bytes come, in whatever order, it ends by returning
`Authenticated` or by raising `LoginRefused`, after at most a few tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class LoginRefused(Exception):
    """The login failed. `says` is for the client; it is the same whether the user or the password was wrong. None:
    nothing but the mechanism's name. `user` is who it claimed to be, for the audit line."""

    def __init__(self, says: str | None, user: str = "", why: str = "") -> None:
        super().__init__(why or says or "invalid credentials")
        self.says = says
        self.user = user


class Challenge(NamedTuple):
    """The server's next token; the client has to send another."""

    token: bytes


class Authenticated(NamedTuple):
    """The client is `name`; `token` is the server's last one. `expires_ms`: wall clock, when its credential does."""

    name: str
    token: bytes = b""
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """A token's user, by its signed claims."""

    name: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class NotValid:
    """A token is not valid; `why` is for the audit line, and never has the token."""

    why: str


TokenVerdict = Verified | NotValid


@dataclass(frozen=True, slots=True)
class Verification:
    """A step that takes milliseconds, to be done in a worker: the token to verify, and what follows its verdict."""

    token: str
    then: Callable[[TokenVerdict], Challenge | Authenticated]
    """Raises LoginRefused."""


Step = Challenge | Authenticated | Verification


class Mechanism(Protocol):
    def evaluate(self, token: bytes) -> Step:
        """Judge the client's next token. Raises LoginRefused."""
        ...
