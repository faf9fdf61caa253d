"""DescribeUserScramCredentials and AlterUserScramCredentials: users of SCRAM (KIP-554).

Keys never leave the broker: a description has only mechanisms and iterations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from broker.context import Call, Context
from broker.controller.decisions.credentials import USERS_MAX, Deletion, Upsertion
from broker.error_codes import ErrorCode
from broker.errors import code_of
from broker.metadata.image import ClusterImage
from broker.metadata.records import ScramCredential
from broker.security.audit import AuditEvent
from broker.security.sasl.scram import MECHANISM_OF, NUMBERS
from broker.wire import messages as wire
from logformat.errors import ThermoclineError

_TOO_MANY: Final = f"At most {USERS_MAX} users are named in one request"


async def handle_describe_user_scram_credentials(
    context: Context, request: wire.DescribeUserScramCredentialsRequest, call: Call
) -> wire.DescribeUserScramCredentialsResponse:
    """Null or, as in Kafka, an empty list requests all users."""
    image = context.metadata.image
    names = [user.name for user in request.users or ()]
    if len(names) > USERS_MAX:
        return wire.DescribeUserScramCredentialsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=_TOO_MANY)
    times = Counter(names or list(image.scram))
    return wire.DescribeUserScramCredentialsResponse(
        results=[_described(image, user, is_twice=count > 1) for user, count in times.items()]
    )


def _described(image: ClusterImage, user: str, *, is_twice: bool) -> wire.DescribeUserScramCredentialsResponseResult:
    result = wire.DescribeUserScramCredentialsResponseResult
    if is_twice:
        says = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        return result(user, ErrorCode.DUPLICATE_RESOURCE, says)
    credentials = image.scram.get(user)
    if not credentials:
        says = f"Attempt to describe a user credential that does not exist: {user}"
        return result(user, ErrorCode.RESOURCE_NOT_FOUND, says)
    return result(user, credential_infos=[_info(credential) for credential in _in_order(credentials.values())])


def _in_order(credentials: Iterable[ScramCredential]) -> list[ScramCredential]:
    return sorted(credentials, key=lambda one: NUMBERS[one.mechanism])


def _info(credential: ScramCredential) -> wire.DescribeUserScramCredentialsResponseCredentialInfo:
    return wire.DescribeUserScramCredentialsResponseCredentialInfo(NUMBERS[credential.mechanism], credential.iterations)


async def handle_alter_user_scram_credentials(
    context: Context, request: wire.AlterUserScramCredentialsRequest, call: Call
) -> wire.AlterUserScramCredentialsResponse:
    """Set and delete credentials; one result for each user."""
    deletions = [Deletion(one.name, one.mechanism) for one in request.deletions]
    upsertions = [
        Upsertion(one.name, one.mechanism, one.iterations, bytes(one.salt), bytes(one.salted_password))
        for one in request.upsertions
    ]
    result = wire.AlterUserScramCredentialsResponseResult
    changes: list[Deletion | Upsertion] = [*deletions, *upsertions]
    if len(changes) > USERS_MAX:
        # One answer for all users, because an answer for each user would take seconds.
        refused = result(changes[0].user, ErrorCode.INVALID_REQUEST, _TOO_MANY)
        return wire.AlterUserScramCredentialsResponse(results=[refused])
    try:
        outcomes = await context.controller.alter_credentials(deletions, upsertions)
    except ThermoclineError as why:
        users = dict.fromkeys(change.user for change in changes)
        return wire.AlterUserScramCredentialsResponse(results=[result(user, code_of(why), str(why)) for user in users])
    done = {outcome.user for outcome in outcomes if outcome.error is ErrorCode.NONE}
    made = [change for change in changes if change.user in done]
    context.clients.audit.note_changes(AuditEvent.CREDENTIALS, call.peer.principal, call.peer.address, made, _shown)
    return wire.AlterUserScramCredentialsResponse(
        results=[result(outcome.user, outcome.error, outcome.message) for outcome in outcomes]
    )


def _shown(change: Deletion | Upsertion) -> str:
    verb = "delete" if isinstance(change, Deletion) else "set"
    return f"{verb} the {MECHANISM_OF[change.mechanism]} credential of User:{change.user}"
