"""ElectLeaders, ListPartitionReassignments: what has a leader needs none, and nothing moves.

Always true: the answers are those Apache Kafka gives for partitions with one replica; who asks for another leader than
the one there is hears that there is no other. Must not know how a cluster elects. Source: KIP-183, KIP-460, KIP-455.
"""

from __future__ import annotations

from typing import Final

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.handlers.cluster_view import ClusterView
from broker.metadata.records import NO_LEADER
from broker.wire.messages import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResponsePartition,
    ElectLeadersResponseTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

_PREFERRED: Final = 0
_UNCLEAN: Final = 1
_NAMED_MAX: Final = 10_000  # partitions, and topics, of one request


async def handle_elect_leaders(context: Context, request: ElectLeadersRequest, call: Call) -> ElectLeadersResponse:
    """Whoever has a leader needs none; asked for all (null), only topics are named, as Kafka leaves out the rest."""
    wanted, view = request.topic_partitions, ClusterView(context, call.peer.listener)
    if wanted is None:
        if request.election_type not in (_PREFERRED, _UNCLEAN):
            return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
        topics = [topic.name for topic in context.metadata.image.topics.values() if view.shows(topic)]
        found = [ElectLeadersResponseTopic(topic=name) for name in sorted(topics)]
        return ElectLeadersResponse(replica_election_results=found)
    if sum(max(1, len(topic.partitions)) for topic in wanted) > _NAMED_MAX:
        return ElectLeadersResponse(error_code=ErrorCode.POLICY_VIOLATION)
    known = request.election_type in (_PREFERRED, _UNCLEAN)
    return ElectLeadersResponse(
        error_code=ErrorCode.NONE if known or not wanted else ErrorCode.INVALID_REQUEST,
        replica_election_results=[
            ElectLeadersResponseTopic(
                topic=topic.topic,
                partition_result=[
                    _elected(context, view, request.election_type, topic.topic, index) for index in topic.partitions
                ],
            )
            for topic in wanted
        ],
    )


def _elected(
    context: Context, view: ClusterView, election_type: int, topic: str, index: int
) -> ElectLeadersResponsePartition:
    code, why = _verdict(context, view, election_type, topic, index)
    return ElectLeadersResponsePartition(partition_id=index, error_code=code, error_message=why)


def _verdict(context: Context, view: ClusterView, election_type: int, topic: str, index: int) -> tuple[ErrorCode, str]:
    if election_type not in (_PREFERRED, _UNCLEAN):
        return ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}"
    known = context.metadata.topic_named(topic)
    if known is None or not view.shows(known):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}"
    if not 0 <= index < known.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}"
    seen = view.partition(known, index)
    if seen.leader_id != NO_LEADER and (election_type == _UNCLEAN or seen.leader_id == seen.replicas[0]):
        return ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    if election_type == _UNCLEAN:
        code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    if election_type == _PREFERRED and seen.leader_id != NO_LEADER:
        return code, f"{topic}-{index} stays with its leader: elections on request are not served yet"
    only = "its only replica, broker" if len(seen.replicas) == 1 else "all its replicas, brokers"
    return code, f"{topic}-{index} is offline on {only} {', '.join(map(str, seen.replicas))}"


async def handle_list_partition_reassignments(
    context: Context, request: ListPartitionReassignmentsRequest, call: Call
) -> ListPartitionReassignmentsResponse:
    """None is under way."""
    return ListPartitionReassignmentsResponse(error_message=None)
