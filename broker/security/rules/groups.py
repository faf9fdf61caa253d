"""Authorization of groups and their offsets: members need READ, descriptions DESCRIBE, deletion DELETE."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final
from uuid import UUID

from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.security.authorizer.access import Unrestricted
from broker.security.authorizer.kinds import Operation, ResourceType
from broker.security.rules.verdict import (
    ALLOWED,
    GROUP,
    MESSAGES,
    TOPIC,
    TRANSACTION,
    KnownTopics,
    Split,
    Verdict,
    parted,
    parted_by,
    refused_whole,
    rest,
    shown,
)
from broker.wire import messages as wire
from broker.wire.message import Message
from seams.loop.turns import Turns, next_turn

_COORDINATORS_SINCE: Final = 4  # first version of FindCoordinator with several keys
_GROUPS_SINCE: Final = 8  # first version of OffsetFetch with several groups
_GROUP_ERROR_SINCE: Final = 2  # first version of OffsetFetch with an error of the whole group
_NULL_PROTOCOL_SINCE: Final = 7  # first version of JoinGroup whose protocol name may be null
_OPERATIONS_SINCE: Final = 3  # first version of DescribeGroups with authorized operations
_OF_TRANSACTION: Final = 1  # key type in FindCoordinator


def member(response: Callable[[int], Message]) -> Split:
    """READ on the group, for a request of a member. `response` makes the refusal for a version."""

    async def split(access: Unrestricted, request: Any, version: int, topics: KnownTopics) -> Verdict:
        if access.allows(Operation.READ, ResourceType.GROUP, request.group_id):
            return ALLOWED
        return refused_whole(response(version))

    return split


def join_refused(version: int) -> Message:
    protocol_name = None if version >= _NULL_PROTOCOL_SINCE else ""
    return wire.JoinGroupResponse(error_code=GROUP, protocol_name=protocol_name)


def refused_alike(response: Callable[..., Message]) -> Callable[[int], Message]:
    """The same refusal for every version."""
    return lambda _: response(error_code=GROUP)


async def offset_commit(
    access: Unrestricted, request: wire.OffsetCommitRequest, version: int, topics: KnownTopics
) -> Verdict:
    """READ on the group and on each topic. A topic id without a topic is unknown to every client, and the handler must
    not get it: the image may have the topic before the handler reads it."""
    if not access.allows(Operation.READ, ResourceType.GROUP, request.group_id):
        return refused_whole(
            wire.OffsetCommitResponse(topics=[_commit_row(topic, topic.name, GROUP) for topic in request.topics])
        )

    rows: list[wire.OffsetCommitResponseTopic] = []

    def reads(topic: wire.OffsetCommitRequestTopic) -> bool:
        name = _name(topic.name, topic.topic_id, topics)
        if name is not None and access.allows(Operation.READ, ResourceType.TOPIC, name):
            return True
        rows.append(_commit_row(topic, name or "", ErrorCode.UNKNOWN_TOPIC_ID if name is None else TOPIC))
        return False

    allowed, _ = await parted_by(request.topics, reads)
    if not rows:
        return ALLOWED
    return _rest(request, allowed, wire.OffsetCommitResponse(topics=rows))


def _commit_row(topic: wire.OffsetCommitRequestTopic, name: str, code: ErrorCode) -> wire.OffsetCommitResponseTopic:
    return wire.OffsetCommitResponseTopic(
        name=name,
        topic_id=topic.topic_id,
        partitions=[
            wire.OffsetCommitResponsePartition(partition_index=row.partition_index, error_code=code)
            for row in topic.partitions
        ],
    )


def _name(name: str, topic_id: UUID, topics: KnownTopics) -> str | None:
    """The topic's name; None if no topic has the id."""
    return name if topic_id == wire.ZERO_UUID else topics.name_of(topic_id)


def _rest(request: Any, allowed: list[Any], refusals: Any) -> Verdict:
    """The request reduced to the allowed topics. If there is none, `refusals` is the complete response."""
    if not allowed:
        return refused_whole(refusals)
    return rest(request, refusals.topics, topics=allowed)


async def txn_offset_commit(
    access: Unrestricted, request: wire.TxnOffsetCommitRequest, version: int, topics: KnownTopics
) -> Verdict:
    """WRITE on the transactional id, READ on the group and on each topic."""
    whole = None
    if not access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        whole = TRANSACTION
    elif not access.allows(Operation.READ, ResourceType.GROUP, request.group_id):
        whole = GROUP
    if whole is not None:
        rows = [txn_commit_row(topic, whole) for topic in request.topics]
        return refused_whole(wire.TxnOffsetCommitResponse(topics=rows))
    allowed, refused = await parted(
        access, Operation.READ, ResourceType.TOPIC, request.topics, lambda topic: topic.name
    )
    if not refused:
        return ALLOWED
    rows = [txn_commit_row(topic, TOPIC) for topic in refused]
    return _rest(request, allowed, wire.TxnOffsetCommitResponse(topics=rows))


def txn_commit_row(topic: wire.TxnOffsetCommitRequestTopic, code: ErrorCode) -> wire.TxnOffsetCommitResponseTopic:
    return wire.TxnOffsetCommitResponseTopic(
        name=topic.name,
        partitions=[
            wire.TxnOffsetCommitResponsePartition(partition_index=row.partition_index, error_code=code)
            for row in topic.partitions
        ],
    )


async def offset_fetch(
    access: Unrestricted, request: wire.OffsetFetchRequest, version: int, topics: KnownTopics
) -> Verdict:
    """DESCRIBE on each group and topic. A request for all topics of a group gets only those that the client may
    describe."""
    if version < _GROUPS_SINCE:
        return await _offset_fetch_of_one(access, request, version)
    refused_groups: list[wire.OffsetFetchResponseGroup] = []
    kept: list[wire.OffsetFetchRequestGroup] = []
    refused_topics: dict[str, list[wire.OffsetFetchResponseGroupTopic]] = {}

    turns = Turns()
    for group in request.groups:
        if turns.over():
            await next_turn()
        if not access.allows(Operation.DESCRIBE, ResourceType.GROUP, group.group_id):
            refused_groups.append(wire.OffsetFetchResponseGroup(group_id=group.group_id, error_code=GROUP))
        elif group.topics is None:
            kept.append(group)
        else:
            allowed, rows = await _described(access, group.topics, topics)
            if rows:
                refused_topics.setdefault(group.group_id, []).extend(rows)
            kept.append(replace(group, topics=allowed) if rows else group)
    whole = {group.group_id for group in request.groups if group.topics is None}

    async def merge(response: wire.OffsetFetchResponse) -> None:
        for group in response.groups:
            if group.error_code == ErrorCode.NONE and group.group_id in whole:
                group.topics, _ = await parted_by(group.topics, lambda topic: _shows_row(access, topic, topics))
            if group.error_code == ErrorCode.NONE and group.group_id in refused_topics:
                group.topics = [*group.topics, *refused_topics[group.group_id]]
        response.groups = [*response.groups, *refused_groups]

    if not kept:
        return refused_whole(wire.OffsetFetchResponse(groups=refused_groups))
    return Verdict(request=replace(request, groups=kept), merge=merge)


def _shows_row(access: Unrestricted, topic: wire.OffsetFetchResponseGroupTopic, topics: KnownTopics) -> bool:
    name = _name(topic.name, topic.topic_id, topics)
    return name is not None and access.allows(Operation.DESCRIBE, ResourceType.TOPIC, name, audited=False)


async def _described(
    access: Unrestricted, wanted: Iterable[wire.OffsetFetchRequestGroupTopic], topics: KnownTopics
) -> tuple[list[wire.OffsetFetchRequestGroupTopic], list[wire.OffsetFetchResponseGroupTopic]]:
    """The topics that the client may describe, and rows for the others. The handler does not get a topic id without a
    topic, as in `offset_commit`."""
    rows: list[wire.OffsetFetchResponseGroupTopic] = []

    def describes(topic: wire.OffsetFetchRequestGroupTopic) -> bool:
        name = _name(topic.name, topic.topic_id, topics)
        if name is not None and access.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
            return True
        rows.append(_fetch_row(topic, name or "", ErrorCode.UNKNOWN_TOPIC_ID if name is None else TOPIC))
        return False

    allowed, _ = await parted_by(wanted, describes)
    return allowed, rows


def _fetch_row(
    topic: wire.OffsetFetchRequestGroupTopic, name: str, code: ErrorCode
) -> wire.OffsetFetchResponseGroupTopic:
    return wire.OffsetFetchResponseGroupTopic(
        name=name,
        topic_id=topic.topic_id,
        partitions=[
            wire.OffsetFetchResponseGroupPartition(partition_index=index, committed_offset=-1, error_code=code)
            for index in topic.partition_indexes
        ],
    )


async def _offset_fetch_of_one(access: Unrestricted, request: wire.OffsetFetchRequest, version: int) -> Verdict:
    """OffsetFetch before version 8, which names one group. Before version 2 an error is set in each partition."""
    wanted = request.topics
    if not access.allows(Operation.DESCRIBE, ResourceType.GROUP, request.group_id):
        if version >= _GROUP_ERROR_SINCE:
            return refused_whole(wire.OffsetFetchResponse(error_code=GROUP))
        return refused_whole(wire.OffsetFetchResponse(topics=[_old_row(topic, GROUP) for topic in wanted or ()]))
    if wanted is None:

        async def only_shown(response: wire.OffsetFetchResponse) -> None:
            every = response.topics
            response.topics = await shown(
                access, Operation.DESCRIBE, ResourceType.TOPIC, every, lambda topic: topic.name
            )

        return Verdict(request=request, merge=only_shown)
    allowed, refused = await parted(access, Operation.DESCRIBE, ResourceType.TOPIC, wanted, lambda topic: topic.name)
    if not refused:
        return ALLOWED
    rows = [_old_row(topic, TOPIC) for topic in refused]

    async def merge(response: wire.OffsetFetchResponse) -> None:
        if response.error_code == ErrorCode.NONE:
            response.topics = [*response.topics, *rows]

    return Verdict(request=replace(request, topics=allowed), merge=merge)


def _old_row(topic: wire.OffsetFetchRequestTopic, code: ErrorCode) -> wire.OffsetFetchResponseTopic:
    return wire.OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            wire.OffsetFetchResponsePartition(partition_index=index, committed_offset=-1, error_code=code)
            for index in topic.partition_indexes
        ],
    )


async def find_coordinator(
    access: Unrestricted, request: wire.FindCoordinatorRequest, version: int, topics: KnownTopics
) -> Verdict:
    """DESCRIBE on the group, or on the transactional id."""
    kind, code = ResourceType.GROUP, GROUP
    if request.key_type == _OF_TRANSACTION:
        kind, code = ResourceType.TRANSACTIONAL_ID, TRANSACTION
    elif request.key_type != 0:
        return ALLOWED  # the handler refuses this type of coordinator
    if version < _COORDINATORS_SINCE:
        if access.allows(Operation.DESCRIBE, kind, request.key):
            return ALLOWED
        return refused_whole(
            wire.FindCoordinatorResponse(error_code=code, error_message=MESSAGES[code], node_id=-1, port=-1)
        )
    allowed, refused = await parted(access, Operation.DESCRIBE, kind, request.coordinator_keys, str)
    if not refused:
        return ALLOWED
    rows = [wire.FindCoordinatorResponseCoordinator(key=key, node_id=-1, port=-1, error_code=code) for key in refused]
    if not allowed:
        return refused_whole(wire.FindCoordinatorResponse(coordinators=rows))
    return rest(request, rows, "coordinators", coordinator_keys=allowed)


async def list_groups(
    access: Unrestricted, request: wire.ListGroupsRequest, version: int, topics: KnownTopics
) -> Verdict:
    """With DESCRIBE on the cluster all groups are listed, else the groups on which the client has DESCRIBE."""
    if access.allows_cluster(Operation.DESCRIBE, audited=False):
        return ALLOWED

    async def only_shown(response: wire.ListGroupsResponse) -> None:
        every = response.groups
        response.groups = await shown(
            access, Operation.DESCRIBE, ResourceType.GROUP, every, lambda group: group.group_id
        )

    return Verdict(request=request, merge=only_shown)


async def describe_groups(
    access: Unrestricted, request: wire.DescribeGroupsRequest, version: int, topics: KnownTopics
) -> Verdict:
    """DESCRIBE on each group. The response has the authorized operations of each described group (KIP-430)."""
    allowed, refused = await parted(access, Operation.DESCRIBE, ResourceType.GROUP, request.groups, str)
    rows = [wire.DescribeGroupsResponseGroup(error_code=GROUP, group_id=group_id) for group_id in refused]

    async def merge(response: wire.DescribeGroupsResponse) -> None:
        if request.include_authorized_operations and version >= _OPERATIONS_SINCE:
            for group in response.groups:
                if group.error_code == ErrorCode.NONE:
                    group.authorized_operations = access.operations(ResourceType.GROUP, group.group_id)
        response.groups = [*rows, *response.groups]

    if not allowed and rows:
        return refused_whole(wire.DescribeGroupsResponse(groups=rows))
    return Verdict(request=replace(request, groups=allowed), merge=merge)


async def delete_groups(
    access: Unrestricted, request: wire.DeleteGroupsRequest, version: int, topics: KnownTopics
) -> Verdict:
    """DELETE on each group."""
    allowed, refused = await parted(access, Operation.DELETE, ResourceType.GROUP, request.groups_names, str)
    if not refused:
        return ALLOWED
    rows = [wire.DeleteGroupsResponseResult(group_id=name, error_code=GROUP) for name in dict.fromkeys(refused)]
    if not allowed:
        return refused_whole(wire.DeleteGroupsResponse(results=rows))
    return rest(request, rows, "results", groups_names=allowed)


async def offset_delete(
    access: Unrestricted, request: wire.OffsetDeleteRequest, version: int, topics: KnownTopics
) -> Verdict:
    """DELETE on the group, READ on each topic."""
    if not access.allows(Operation.DELETE, ResourceType.GROUP, request.group_id):
        return refused_whole(wire.OffsetDeleteResponse(error_code=GROUP))
    allowed, refused = await parted(
        access, Operation.READ, ResourceType.TOPIC, request.topics, lambda topic: topic.name
    )
    if not refused:
        return ALLOWED
    rows = [
        wire.OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                wire.OffsetDeleteResponsePartition(partition_index=row.partition_index, error_code=TOPIC)
                for row in topic.partitions
            ],
        )
        for topic in refused
    ]

    async def merge(response: wire.OffsetDeleteResponse) -> None:
        if response.error_code == ErrorCode.NONE:
            response.topics = [*response.topics, *rows]

    return Verdict(request=replace(request, topics=allowed), merge=merge)
