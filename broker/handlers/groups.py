"""The classic group APIs on the wire: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit,
OffsetFetch.

Owns the translation between messages and the coordinator, version by version; no state, no decision about groups.
Each `handle_x(coordinator, request, version, client)` answers always, with Kafka's codes; it may wait as long as the
coordinator does (a join: until the join phase ends), so a connection's requests behind it wait too, as in Kafka.
Must not know the log, sockets, frames. Source: Kafka protocol guide; KIP-394, 345, 447, 559, 699, 709, 814.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.groups.coordinator import CommitRow, GroupCoordinator
from broker.groups.events import AdmitCommit, Join, JoinReply, Leaver, Protocol, Sync
from broker.groups.offsets import NO_OFFSET, Fetched, Wanted
from broker.handlers.turns import Turns, next_turn
from broker.wire.errors import ErrorCode
from broker.wire.generated.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeaveGroupResponseMember,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestGroupTopic,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponseGroupPartition,
    OffsetFetchResponseGroupTopic,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    SyncGroupRequest,
    SyncGroupResponse,
)

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1

_NO_TRANSACTIONS: Final = "transactions are not served by this broker: remove transactional.id"
_OFFSET_FETCH_TOP_ERROR_SINCE: Final = 2
_OFFSET_FETCH_GROUPS_SINCE: Final = 8
_COMMIT_ROWS_PER_TURN: Final = 1_500  # 15 µs each on the loop
_ANSWER_ROWS_MAX: Final = 100_000  # of one OffsetFetch, over all its groups; what is beyond is INVALID_REQUEST
_ANSWER_METADATA_BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """Who asks: the client id of the request ("" when null), the peer's address as text ("127.0.0.1")."""

    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class CoordinatorNode:
    """This broker as clients of the connection's listener reach it."""

    node_id: int
    host: str
    port: int


_NOBODY: Final = CoordinatorNode(-1, "", -1)


# ---- FindCoordinator 0–4 ---------------------------------------------------------------------------------------------


async def handle_find_coordinator(
    coordinator: GroupCoordinator,
    request: FindCoordinatorRequest,
    version: int,
    client: ClientInfo,
    node: CoordinatorNode,
) -> FindCoordinatorResponse:
    """One broker coordinates every group. Transactions: INVALID_REQUEST, which clients do not retry, with a reason."""
    keys = request.coordinator_keys if version >= 4 else [request.key]
    rows = []
    turns = Turns()
    for key in keys:
        if turns.over():
            await next_turn()
        error, message = await _find(coordinator, request.key_type, key, version)
        where = node if error is ErrorCode.NONE else _NOBODY
        rows.append(
            FindCoordinatorResponseCoordinator(
                key=key,
                node_id=where.node_id,
                host=where.host,
                port=where.port,
                error_code=error,
                error_message=message,
            )
        )
    if version >= 4:
        return FindCoordinatorResponse(coordinators=rows)
    (row,) = rows
    return FindCoordinatorResponse(
        error_code=row.error_code,
        error_message=row.error_message,
        node_id=row.node_id,
        host=row.host,
        port=row.port,
    )


async def _find(coordinator: GroupCoordinator, key_type: int, key: str, version: int) -> tuple[ErrorCode, str]:
    if key_type == TRANSACTION_KEY:
        return ErrorCode.INVALID_REQUEST, _NO_TRANSACTIONS
    if key_type != GROUP_KEY:
        return ErrorCode.INVALID_REQUEST, f"there is no coordinator of key type {key_type}"
    error = await coordinator.find(key)
    return error, "" if error is ErrorCode.NONE and version >= 4 else error.name


# ---- JoinGroup 0–9, SyncGroup 0–5, Heartbeat 0–4, LeaveGroup 0–5 -----------------------------------------------------


async def handle_join_group(
    coordinator: GroupCoordinator, request: JoinGroupRequest, version: int, client: ClientInfo
) -> JoinGroupResponse:
    """v0 has no rebalance timeout (the session's counts); v4+ must rejoin with the id it is given; v9 may skip the
    assignment when a static leader returns."""
    reply = await coordinator.join(
        request.group_id,
        Join(
            token=None,
            new_member_id="",
            client_id=client.client_id,
            client_host=f"/{client.host}",  # as Java prints an address; Kafka's tools show it
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple(Protocol(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            member_id_required=version >= 4,
            may_skip_assignment=version >= 9,
        ),
    )
    return _join_response(reply, version)


def _join_response(reply: JoinReply, version: int) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=reply.error,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name if version >= 7 else reply.protocol_name or "",
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in reply.members
        ],
    )


async def handle_sync_group(
    coordinator: GroupCoordinator, request: SyncGroupRequest, version: int, client: ClientInfo
) -> SyncGroupResponse:
    """v5+ names the protocol, which must be the group's; both names are mandatory there (KIP-559)."""
    if version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    reply = await coordinator.sync(
        request.group_id,
        Sync(
            token=None,
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments=tuple((row.member_id, bytes(row.assignment)) for row in request.assignments),
        ),
    )
    return SyncGroupResponse(
        error_code=reply.error,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
    )


async def handle_heartbeat(
    coordinator: GroupCoordinator, request: HeartbeatRequest, version: int, client: ClientInfo
) -> HeartbeatResponse:
    error = await coordinator.heartbeat(
        request.group_id, request.member_id, request.generation_id, request.group_instance_id
    )
    return HeartbeatResponse(error_code=error)


async def handle_leave_group(
    coordinator: GroupCoordinator, request: LeaveGroupRequest, version: int, client: ClientInfo
) -> LeaveGroupResponse:
    """v0–2 name one member, whose error is the answer's; v3+ (KIP-345) name several, each with its own."""
    if version < 3:
        reply = await coordinator.leave(request.group_id, [Leaver(request.member_id)])
        error = next((row.error for row in reply.members), ErrorCode.NONE)
        return LeaveGroupResponse(error_code=reply.error or error)
    leavers = [Leaver(member.member_id, member.group_instance_id) for member in request.members]
    reply = await coordinator.leave(request.group_id, leavers)
    return LeaveGroupResponse(
        error_code=reply.error,
        members=[
            LeaveGroupResponseMember(member_id=row.member_id, group_instance_id=row.instance_id, error_code=row.error)
            for row in reply.members
        ],
    )


# ---- OffsetCommit 2–9 ------------------------------------------------------------------------------------------------


async def handle_offset_commit(
    coordinator: GroupCoordinator, request: OffsetCommitRequest, version: int, client: ClientInfo
) -> OffsetCommitResponse:
    """v9+ tells a member of a group that does not exist so; before, its generation is called illegal."""
    rows = [
        CommitRow(
            topic.name,
            partition.partition_index,
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.committed_metadata or "",
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    member = AdmitCommit(None, request.member_id, request.generation_id_or_member_epoch, request.group_instance_id)
    unknown_group = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
    # In turns of one write each. As in Kafka every row has its own answer; unlike there, rows of so large a commit may
    # be durable when later ones are not.
    answered: list[ErrorCode] = []
    for start in range(0, len(rows), _COMMIT_ROWS_PER_TURN) or (0,):
        answered += await coordinator.commit_offsets(
            request.group_id,
            member,
            rows[start : start + _COMMIT_ROWS_PER_TURN],
            retention_ms=request.retention_time_ms,
            unknown_group=unknown_group,
        )
    codes = iter(answered)
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=next(codes))
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


# ---- OffsetFetch 1–9 -------------------------------------------------------------------------------------------------


async def handle_offset_fetch(
    coordinator: GroupCoordinator, request: OffsetFetchRequest, version: int, client: ClientInfo
) -> OffsetFetchResponse:
    """v8+ asks for several groups (KIP-709); null topics ask for all there are. Every answer is stable: commits are
    seen only when durable, and there are no transactions that could be open. What is named twice is answered once
    (Kafka answers it twice): an answer grows with what is stored, not with repetitions."""
    room = _Room()
    if version >= _OFFSET_FETCH_GROUPS_SINCE:
        groups = []
        for group_id, positions in _by_group(request.groups).items():
            error, fetched = await _fetch(coordinator, group_id, positions, room)
            groups.append(_group_answer(group_id, error, fetched))
            await next_turn()
        return OffsetFetchResponse(groups=groups)
    asked = None if request.topics is None else _by_topic(request.topics, {})
    error, fetched = await _fetch(coordinator, request.group_id, asked, room)
    if error is not ErrorCode.NONE and version < _OFFSET_FETCH_TOP_ERROR_SINCE:
        fetched = tuple(Fetched(t, tuple((i, NO_OFFSET) for i in indexes)) for t, indexes in (asked or {}).items())
    return OffsetFetchResponse(error_code=error, topics=[_topic_answer(topic, error) for topic in fetched])


_Positions = dict[str, dict[int, None]]
"""Partitions by topic, in the order they were named."""


def _by_group(groups: Sequence[OffsetFetchRequestGroup]) -> dict[str, _Positions | None]:
    """What is asked of each group; None: everything."""
    found: dict[str, _Positions | None] = {}
    for group in groups:
        known = found.setdefault(group.group_id, {})
        if group.topics is None or known is None:
            found[group.group_id] = None
        else:
            _by_topic(group.topics, known)
    return found


def _by_topic(
    topics: Sequence[OffsetFetchRequestTopic] | Sequence[OffsetFetchRequestGroupTopic], found: _Positions
) -> _Positions:
    for topic in topics:
        found.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return found


class _Room:
    """What one answer may still carry."""

    def __init__(self) -> None:
        self._rows = _ANSWER_ROWS_MAX
        self._bytes = _ANSWER_METADATA_BYTES_MAX

    def take(self, fetched: tuple[Fetched, ...]) -> bool:
        """Whether these rows still fit."""
        self._rows -= sum(len(topic.partitions) for topic in fetched)
        if self._rows >= 0:
            self._bytes -= sum(len(value.metadata) for topic in fetched for _, value in topic.partitions)
        return self._rows >= 0 and self._bytes >= 0


async def _fetch(
    coordinator: GroupCoordinator, group_id: str, positions: _Positions | None, room: _Room
) -> tuple[ErrorCode, tuple[Fetched, ...]]:
    wanted = None if positions is None else [Wanted(topic, tuple(indexes)) for topic, indexes in positions.items()]
    error, fetched = await coordinator.fetch_offsets(group_id, wanted)
    await next_turn()
    return (error, fetched) if room.take(fetched) else (ErrorCode.INVALID_REQUEST, ())


def _topic_answer(topic: Fetched, error: ErrorCode) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.topic,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=index,
                committed_offset=value.offset,
                committed_leader_epoch=value.leader_epoch,
                metadata=value.metadata,
                error_code=error,
            )
            for index, value in topic.partitions
        ],
    )


def _group_answer(group_id: str, error: ErrorCode, fetched: tuple[Fetched, ...]) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(
        group_id=group_id,
        error_code=error,
        topics=[
            OffsetFetchResponseGroupTopic(
                name=topic.topic,
                partitions=[
                    OffsetFetchResponseGroupPartition(
                        partition_index=index,
                        committed_offset=value.offset,
                        committed_leader_epoch=value.leader_epoch,
                        metadata=value.metadata,
                    )
                    for index, value in topic.partitions
                ],
            )
            for topic in fetched
        ],
    )
