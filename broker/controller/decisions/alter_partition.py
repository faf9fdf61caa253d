"""Decides in-sync set proposals of leaders (R4, R17; KIP-497, KIP-903, KIP-841), in Kafka's order and codes. Pure.

A valid proposal becomes a row, whether it changes the set or not. A joiner has a session with the broker epoch of its
report. The set stays at or above the effective minimum.
"""

from __future__ import annotations

from broker.controller.broker_rpc import ProposalsRequest
from broker.controller.decisions.decision import Decision
from broker.controller.decisions.fitness import FitnessByNode, judge
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.data_configs import effective_min
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import LogPlace, Row
from broker.metadata.rows import proposed, rows_set
from broker.replication.isr_policy import PartitionProposal


def decide(
    image: ClusterImage, asked: ProposalsRequest, told: FitnessByNode | None = None
) -> Decision[tuple[ErrorCode, ...]]:
    """One code for each proposal, in order. `told`: see `reassignments.reassign`. ApiError STALE_BROKER_EPOCH: the
    leader does not have this session."""
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
        # The partition is named twice, and the first proposal changed its row.
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
        return ErrorCode.NOT_CONTROLLER  # the leader's image is newer: there is another controller
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
    # No member leaves while the set is below the minimum, not even if another one joins. A leader that used another
    # minimum gets this minimum with the image and proposes again.
    if set(row.in_sync) - members and len(members) < effective_min(topic, row, image):
        return ErrorCode.INVALID_REQUEST
    for node_id, broker_epoch in in_sync:
        if node_id not in row.in_sync and not image.has_session(node_id, broker_epoch):
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE
