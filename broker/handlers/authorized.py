"""What a client may do where nobody authorizes: everything the resource knows (as Apache Kafka without an authorizer).

Owns the bit fields of `*_authorized_operations` (KIP-430): bit n is AclOperation n. Must not know who asks.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

NOT_ASKED: Final = -(2**31)
"""What the field holds when the request did not ask for it."""


class Every(IntEnum):
    """Every operation on a resource (Apache Kafka 4.3.1)."""

    TOPIC = 3_576  # READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS
    GROUP = 3_400  # READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS
    CLUSTER = 8_096  # CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE


def authorized_operations(every: Every, *, asked: bool) -> int:
    """The field's value for a resource that exists."""
    return every if asked else NOT_ASKED
