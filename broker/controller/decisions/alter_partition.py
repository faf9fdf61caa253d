"""Another in-sync set, as the leader of a partition proposes it: a decision (R4, R17; KIP-497, KIP-903, KIP-841). Pure.

Owns what makes a proposal right, in Kafka's order and codes. Always true: one that is right becomes a row, whether it
changes the set or not; who joins has a session, and the broker epoch it reported in; the set stays at the effective
minimum or above it. Must not know offsets, nor how a row follows another (rows).
"""

from __future__ import annotations

from broker.controller.broker_rpc import ProposalsRequest
from broker.controller.decisions.decision import Decision
from broker.controller.decisions.fitness import FitnessByNode, judge
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.minimum import effective_min
from broker.metadata.records import LogPlace, Row
from broker.metadata.rows import proposed, rows_set
from broker.replication.isr_policy import PartitionProposal


def decide(
    image: ClusterImage, asked: ProposalsRequest, told: FitnessByNode | None = None
) -> Decision[tuple[ErrorCode, ...]]:
    """One code for each proposal, in order. `broker_reports`: see `moves.reassign`. ApiError STALE_BROKER_EPOCH: the
    asker has not this session."""
    if not image.has_session(asked.node_id, asked.broker_epoch):
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH, f"node {asked.node_id} has no session of broker epoch {asked.broker_epoch}"
        )
    rows: dict[LogPlace, Row] = {}
    codes, said_of = [], judge(told)
    for proposal in asked.proposals:
        topic_id, index = proposal.place
        topic = image.topics.get(topic_id)
        if topic is None:
            codes.append(ErrorCode.UNKNOWN_TOPIC_ID)
            continue
        # Named twice: the first one's row stands by then.
        again = proposal.place in rows
        code = ErrorCode.INVALID_UPDATE_VERSION if again else _judged(image, topic, asked.node_id, proposal)
        codes.append(code)
        if code is ErrorCode.NONE:
            members = tuple(node_id for node_id, _ in proposal.in_sync)
            rows[proposal.place] = proposed(
                image, topic, index, members, is_done=proposal.is_done, said=said_of(proposal.place)
            )
    return Decision(rows_set(rows), tuple(codes))


def _judged(image: ClusterImage, topic: Topic, node_id: int, proposal: PartitionProposal) -> ErrorCode:
    index = proposal.place[1]
    if not 0 <= index < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    row = topic.rows[index]
    if proposal.leader_epoch > row.leader_epoch or proposal.partition_epoch > row.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # its image is ahead of ours: another one decides
    if proposal.leader_epoch < row.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if node_id != row.leader:
        return ErrorCode.INVALID_REQUEST
    if proposal.partition_epoch < row.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    return _judged_set(image, topic, row, proposal.in_sync)


def _judged_set(image: ClusterImage, topic: Topic, row: Row, in_sync: tuple[tuple[int, int], ...]) -> ErrorCode:
    members = {node_id for node_id, _ in in_sync}
    if len(members) < len(in_sync) or not members <= {*row.replicas, *row.target} or row.leader not in members:
        return ErrorCode.INVALID_REQUEST
    # Nobody leaves a set that is below the minimum, not for another either. A leader that knows another minimum than we
    # do learns ours with the image, and proposes anew.
    if set(row.in_sync) - members and len(members) < effective_min(topic, row, image):
        return ErrorCode.INVALID_REQUEST
    for node_id, broker_epoch in in_sync:
        if node_id not in row.in_sync and not image.has_session(node_id, broker_epoch):
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE
