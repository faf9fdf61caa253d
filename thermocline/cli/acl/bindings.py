"""Translates flags to ACLs: resources, principals, and the shortcuts for a producer and a consumer. Pure.

The shortcuts are those of `kafka-acls.sh`. A producer may WRITE, DESCRIBE and CREATE its topics; WRITE and DESCRIBE its
transactional ids; with `--idempotent` IDEMPOTENT_WRITE on the cluster. A consumer may READ and DESCRIBE its topics and
READ its groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import astuple

from broker.metadata.records import Acl
from broker.security.authorizer.acl_filter import AclFilter
from broker.security.authorizer.kinds import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    shown,
)

OPERATIONS: Final = {shown(operation.name).lower(): operation for operation in Operation if operation > Operation.ANY}
"""Operations by the names of Kafka's tools, in lower case: `describeconfigs`."""

_PRODUCES: Final = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_CONSUMES: Final = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}


class Resource(NamedTuple):
    kind: ResourceType
    name: str


class Wanted(NamedTuple):
    """Arguments of `acl add` and `acl delete`. Without operations and without a shortcut, all operations are meant."""

    resources: tuple[Resource, ...]
    prefixed: bool
    allowed: tuple[str, ...]
    denied: tuple[str, ...]
    hosts: tuple[str, ...]
    operations: tuple[Operation, ...]
    produces: bool = False
    consumes: bool = False
    idempotent: bool = False


def parse_operation(text: str) -> Operation:
    """Parse an operation in the form of Kafka's tools, in upper or lower case: `Read`, `DescribeConfigs`,
    `describe_configs`. Raises ValueError."""
    found = OPERATIONS.get(text.replace("_", "").replace("-", "").lower())
    if found is None:
        names = ", ".join(shown(operation.name) for operation in OPERATIONS.values())
        raise ValueError(f"{text!r} is not an operation; there are {names}")
    return found


def parse_principal(text: str) -> str:
    """`User:alice`. Raises ValueError."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise ValueError(f"{text!r} is not a principal: write User:alice, or User:* for everybody")
    return text


def bindings(wanted: Wanted) -> list[Acl]:
    """The ACLs to add, each once. Raises ValueError for an operation that its resource does not have."""
    found: dict[Acl, None] = {}
    pattern = PatternType.PREFIXED if wanted.prefixed else PatternType.LITERAL
    for resource, operations in _operations(wanted):
        kind_pattern = PatternType.LITERAL if resource.kind == ResourceType.CLUSTER else pattern
        for principals, permission in ((wanted.allowed, Permission.ALLOW), (wanted.denied, Permission.DENY)):
            for principal in principals:
                for host in wanted.hosts or (WILDCARD,):
                    for operation in operations:
                        found[
                            Acl(resource.kind, resource.name, kind_pattern, principal, host, operation, permission)
                        ] = None
    return list(found)


def _operations(wanted: Wanted) -> list[tuple[Resource, Sequence[Operation]]]:
    found: list[tuple[Resource, Sequence[Operation]]] = []
    for resource in wanted.resources:
        if wanted.produces or wanted.consumes:
            of_kind = [*(_PRODUCES.get(resource.kind, ()) if wanted.produces else ())]
            of_kind += _CONSUMES.get(resource.kind, ()) if wanted.consumes else ()
            found.append((resource, list(dict.fromkeys(of_kind))))
            continue
        for operation in wanted.operations:
            if operation != Operation.ALL and operation not in OPERATIONS_OF[resource.kind]:
                exist = ", ".join(shown(each.name) for each in (*OPERATIONS_OF[resource.kind], Operation.ALL))
                raise ValueError(
                    f"{shown(operation.name)} does not apply to a {shown(resource.kind.name)}; there are {exist}"
                )
        found.append((resource, wanted.operations or (Operation.ALL,)))
    if wanted.idempotent:
        found.append((Resource(ResourceType.CLUSTER, CLUSTER_NAME), (Operation.IDEMPOTENT_WRITE,)))
    return found


def filters(resources: Sequence[Resource], pattern: PatternType, principals: Sequence[str]) -> list[AclFilter]:
    """Filters of `acl list` and `acl delete --principal`: for each resource (none: any) and each principal (none:
    any)."""
    return [
        AclFilter(
            ResourceType.ANY if resource is None else resource.kind,
            None if resource is None else resource.name,
            PatternType.ANY if resource is None else pattern,
            principal,
        )
        for resource in resources or (None,)
        for principal in principals or (None,)
    ]


def deletions(wanted: Wanted) -> list[AclFilter]:
    """Filters of `acl delete`: the named ACLs; without a principal, host or operation they match any."""
    if wanted.produces or wanted.consumes:
        found = [AclFilter(*astuple(acl)) for acl in bindings(wanted)]
        return found if wanted.hosts else [each._replace(host=None) for each in found]
    pattern = PatternType.PREFIXED if wanted.prefixed else PatternType.LITERAL
    who: list[tuple[str | None, Permission]] = [(each, Permission.ALLOW) for each in wanted.allowed]
    who += [(each, Permission.DENY) for each in wanted.denied]
    return [
        AclFilter(
            resource.kind,
            resource.name,
            PatternType.LITERAL if resource.kind == ResourceType.CLUSTER else pattern,
            principal,
            host,
            operation,
            permission,
        )
        for resource in wanted.resources
        for principal, permission in who or [(None, Permission.ANY)]
        for host in wanted.hosts or (None,)
        for operation in wanted.operations or (Operation.ANY,)
    ]
