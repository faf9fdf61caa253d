"""Replica assignments that a request brings itself: what Kafka refuses, in its words.

Pure. Always true: what passes names this broker alone, once, for every partition from 0. Must not know topics.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.error_codes import ErrorCode
from broker.errors import ApiError

_WRONG = ErrorCode.INVALID_REPLICA_ASSIGNMENT


def check_replicas(broker_ids: Sequence[int], node_id: int) -> None:
    """ApiError unless the replicas of one partition are this broker."""
    if not broker_ids:
        raise ApiError(_WRONG, "The manual partition assignment includes an empty replica list.")
    for at, broker_id in enumerate(sorted(broker_ids)):
        if broker_id != node_id:
            raise ApiError(
                _WRONG,
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered.",
            )
        if at:
            raise ApiError(_WRONG, f"The manual partition assignment includes the broker {broker_id} more than once.")


def count_assigned(assignments: Sequence[tuple[int, Sequence[int]]], node_id: int) -> int:
    """How many partitions a new topic gets by (partition, replicas) pairs; ApiError for what makes no topic."""
    seen: set[int] = set()
    for index, broker_ids in assignments:
        if index in seen:
            raise ApiError(_WRONG, f"Found multiple manual partition assignments for partition {index}")
        seen.add(index)
        check_replicas(broker_ids, node_id)
    if seen != set(range(len(seen))):
        raise ApiError(_WRONG, "partitions should be a consecutive 0-based integer sequence")
    return len(seen)


def check_added(assignments: Sequence[Sequence[int]], added: int, node_id: int) -> None:
    """ApiError unless there is one assignment for each partition that a topic gets in addition."""
    if len(assignments) != added:
        raise ApiError(
            _WRONG,
            f"Attempted to add {added} additional partition(s), but only {len(assignments)} assignment(s) were "
            "specified.",
        )
    for broker_ids in assignments:
        check_replicas(broker_ids, node_id)
