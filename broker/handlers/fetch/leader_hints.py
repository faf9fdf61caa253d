"""What a fetch is told of partitions that this broker does not lead, and who does (KIP-951).

Owns the fields that spare a client its look for the new leader. Always true: a leader is named only where the image has
one, and its address only where the client's listener reaches it. Must not know how partitions are led. Source: Kafka
4.3.1's `KafkaApis.handleFetchRequest`.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.context import Context
from broker.error_codes import ErrorCode
from broker.fetch_sessions.session import Target
from broker.handlers.metadata.cluster_view import broker_at
from broker.metadata.records import NO_LEADER
from broker.partition.registry import Registry
from broker.wire.messages import FetchResponseLeaderIdAndEpoch, FetchResponseNodeEndpoint, FetchResponsePartition


def refuse(registry: Registry, topic: str, answer: FetchResponsePartition) -> bool:
    """Say in `answer` why the partition is not led here; whether the client knows from it where to go."""
    answer.error_code = registry.refusal(topic, answer.partition_index)
    if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        answer.aborted_transactions = None
    row = registry.led_elsewhere(topic, answer.partition_index)
    if row is None:
        return False
    answer.current_leader = FetchResponseLeaderIdAndEpoch(leader_id=row.leader, leader_epoch=row.leader_epoch)
    return row.leader != NO_LEADER


def leaders_of(
    context: Context, listener: str, refused: Iterable[tuple[Target, FetchResponsePartition]]
) -> list[FetchResponseNodeEndpoint]:
    """Where the leaders are that these answers name, each once."""
    leaders = {
        answer.current_leader.leader_id: None
        for _, answer in refused
        if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and answer.current_leader is not None
    }
    found = (broker_at(context, listener, node_id) for node_id in leaders)
    return [FetchResponseNodeEndpoint(*each) for each in found if each is not None]
