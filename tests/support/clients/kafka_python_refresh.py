"""Mends kafka-python for tests that end brokers.

kafka-python 3.0.12 never asks for metadata again after a reset connection: the loop that asks ends by any error but a
KafkaError. Its producer then writes to the old leader for ever, which answers NOT_LEADER_OR_FOLLOWER.
"""

from __future__ import annotations

from typing import Any

from kafka.cluster import ClusterMetadata
from kafka.errors import KafkaConnectionError

_refresh_metadata = ClusterMetadata.refresh_metadata


async def _refresh(self: Any, node_id: int | None = None) -> None:
    try:
        await _refresh_metadata(self, node_id)
    except OSError as failed:
        raise KafkaConnectionError(str(failed)) from failed


def survive_resets() -> None:
    """Let the clients of this process ask for metadata again after a reset."""
    ClusterMetadata.refresh_metadata = _refresh
