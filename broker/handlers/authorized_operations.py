"""What a client may do, where the answer has a field for it: everything, for there is no authorizer.

Owns the bits. Always true: asked or not, the number is what Kafka 4.3.1 without an authorizer answers. Source: KIP-430;
`AclOperation` (the bits) and `AclEntry.supportedOperations` (which a kind of resource has).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

NOT_ASKED: Final = -(1 << 31)


class Operations(IntEnum):
    """All operations on a kind of resource. Bits: read 3, write 4, create 5, delete 6, alter 7, describe 8, cluster
    action 9, describe configs 10, alter configs 11, idempotent write 12."""

    TOPIC = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11
    CLUSTER = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12
    GROUP = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


def authorized_operations(operations: Operations, *, asked: bool) -> int:
    """The value of an `…_authorized_operations` field."""
    return int(operations) if asked else NOT_ASKED
