"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup: messages to the coordinator and back, by version.

Each handler always answers, with Kafka's codes. It may wait as long as the coordinator (a join waits until the join
phase ends). Meanwhile later requests of the connection wait, as in Kafka. Source: Kafka protocol guide; KIP-394, 345,
559, 699, 814.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Final

import msgspec

from broker.error_codes import ErrorCode
from broker.groups.coordinator import GroupCoordinator
from broker.groups.machine.events import Join, JoinReply, Leaver, Protocol, Sync
from broker.handlers.metadata.cluster_view import BrokerAt
from broker.internal_topics.partitioning import rows_of
from broker.wire import messages as wire
from seams.loop.turns import Turns, next_turn

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1

_NO_TRANSACTIONS: Final = "transactions are not served by this broker: remove transactional.id"


class Locator(typing.Protocol):
    """Finds the coordinator of a key (a group or a transactional id)."""

    async def find(self, key: str, /) -> ErrorCode:
        """Ensure that the key has a coordinator."""

    def node_of(self, key: str, /) -> int:
        """The broker that coordinates the key; NO_LEADER: there is none."""


class ClientInfo(msgspec.Struct, frozen=True):
    """The client: its id ("" when null) and its address as text ("127.0.0.1")."""

    client_id: str
    host: str


_NOBODY: Final = BrokerAt(-1, "", -1, None)


# ---- FindCoordinator 0–4 ---------------------------------------------------------------------------------------------


async def handle_find_coordinator(
    coordinator: GroupCoordinator,
    request: wire.FindCoordinatorRequest,
    version: int,
    broker_of: Callable[[int], BrokerAt | None],
    transactions: Locator | None = None,
) -> wire.FindCoordinatorResponse:
    """The leader of the key's partition and its address. `transactions`: finds coordinators of transactional ids; None:
    transactional ids get INVALID_REQUEST with a reason, which clients do not retry. `broker_of`: brokers by id, as
    reached on the connection's listener."""
    locators: dict[int, Locator | None] = {GROUP_KEY: coordinator, TRANSACTION_KEY: transactions}
    locator = locators.get(request.key_type)
    keys = request.coordinator_keys if version >= 4 else [request.key]
    rows = []
    turns = Turns()
    for key in keys:
        if turns.over(rows_of(key)):
            await next_turn()
        error, where = await _find(locator, key, broker_of)
        rows.append(
            wire.FindCoordinatorResponseCoordinator(
                key=key,
                node_id=where.node_id,
                host=where.host,
                port=where.port,
                error_code=error,
                error_message=_said(error, request.key_type, version, is_served=locator is not None),
            )
        )
    if version >= 4:
        return wire.FindCoordinatorResponse(coordinators=rows)
    (row,) = rows
    return wire.FindCoordinatorResponse(
        error_code=row.error_code, error_message=row.error_message, node_id=row.node_id, host=row.host, port=row.port
    )


async def _find(
    locator: Locator | None, key: str, broker_of: Callable[[int], BrokerAt | None]
) -> tuple[ErrorCode, BrokerAt]:
    if locator is None:
        return ErrorCode.INVALID_REQUEST, _NOBODY
    error = await locator.find(key)
    if error is not ErrorCode.NONE:
        return error, _NOBODY
    found = broker_of(locator.node_of(key))
    return (ErrorCode.COORDINATOR_NOT_AVAILABLE, _NOBODY) if found is None else (ErrorCode.NONE, found)


def _said(error: ErrorCode, key_type: int, version: int, *, is_served: bool) -> str:
    if key_type == TRANSACTION_KEY and not is_served:
        return _NO_TRANSACTIONS
    if key_type not in (GROUP_KEY, TRANSACTION_KEY):
        return f"there is no coordinator of key type {key_type}"
    return "" if error is ErrorCode.NONE and version >= 4 else error.name


# ---- JoinGroup 0–9, SyncGroup 0–5, Heartbeat 0–4, LeaveGroup 0–5 -----------------------------------------------------


async def handle_join_group(
    coordinator: GroupCoordinator, request: wire.JoinGroupRequest, version: int, client: ClientInfo
) -> wire.JoinGroupResponse:
    """JoinGroup. v0 has no rebalance timeout and uses the session timeout. In v4+ a new member must rejoin with the id
    it is given. In v9 a returning static leader may skip the assignment.
    """
    reply = await coordinator.members.join(
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


def _join_response(reply: JoinReply, version: int) -> wire.JoinGroupResponse:
    return wire.JoinGroupResponse(
        error_code=reply.error,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name if version >= 7 else reply.protocol_name or "",
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[
            wire.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in reply.members
        ],
    )


async def handle_sync_group(
    coordinator: GroupCoordinator, request: wire.SyncGroupRequest, version: int, client: ClientInfo
) -> wire.SyncGroupResponse:
    """SyncGroup. v5+ names the protocol type and name; both are mandatory and must be the group's (KIP-559)."""
    if version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return wire.SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    reply = await coordinator.members.sync(
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
    return wire.SyncGroupResponse(
        error_code=reply.error,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
    )


async def handle_heartbeat(
    coordinator: GroupCoordinator, request: wire.HeartbeatRequest, version: int, client: ClientInfo
) -> wire.HeartbeatResponse:
    error = await coordinator.members.heartbeat(
        request.group_id, request.member_id, request.generation_id, request.group_instance_id
    )
    return wire.HeartbeatResponse(error_code=error)


async def handle_leave_group(
    coordinator: GroupCoordinator, request: wire.LeaveGroupRequest, version: int, client: ClientInfo
) -> wire.LeaveGroupResponse:
    """LeaveGroup. v0–2 name one member, and the response has its error. v3+ name several members, and the response has
    an error for each."""
    if version < 3:
        reply = await coordinator.members.leave(request.group_id, [Leaver(request.member_id)])
        error = next((row.error for row in reply.members), ErrorCode.NONE)
        return wire.LeaveGroupResponse(error_code=reply.error or error)
    leavers = [Leaver(member.member_id, member.group_instance_id) for member in request.members]
    reply = await coordinator.members.leave(request.group_id, leavers)
    return wire.LeaveGroupResponse(
        error_code=reply.error,
        members=[
            wire.LeaveGroupResponseMember(
                member_id=row.member_id, group_instance_id=row.instance_id, error_code=row.error
            )
            for row in reply.members
        ],
    )
