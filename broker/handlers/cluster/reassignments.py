"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455, KIP-860).

Reassignments of one request are one change. The controller lists ongoing moves after all earlier decisions.
"""

from __future__ import annotations

from typing import Final

from broker.context import Call, Context
from broker.controller.decisions.reassignments import Move, Outcome
from broker.error_codes import ErrorCode
from broker.errors import code_of
from broker.handlers.request_limits import deadline_s, within
from broker.wire import messages as wire
from logformat.errors import ThermoclineError

_NAMED_MAX: Final = 10_000  # partitions, and topics, of one request; Kafka's own limit
_REPLICAS_MAX: Final = 1_000  # replicas of one partition, on registered nodes or not


async def handle_alter_partition_reassignments(
    context: Context, request: wire.AlterPartitionReassignmentsRequest, call: Call
) -> wire.AlterPartitionReassignmentsResponse:
    """Answered when the reassignments are committed; copying takes longer."""
    allows = request.allow_replication_factor_change
    response = wire.AlterPartitionReassignmentsResponse(allow_replication_factor_change=allows, error_message=None)
    named = sum(max(1, len(topic.partitions)) for topic in request.topics)
    if named > _NAMED_MAX or any(len(p.replicas or ()) > _REPLICAS_MAX for t in request.topics for p in t.partitions):
        response.error_code = ErrorCode.POLICY_VIOLATION
        response.error_message = "Unable to perform excessively large batch operation."
        return response
    moves = [
        Move(topic.name, each.partition_index, None if each.replicas is None else tuple(each.replicas))
        for topic in request.topics
        for each in topic.partitions
    ]
    try:
        found = await within(deadline_s(request.timeout_ms), lambda: context.controller.reassign(moves, allows))
    except (ThermoclineError, TimeoutError) as refused:
        response.error_code, response.error_message = code_of(refused), str(refused)
        return response
    left = iter(found)
    response.responses = [
        wire.AlterPartitionReassignmentsResponseTopic(
            topic.name, [_answered(each.partition_index, next(left)) for each in topic.partitions]
        )
        for topic in request.topics
    ]
    return response


def _answered(index: int, outcome: Outcome) -> wire.AlterPartitionReassignmentsResponsePartition:
    return wire.AlterPartitionReassignmentsResponsePartition(index, outcome.error, outcome.message)


async def handle_list_partition_reassignments(
    context: Context, request: wire.ListPartitionReassignmentsRequest, call: Call
) -> wire.ListPartitionReassignmentsResponse:
    """The named partitions, or all (null)."""
    response = wire.ListPartitionReassignmentsResponse(error_message=None)
    wanted = None if request.topics is None else [(topic.name, topic.partition_indexes) for topic in request.topics]
    if wanted is not None and sum(max(1, len(indexes)) for _, indexes in wanted) > _NAMED_MAX:
        response.error_code = ErrorCode.POLICY_VIOLATION
        response.error_message = "Unable to perform excessively large batch operation."
        return response
    try:
        found = await within(deadline_s(request.timeout_ms), lambda: context.controller.moves(wanted))
    except (ThermoclineError, TimeoutError) as refused:
        response.error_code, response.error_message = code_of(refused), str(refused)
        return response
    response.topics = [
        wire.ListPartitionReassignmentsResponseTopic(
            name,
            [
                wire.ListPartitionReassignmentsResponsePartition(
                    each.partition, list(each.replicas), list(each.adding), list(each.removing)
                )
                for each in moving
            ],
        )
        for name, moving in found
    ]
    return response
