"""ListGroups, DescribeGroups, DeleteGroups, OffsetDelete: messages to `broker.groups.admin` and back, by version.

A group named twice is answered once. Source: Kafka protocol guide; KIP-88, 229, 430, 496, 518, 848, 1043.
"""

from __future__ import annotations

from typing import Final

from broker.error_codes import ErrorCode
from broker.groups.admin import GROUP_TYPE, DescribedGroup
from broker.groups.coordinator import GroupCoordinator
from broker.handlers.groups.members import ClientInfo
from broker.internal_topics.partitioning import rows_of
from broker.security.authorizer.access import NOT_REQUESTED, UNRESTRICTED
from broker.security.authorizer.kinds import ResourceType
from broker.wire import messages as wire
from seams.loop.turns import Turns, next_turn

_NOT_FOUND_SINCE: Final = 6  # DescribeGroups: in older versions a missing group is Dead, without an error


async def handle_list_groups(
    coordinator: GroupCoordinator, request: wire.ListGroupsRequest, version: int, client: ClientInfo
) -> wire.ListGroupsResponse:
    """List the groups. v4+ filters by state and returns the state; v5+ also filters by type and returns the type."""
    error, found = await coordinator.admin.listed(request.states_filter, request.types_filter)
    turns = Turns()
    answer = wire.ListGroupsResponse(error_code=error)
    for row in found:
        answer.groups.append(wire.ListGroupsResponseGroup(row.group_id, row.protocol_type, row.state.value, GROUP_TYPE))
        if turns.over():
            await next_turn()
    return answer


async def handle_describe_groups(
    coordinator: GroupCoordinator, request: wire.DescribeGroupsRequest, version: int, client: ClientInfo
) -> wire.DescribeGroupsResponse:
    """Describe the groups. From v6 on a missing group is GROUP_ID_NOT_FOUND with a message (KIP-1043); before v6 it is
    a Dead group.
    """
    found = await coordinator.admin.described(request.groups)
    asked = request.include_authorized_operations
    turns = Turns()
    answer = wire.DescribeGroupsResponse()
    for row in found:
        answer.groups.append(_described(row, version, asked))
        if turns.over(1 + len(row.members)):
            await next_turn()
    return answer


def _described(row: DescribedGroup, version: int, asked: bool) -> wire.DescribeGroupsResponseGroup:
    error, message = row.error, None
    if error is ErrorCode.GROUP_ID_NOT_FOUND:
        if version >= _NOT_FOUND_SINCE:
            message = f"Group {row.group_id} not found."
        else:
            error = ErrorCode.NONE
    return wire.DescribeGroupsResponseGroup(
        error_code=error,
        error_message=message,
        group_id=row.group_id,
        group_state="" if row.state is None else row.state.value,
        protocol_type=row.protocol_type,
        protocol_data=row.protocol,
        members=[
            wire.DescribeGroupsResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.subscription,
                member_assignment=member.assignment,
            )
            for member in row.members
        ],
        # If there is an authorizer, its rule for this API replaces this value with the client's operations.
        authorized_operations=UNRESTRICTED.operations(ResourceType.GROUP, row.group_id)
        if asked and error is ErrorCode.NONE
        else NOT_REQUESTED,
    )


async def handle_delete_groups(
    coordinator: GroupCoordinator, request: wire.DeleteGroupsRequest, version: int, client: ClientInfo
) -> wire.DeleteGroupsResponse:
    """One result a group. A group that is named twice is answered once, as in Kafka."""
    turns = Turns()
    answer = wire.DeleteGroupsResponse()
    until_s = coordinator.deadline()
    for name in dict.fromkeys(request.groups_names):
        code = await coordinator.admin.delete(name, until_s=until_s)
        answer.results.append(wire.DeleteGroupsResponseResult(group_id=name, error_code=code))
        if turns.over(rows_of(name)):
            await next_turn()
    return answer


async def handle_offset_delete(
    coordinator: GroupCoordinator, request: wire.OffsetDeleteRequest, version: int, client: ClientInfo
) -> wire.OffsetDeleteResponse:
    """One code per partition, or one error for the group. Large deletions yield to other work."""
    positions = [(topic.name, row.partition_index) for topic in request.topics for row in topic.partitions]
    error, codes = await coordinator.admin.forget(request.group_id, positions)
    if error is not ErrorCode.NONE:
        return wire.OffsetDeleteResponse(error_code=error)
    code = iter(codes)
    topics = [
        wire.OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                wire.OffsetDeleteResponsePartition(partition_index=row.partition_index, error_code=next(code))
                for row in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return wire.OffsetDeleteResponse(topics=topics)
