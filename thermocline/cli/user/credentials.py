"""The requests behind `thermocline user`, by the stock client."""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public in its docs, not re-exported for mypy
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from broker.config.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, connected_admin, failing

_MECHANISMS: Final = {
    SCRAM_SHA_256: ScramMechanism.SCRAM_SHA_256,
    SCRAM_SHA_512: ScramMechanism.SCRAM_SHA_512,
}
_NAMES: Final = {number: name for name, number in _MECHANISMS.items()}

Described = dict[str, list[tuple[str, int]]]
"""Mechanism and iterations of each credential, by user."""


def described(bootstrap: str, user: str | None = None) -> Described:
    """All users, or one. CommandFailed when that one has no credential."""
    admin = connected_admin(bootstrap)
    if user is None:
        with failing("listing users"):
            everybody: Any = admin.describe_user_scram_credentials(request_timeout=REQUEST_TIMEOUT_S)
            found = everybody.result()
    else:
        with failing(f"user {user}"):
            each: Any = admin.describe_user_scram_credentials([user], request_timeout=REQUEST_TIMEOUT_S)
            found = {user: each[user].result()}
    return {
        name: sorted(
            (_NAMES.get(info.mechanism, str(info.mechanism)), info.iterations)
            for info in found[name].scram_credential_infos
        )
        for name in sorted(found)
    }


def upsert(bootstrap: str, user: str, mechanism: str, iterations: int, password: str) -> None:
    info = ScramCredentialInfo(_MECHANISMS[mechanism], iterations)
    _alter(bootstrap, user, UserScramCredentialUpsertion(user, info, password.encode()), "adding")


def remove(bootstrap: str, user: str, mechanism: str) -> None:
    _alter(bootstrap, user, UserScramCredentialDeletion(user, _MECHANISMS[mechanism]), "deleting")


def _alter(
    bootstrap: str, user: str, change: UserScramCredentialUpsertion | UserScramCredentialDeletion, what: str
) -> None:
    admin = connected_admin(bootstrap)
    with failing(f"{what} user {user}"):
        futures = admin.alter_user_scram_credentials([change], request_timeout=REQUEST_TIMEOUT_S)
        futures[user].result()
