"""Which brokers hold the partitions that are made: as a request says, or as the controller chooses.

Pure. Owns the choice. Always true: what comes out names registered brokers only, none twice for a partition; the first
replica is the one to lead; a refusal is in Kafka's words. Must not know topics, nor rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.image import ClusterImage

Replicas: TypeAlias = tuple[int, ...]
"""Node ids of one partition, the one to lead first."""

_WRONG = ErrorCode.INVALID_REPLICA_ASSIGNMENT


def brokers(image: ClusterImage) -> list[int]:
    """Who can be given partitions, by node id."""
    return sorted(image.nodes)


def spread(nodes: Sequence[int], count: int, replication_factor: int, first: int = 0) -> list[Replicas]:
    """The replicas of `count` partitions, leaders and followers striped over `nodes`; the first of them is `first`.

    Raises ApiError INVALID_REPLICATION_FACTOR when there are too few.
    """
    if replication_factor > len(nodes):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(nodes)} broker(s) are registered or some "
            "brokers have all their log directories cordoned.",
        )
    return [
        tuple(nodes[(index + further) % len(nodes)] for further in range(replication_factor))
        for index in range(first, first + count)
    ]


def assigned(nodes: Sequence[int], assignments: Sequence[tuple[int, Sequence[int]]]) -> list[Replicas]:
    """The replicas of a new topic by (partition, replicas) pairs; ApiError for what makes no topic."""
    found: dict[int, Replicas] = {}
    for index, node_ids in assignments:
        if index in found:
            raise ApiError(_WRONG, f"Found multiple manual partition assignments for partition {index}")
        found[index] = _checked(nodes, node_ids)
    if found.keys() != set(range(len(found))):
        raise ApiError(_WRONG, "partitions should be a consecutive 0-based integer sequence")
    return [found[index] for index in range(len(found))]


def added(nodes: Sequence[int], assignments: Sequence[Sequence[int]], count: int) -> list[Replicas]:
    """The replicas of `count` partitions that a topic gets in addition; ApiError unless there is one for each."""
    if len(assignments) != count:
        raise ApiError(
            _WRONG,
            f"Attempted to add {count} additional partition(s), but only {len(assignments)} assignment(s) were "
            "specified.",
        )
    return [_checked(nodes, node_ids) for node_ids in assignments]


def _checked(nodes: Sequence[int], node_ids: Sequence[int]) -> Replicas:
    if not node_ids:
        raise ApiError(_WRONG, "The manual partition assignment includes an empty replica list.")
    last = None
    for node_id in sorted(node_ids):
        if node_id not in nodes:
            raise ApiError(
                _WRONG,
                f"The manual partition assignment includes broker {node_id}, but no such broker is registered.",
            )
        if node_id == last:
            raise ApiError(_WRONG, f"The manual partition assignment includes the broker {node_id} more than once.")
        last = node_id
    return tuple(node_ids)
