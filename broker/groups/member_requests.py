"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: from a request to the group's state machine, and back.

Every request is answered: by the machine, by the end of its shard, or by a limit here. Client ids are cut to a bounded
length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar, cast

from msgspec.structs import replace

from broker.config.groups import CLIENT_ID_CHARS_MAX, GroupConfig
from broker.error_codes import ErrorCode
from broker.groups.group_effects import GroupEffects
from broker.groups.machine.events import (
    NO_MEMBER,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    LeftMember,
    Result,
    Sync,
    SyncReply,
)
from broker.groups.shard import Group, GroupShard, MemoryUsage, ShardOf
from seams.rng import Rng

R = TypeVar("R", bound=Result)


class MemberRequests:
    """Answers member requests of one coordinator. Methods never raise for a client's mistake: the response carries the
    error."""

    def __init__(
        self, shard_of: ShardOf, effects: GroupEffects, memory: MemoryUsage, rng: Rng, config: GroupConfig
    ) -> None:
        self._shard_of_any = shard_of
        self._effects = effects
        self._memory = memory
        self._rng = rng
        self._config = config

    def _shard_of(self, group_id: str) -> tuple[GroupShard | None, ErrorCode]:
        return self._shard_of_any(group_id) if group_id else (None, ErrorCode.INVALID_GROUP_ID)

    async def join(self, group_id: str, event: Join) -> JoinReply:
        """JoinGroup, answered when the join phase ends: at the latest after the longest rebalance timeout, for new
        members at the latest after `new_member_join_timeout_ms`. `event`'s token and new member id are filled in
        here."""
        shard, error = self._shard_of(group_id)
        if shard is None:
            return JoinReply(error, event.member_id)
        group = shard.groups.get(group_id)
        if group is None and event.member_id != NO_MEMBER:
            return JoinReply(ErrorCode.UNKNOWN_MEMBER_ID, event.member_id)
        metadata_bytes = sum(len(protocol.metadata) for protocol in event.protocols)
        if self._memory.is_full(metadata_bytes, new_group=group is None):
            return JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED)
        future = _future(JoinReply)
        prefix = event.client_id[:CLIENT_ID_CHARS_MAX] if event.instance_id is None else event.instance_id
        named = replace(
            event,
            token=future,
            new_member_id=self._new_member_id(prefix, group),
            client_id=event.client_id[:CLIENT_ID_CHARS_MAX],
        )
        self._effects.give(shard, group or shard.create(group_id), named)
        return await future

    def _new_member_id(self, prefix: str, group: Group | None) -> str:
        while True:  # a random source that repeats after a restart must not give two members the same id
            member_id = f"{prefix}-{self._rng.uuid()}"
            if group is None or not group.machine.knows(member_id):
                return member_id

    async def sync(self, group_id: str, event: Sync) -> SyncReply:
        """SyncGroup, answered when the leader's assignments are durable, or when the rebalance starts over. `event`'s
        token is filled in here."""
        shard, error = self._shard_of(group_id)
        if shard is None:
            return SyncReply(error)
        group = shard.groups.get(group_id)
        if group is None:
            return SyncReply(ErrorCode.UNKNOWN_MEMBER_ID)
        if self._memory.is_full(sum(len(assignment) for _, assignment in event.assignments), new_group=False):
            return SyncReply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        future = _future(SyncReply)
        self._effects.give(shard, group, replace(event, token=future))
        return await future

    async def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        """While the group loads, every member counts as alive, as in Kafka, because an error would only make the member
        rejoin."""
        shard, error = self._shard_of(group_id)
        if shard is None:
            return ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        future = _future(HeartbeatReply)
        self._effects.give(shard, group, Heartbeat(future, member_id, generation, instance_id))
        return future.result().error

    async def leave(self, group_id: str, members: Sequence[Leaver]) -> LeaveReply:
        shard, error = self._shard_of(group_id)
        if shard is None:
            return LeaveReply(error)
        if len(members) > self._config.leavers_max:
            return LeaveReply(ErrorCode.INVALID_REQUEST)
        group = shard.groups.get(group_id)
        if group is None:
            unknown = ErrorCode.UNKNOWN_MEMBER_ID
            return LeaveReply(members=tuple(LeftMember(m.member_id, m.instance_id, unknown) for m in members))
        future = _future(LeaveReply)
        self._effects.give(shard, group, Leave(future, tuple(members)))
        return future.result()


def _future(_: type[R]) -> asyncio.Future[R]:
    return cast("asyncio.Future[R]", asyncio.get_running_loop().create_future())
