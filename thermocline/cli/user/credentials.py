"""Requests of `thermocline user`: the stock client, which salts passwords, sends changes, and our own client sends
queries."""

from __future__ import annotations

import secrets
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public in its docs, not re-exported for mypy
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from broker.error_codes import ErrorCode
from broker.security.sasl.scram import MECHANISM_OF, SALT_BYTES
from broker.security_protocol import SCRAM_SHA_256, SCRAM_SHA_512
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequestUser,
    DescribeUserScramCredentialsResponse,
)
from thermocline.cli.clients.connections import connect
from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, connected_admin, failing
from thermocline.cli.terminal.outcome import CommandFailed, no_right

_MECHANISMS: Final = {
    SCRAM_SHA_256: ScramMechanism.SCRAM_SHA_256,
    SCRAM_SHA_512: ScramMechanism.SCRAM_SHA_512,
}

Described = dict[str, list[tuple[str, int]]]
"""Mechanism and iterations of each credential, by user."""


def mechanisms(bootstrap: str, user: str) -> list[str]:
    """The user's mechanisms before `upsert`; none if there is no such user. Alter, which `upsert` needs, includes the
    right to describe."""
    asked = DescribeUserScramCredentialsRequest(users=[DescribeUserScramCredentialsRequestUser(name=user)])
    with connect(bootstrap) as client:
        answer = client.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, asked, DescribeUserScramCredentialsResponse)
    if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        raise no_right(f"adding user {user}", "Alter")
    _check(f"user {user}", answer.error_code, answer.error_message)
    for result in answer.results:
        if result.error_code != ErrorCode.RESOURCE_NOT_FOUND:
            _check(f"user {user}", result.error_code, result.error_message)
    return [MECHANISM_OF.get(info.mechanism, "") for result in answer.results for info in result.credential_infos]


def described(bootstrap: str, user: str | None = None) -> Described:
    """All users, or one user. Raises CommandFailed if that user has no credential. Uses our own client, because a
    refusal of the complete request crashes librdkafka 2.16 (SIGSEGV).
    """
    asked = None if user is None else [DescribeUserScramCredentialsRequestUser(name=user)]
    with connect(bootstrap) as client:
        request = DescribeUserScramCredentialsRequest(users=asked)
        answer = client.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, request, DescribeUserScramCredentialsResponse)
    what = "listing users" if user is None else f"user {user}"
    if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        raise no_right(what, "Describe")
    _check(what, answer.error_code, answer.error_message)
    for result in answer.results:
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            raise CommandFailed(f"there is no user {result.user} (SCRAM); see `thermocline user list`")
        _check(f"user {result.user}", result.error_code, result.error_message)
    return {
        result.user: sorted(
            (MECHANISM_OF.get(info.mechanism, str(info.mechanism)), info.iterations) for info in result.credential_infos
        )
        for result in sorted(answer.results, key=lambda result: result.user)
    }


def _check(what: str, error_code: int, message: str | None) -> None:
    if error_code != ErrorCode.NONE:
        raise CommandFailed(f"{what}: {message or ErrorCode(error_code).name}")


def upsert(bootstrap: str, user: str, mechanism: str, iterations: int, password: str) -> None:
    info = ScramCredentialInfo(_MECHANISMS[mechanism], iterations)
    # librdkafka's own salts have 64 bytes. Any client sees a user's salt, and another length than that of unknown
    # users would reveal that the user exists.
    salt = secrets.token_bytes(SALT_BYTES)
    _alter(bootstrap, user, UserScramCredentialUpsertion(user, info, password.encode(), salt), "adding")


def remove(bootstrap: str, user: str, mechanism: str) -> None:
    _alter(bootstrap, user, UserScramCredentialDeletion(user, _MECHANISMS[mechanism]), "deleting")


def _alter(
    bootstrap: str, user: str, change: UserScramCredentialUpsertion | UserScramCredentialDeletion, what: str
) -> None:
    admin = connected_admin(bootstrap)
    with failing(f"{what} user {user}"):
        futures = admin.alter_user_scram_credentials([change], request_timeout=REQUEST_TIMEOUT_S)
        try:
            futures[user].result()
        except KafkaException as refused:
            if refused.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                raise no_right(f"{what} user {user}", "Alter") from refused
            raise
