"""Chooses the tier that serves a fetch. Pure.

An offset at or above the local log start is read locally; one between the log start and the local log start is read
from the bucket (KAFKA-15695).
"""

from __future__ import annotations

from enum import Enum


class Route(Enum):
    """Tier that serves a fetch."""

    HOT = "hot"
    COLD = "cold"
    OUT_OF_RANGE = "out of range"
    CATCHING_UP = "catching up"  # below the local log, not yet in the known manifest: fetch again


def route(
    offset: int,
    *,
    log_start_offset: int,
    local_log_start_offset: int,
    remote_end_offset: int,
    end_offset: int,
) -> Route:
    """The tier that serves `offset`. `end_offset`: exclusive end of visible offsets; a reader may wait there (the log
    end offset).

    Source: KIP-405; Kafka's ReplicaManager.readFromLog and UnifiedLog.checkLogStartOffset."""
    if offset < log_start_offset or offset > end_offset:
        return Route.OUT_OF_RANGE
    if offset >= local_log_start_offset:
        return Route.HOT
    if offset < remote_end_offset:
        return Route.COLD
    return Route.CATCHING_UP
