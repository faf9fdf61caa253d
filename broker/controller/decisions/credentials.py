"""Decides the SCRAM credentials of users, as Kafka's `ScramControlManager` does (KIP-554). Pure.

Every user of a request has a separate outcome; a user named twice is not changed. The client salts the password, so the
broker never receives a password.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from broker.controller.decisions.decision import Decision, check_room
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.image import ClusterImage
from broker.metadata.records import ScramCredential, ScramSecret
from broker.security.sasl.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISM_OF, keys_of

USERS_MAX: Final = 4_000  # users of one request, 5 µs each to derive their keys
_NAME_CHARS_MAX: Final = 1000
_SALT_BYTES_MAX: Final = 1000


class Deletion(NamedTuple):
    user: str
    mechanism: int  # Kafka's number of the mechanism


class Upsertion(NamedTuple):
    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"Upsertion({self.user!r}, {self.mechanism})"  # no salted password, because it suffices for a login


class Outcome(NamedTuple):
    user: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def alter(
    image: ClusterImage,
    deletions: Sequence[Deletion],
    upsertions: Sequence[Upsertion],
    image_bytes: int,
    fresh_secret: bytes,
) -> Decision[tuple[Outcome, ...]]:
    """Change credentials. Returns the outcome of each user: first of deletions, then of settings, then of refusals.
    `fresh_secret`: random, for a cluster that has users and no secret yet."""
    if upsertions:
        check_room(image_bytes)
    times = Counter([*(one.user for one in deletions), *(one.user for one in upsertions)])
    records: list[ScramCredential] = []
    refused: dict[str, Outcome] = {}
    changes: list[Deletion | Upsertion] = [*deletions, *upsertions]
    for change in changes:
        if times[change.user] > 1:
            error = ErrorCode.DUPLICATE_RESOURCE
            refused[change.user] = Outcome(
                change.user, error, "A user credential cannot be altered twice in the same request"
            )
            continue
        try:
            records.append(_record(image, change))
        except ApiError as why:
            refused[change.user] = Outcome(change.user, why.code, str(why))
    done = (Outcome(record.user) for record in records)
    first = secret(image, fresh_secret) if any(record.stored_key for record in records) else ()
    return Decision((*first, *records), (*done, *refused.values()))


def secret(image: ClusterImage, fresh: bytes) -> tuple[ScramSecret, ...]:
    """The record of a new secret, if the cluster has none."""
    return () if image.scram_secret else (ScramSecret(fresh),)


def _record(image: ClusterImage, change: Deletion | Upsertion) -> ScramCredential:
    """The record of a change. Raises ApiError, in Kafka's words."""
    if not change.user:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = MECHANISM_OF.get(change.mechanism)
    if mechanism is None:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, Deletion):
        if mechanism not in image.scram.get(change.user, {}):
            raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        return ScramCredential(change.user, mechanism)
    if change.iterations < ITERATIONS_MIN:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > ITERATIONS_MAX:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if len(change.user) > _NAME_CHARS_MAX or not 0 < len(change.salt) <= _SALT_BYTES_MAX or not change.salted_password:
        raise ApiError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"A user name has at most {_NAME_CHARS_MAX} characters, a salt has 1 to {_SALT_BYTES_MAX} bytes, and "
            "the salted password must not be empty",
        )
    keys = keys_of(mechanism, change.salted_password)
    return ScramCredential(change.user, mechanism, change.salt, keys.stored_key, keys.server_key, change.iterations)
