"""Verdict on a request: allowed, partly allowed, or refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.metadata.image import TopicFacts
from broker.security.authorizer.access import Unrestricted
from broker.security.authorizer.kinds import Operation, ResourceType
from broker.wire.message import Message
from seams.loop.turns import Turns, next_turn

T = TypeVar("T")

MESSAGES: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}
"""Kafka's words for these errors."""
TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TRANSACTION: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class KnownTopics(Protocol):
    """The topics of the image, for rules."""

    def name_of(self, topic_id: UUID) -> str | None: ...
    def facts(self, name: str) -> TopicFacts | None: ...


@dataclass(slots=True)
class Verdict:
    """The outcome of a rule. `request`: the allowed part, for the handler. If it is None, nothing is allowed, and the
    client gets `response`. `merge` adds the refused part to the handler's response; None if nothing has to be added.
    `refused`: refused rows of a produce response, which the produce flow adds."""

    request: Any = None
    response: Message | None = None
    merge: Callable[[Any], Awaitable[None]] | None = None
    refused: tuple[Any, ...] = ()


ALLOWED: Final = Verdict()
"""The request as it is."""

Split = Callable[[Unrestricted, Any, int, KnownTopics], Awaitable[Verdict]]
"""A rule: the client's access, its request, the API version, and the topics that exist. It only yields to the event
loop, in requests with very many rows."""


class Rule(msgspec.Struct, frozen=True):
    """One rule. `needs`: the operations and resource types that the rule may ask for."""

    needs: tuple[tuple[Operation, ResourceType], ...]
    split: Split


def refused_whole(response: Message) -> Verdict:
    return Verdict(response=response)


async def parted_by(rows: Iterable[T], is_allowed: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """The allowed rows and the refused rows. This yields to other work of the event loop."""
    allowed: list[T] = []
    refused: list[T] = []
    turns = Turns()
    for row in rows:
        (allowed if is_allowed(row) else refused).append(row)
        if turns.over():
            await next_turn()
    return allowed, refused


async def parted(
    access: Unrestricted, operation: Operation, kind: ResourceType, rows: Iterable[T], name_of: Callable[[T], str]
) -> tuple[list[T], list[T]]:
    """The rows whose resource is allowed, and the refused rows. Each name is authorized once."""
    known: dict[str, bool] = {}

    def is_allowed(row: T) -> bool:
        name = name_of(row)
        found = known.get(name)
        if found is None:
            found = known[name] = access.allows(operation, kind, name)
        return found

    return await parted_by(rows, is_allowed)


async def shown(
    access: Unrestricted, operation: Operation, kind: ResourceType, rows: Iterable[T], name_of: Callable[[T], str]
) -> list[T]:
    """The rows whose resource is allowed. The client did not name the rows, so denials are not audited."""
    allowed, _ = await parted_by(rows, lambda row: access.allows(operation, kind, name_of(row), audited=False))
    return allowed


def rest(request: Any, rows: list[Any], responses: str = "topics", **allowed: list[Any]) -> Verdict:
    """The verdict that reduces lists of the request to `allowed` (by field), and adds `rows` to the list `responses` of
    the response."""

    async def merge(response: Any) -> None:
        setattr(response, responses, [*getattr(response, responses), *rows])

    return Verdict(request=replace(request, **allowed), merge=merge)
