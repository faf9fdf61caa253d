"""Decides which ACL bindings to create and remove. Pure.

The creation of an existing binding succeeds without a record. One request creates or removes at most `RECORDS_MAX`
bindings. Source: Kafka 4.3.1's AclControlManager, AclApis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from broker.controller.decisions.decision import Decision, check_room
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.image import ClusterImage
from broker.metadata.records import Acl, AclsChanged
from broker.security.authorizer.acl_filter import AclFilter, filter_refusal
from broker.security.authorizer.kinds import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    is_kind,
    kind_name,
)

RECORDS_MAX: Final = 10_000  # Kafka's MAX_RECORDS_PER_USER_OP
SCANS_MAX: Final = 20
"""Filters of one request that may match ACLs of many patterns. Each is compared with every ACL: 10 000 take 5 ms."""

Created: TypeAlias = ApiError | None
Deleted: TypeAlias = ApiError | tuple[Acl, ...]


def create(image: ClusterImage, wanted: Sequence[Acl], image_bytes: int) -> Decision[list[Created]]:
    """Add each binding, or return the reason of its refusal."""
    answer: list[Created] = []
    added: dict[Acl, None] = {}
    for acl in wanted:
        refusal = _refusal(acl)
        answer.append(None if refusal is None else ApiError(ErrorCode.INVALID_REQUEST, refusal))
        if refusal is None:
            added[acl] = None
    existing = frozenset(image.acls)
    new = tuple(acl for acl in added if acl not in existing)
    if not new:
        return Decision((), answer)
    if len(new) > RECORDS_MAX:
        raise _too_many("create")
    check_room(image_bytes)
    return Decision((AclsChanged(added=new),), answer)


def delete(image: ClusterImage, filters: Sequence[AclFilter]) -> Decision[list[Deleted]]:
    """Remove the bindings that each filter matches. A binding that two filters match is in both answers."""
    answer: list[Deleted] = []
    removed: dict[Acl, None] = {}
    if len(filters) > RECORDS_MAX:
        raise _too_many("remove")
    places = [wanted.place for wanted in filters]
    scans = places.count(None)
    if scans > SCANS_MAX:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"at most {SCANS_MAX} filters of one request may leave resource type, name or pattern type open",
        )
    by_place: dict[tuple[int, str, int], list[Acl]] = {}
    for acl in image.acls if scans < len(places) else ():
        by_place.setdefault((acl.resource_type, acl.resource_name, acl.pattern_type), []).append(acl)
    for wanted, place in zip(filters, places, strict=True):
        if (refusal := filter_refusal(wanted)) is not None:
            answer.append(ApiError(ErrorCode.INVALID_REQUEST, refusal))
            continue
        among = image.acls if place is None else by_place.get(place, ())
        found = tuple(acl for acl in among if wanted.matches(acl))
        answer.append(found)
        if found:
            removed |= dict.fromkeys(found)
        if len(removed) > RECORDS_MAX:
            raise _too_many("remove")
    return Decision((AclsChanged(removed=tuple(removed)),) if removed else (), answer)


def _too_many(verb: str) -> ApiError:
    return ApiError(ErrorCode.POLICY_VIOLATION, f"one request may {verb} at most {RECORDS_MAX} ACLs")


def _refusal(acl: Acl) -> str | None:
    """The reason why the binding is invalid, in Kafka's words."""
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not acl.resource_name:
        return "Invalid empty resource name"
    if not is_kind(ResourceType, acl.resource_type) or acl.resource_type == ResourceType.ANY:
        return f"Invalid resourceType {kind_name(ResourceType, acl.resource_type)}"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {kind_name(PatternType, acl.pattern_type)}"
    if not is_kind(Operation, acl.operation) or acl.operation == Operation.ANY:
        return f"Invalid operation {kind_name(Operation, acl.operation)}"
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        return f"Invalid permissionType {kind_name(Permission, acl.permission)}"
    if ":" not in acl.principal:
        return (
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type from "
            "the principal name)"
        )
    return None
