"""Kafka's numbers of resource types, pattern types, operations and permissions, and the operations of each resource.

Source: Kafka 4.3.1's ResourceType, PatternType, AclOperation, AclPermissionType; AclEntry.supportedOperations; KIP-430.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, TypeAlias

CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""
WILDCARD: Final = "*"
"""As the name of a literal pattern: every resource of the type. As a host: every host."""
EVERY_PRINCIPAL: Final = "User:*"


class ResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Kinds of resource patterns. ANY and MATCH occur only in filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


IMPLIED_BY: Final[Mapping[int, tuple[int, ...]]] = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
"""Operations whose ALLOW also allows the key. A DENY implies nothing."""

OPERATIONS_OF: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE),
}
"""The operations that exist on a resource, for `…_authorized_operations` (KIP-430)."""


def shown(name: str) -> str:
    """The name as Kafka's tools write it, for example `ClusterAction` for `CLUSTER_ACTION`."""
    return "".join(word.capitalize() for word in name.split("_"))


Kind: TypeAlias = type[ResourceType] | type[PatternType] | type[Operation] | type[Permission]


def is_kind(kind: Kind, number: int) -> bool:
    """Whether the number is a member of `kind` other than UNKNOWN."""
    return 0 < number < len(kind)


def kind_name(kind: Kind, number: int) -> str:
    """The name of the number, for example `TOPIC`. UNKNOWN if the number has no name."""
    return kind(number).name if is_kind(kind, number) else "UNKNOWN"
