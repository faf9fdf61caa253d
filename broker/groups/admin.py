"""Administration of groups: list, describe, delete, and delete single offsets.

A deletion is durable before it is answered; meanwhile the group takes no joins or commits. Responses are bounded. Long
work yields to the loop. Source: Kafka 4.3's group coordinator (`validateDeleteGroup`, `validateOffsetDelete`); KIP-88,
222, 229, 496, 518, 848.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from broker.config.groups import GroupConfig
from broker.error_codes import ErrorCode
from broker.groups.commit_outcome import Write, deadline, is_over, outcome_of
from broker.groups.machine.classic import ClassicGroup
from broker.groups.machine.events import GroupState
from broker.groups.offsets import TopicPosition, subscribed_of
from broker.groups.records import stored_group_record
from broker.groups.shard import Group, GroupShard
from broker.internal_topics.internal_log import InternalLog
from broker.internal_topics.partitioning import rows_of
from broker.metadata.image import TopicLookup
from seams.loop.turns import Turns, next_turn

if TYPE_CHECKING:
    from broker.groups.coordinator import GroupCoordinator

GROUP_TYPE: Final = "classic"
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024  # ids, subscriptions, assignments; in memory twice, as objects and as bytes
_TOMBSTONES_PER_TURN: Final = 1_000  # 7 µs each: encoded, and put into a batch
_MEMBER_BYTES: Final = 200  # approximate size of a member's ids and strings in a response


class Listed(msgspec.Struct, frozen=True, gc=False):
    # Not tracked by the garbage collector: 100 000 containers would start a pass over all groups, 0.4 s of the loop.
    group_id: str
    protocol_type: str
    state: GroupState


class DescribedMember(msgspec.Struct, frozen=True, gc=False):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    subscription: bytes
    assignment: bytes


class DescribedGroup(msgspec.Struct, frozen=True, gc=False):
    """One group; with an error only `group_id` is valid. GROUP_ID_NOT_FOUND: the group does not exist, and its state is
    Dead."""

    group_id: str
    error: ErrorCode = ErrorCode.NONE
    state: GroupState | None = None
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


@dataclass(slots=True, eq=False, repr=False)
class GroupAdmin:
    _log: InternalLog[GroupShard]
    _groups: GroupCoordinator
    _config: GroupConfig
    _topics: TopicLookup
    _now_ms: Callable[[], int]

    async def listed(self, states: Collection[str], types: Collection[str]) -> tuple[ErrorCode, list[Listed]]:
        """All groups, or the groups of these states and types (case-insensitive). COORDINATOR_LOAD_IN_PROGRESS if some
        groups are loading or were loaded during the call, because an incomplete list would look complete. Groups whose
        partition cannot be read, or is dropped during the call, are left out, like the groups of other coordinators.
        POLICY_VIOLATION: too many bytes.
        """
        shards = self._log.all_ready()
        if self._log.is_loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, []
        wanted = frozenset(state.lower() for state in states)
        if types and GROUP_TYPE not in {name.lower() for name in types}:
            return ErrorCode.NONE, []
        found: list[Listed] = []
        size = 0
        turns = Turns()
        for shard in shards:
            of_shard: list[Listed] = []
            of_shard_size = 0
            for group in list(shard.groups.values()):
                state = group.machine.state
                if state is not GroupState.DEAD and (not wanted or state.value.lower() in wanted):
                    of_shard.append(Listed(group.group_id, group.machine.protocol_type or "", state))
                    of_shard_size += len(group.group_id)
                if turns.over():
                    await next_turn()
            if shard.is_ready:
                found += of_shard
                size += of_shard_size
        if self._log.is_loading or not set(self._log.all_ready()) <= set(shards):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, []
        return (ErrorCode.NONE, found) if size <= ANSWER_BYTES_MAX else (ErrorCode.POLICY_VIOLATION, [])

    async def described(self, group_ids: Sequence[str]) -> list[DescribedGroup]:
        """One row a name. A name that occurs twice is answered once (Kafka repeats the row). Groups that do not fit
        into the response are COORDINATOR_NOT_AVAILABLE; clients ask for these groups again.
        """
        rows: list[DescribedGroup] = []
        room = ANSWER_BYTES_MAX
        turns = Turns()
        for group_id in dict.fromkeys(group_ids):
            row = self._describe(group_id)
            size = sum(_MEMBER_BYTES + len(m.subscription) + len(m.assignment) for m in row.members)
            if size > room and room < ANSWER_BYTES_MAX:
                row = DescribedGroup(group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            else:
                room -= size
            rows.append(row)
            if turns.over(rows_of(group_id)) or size > ANSWER_BYTES_MAX >> 6:
                await next_turn()
        return rows

    def _describe(self, group_id: str) -> DescribedGroup:
        shard, error = self._groups.shard_of(group_id)
        if shard is None:
            return DescribedGroup(group_id, error)
        group = shard.groups.get(group_id)
        if group is None or group.machine.state is GroupState.DEAD:
            return DescribedGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND, GroupState.DEAD)
        machine = group.machine
        # Before a generation is stable, neither its protocol nor its subscriptions are final.
        protocol = (machine.protocol_name or "") if machine.state is GroupState.STABLE else ""
        members = tuple(
            DescribedMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.subscriptions.get(protocol, b"") if protocol else b"",
                member.assignment,
            )
            for member in machine.members
        )
        return DescribedGroup(group_id, ErrorCode.NONE, machine.state, machine.protocol_type or "", protocol, members)

    # ---- deletions -------------------------------------------------------------------------------------------------

    async def delete(self, group_id: str, *, until_s: float | None = None) -> ErrorCode:
        """Delete a group without members, with its positions and generation; NONE when the deletion is durable. After a
        partial failure, which returns the error of the write, the group exists again with the remaining positions.
        `until_s`: the deadline of the whole request (`deadline`); after the deadline the deletion is refused and
        nothing is written.
        """
        until_s = deadline(self._config) if until_s is None else until_s
        if is_over(until_s):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        shard, error = self._groups.shard_of(group_id)
        if shard is None:
            return error
        group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.machine.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE  # another request is deleting it
        if group.machine.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        metadata = group.machine.metadata()
        self._groups.unload(shard, group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            error = await self._write_tombstones(shard, group, until_s)
        finally:
            if shard.is_ready and shard.groups.get(group_id) is group:
                if error is ErrorCode.NONE:
                    group.machine = ClassicGroup(self._config, self._now_ms())
                else:
                    group.machine, _ = ClassicGroup.restore(self._config, metadata)
                shard.settle(group)
        return error

    async def _write_tombstones(self, shard: GroupShard, group: Group, until_s: float) -> ErrorCode:
        if not group.writes.is_settled:  # earlier accepted commits are written first
            try:
                async with asyncio.timeout_at(until_s):
                    await group.writes.settled()
            except TimeoutError:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        while group.offsets.positions_count > _TOMBSTONES_PER_TURN:
            error = await self._forget(shard, group, _first(group, _TOMBSTONES_PER_TURN), until_s)
            if error is not ErrorCode.NONE:
                return error
        # The rest is one batch with the group itself, so that the deletion of a small group is atomic.
        ended = self._end(shard, group)
        error = await self._forget(shard, group, _first(group, _TOMBSTONES_PER_TURN), until_s)
        return error or await outcome_of(ended, until_s)

    def _end(self, shard: GroupShard, group: Group) -> asyncio.Future[Exception | None]:
        ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def then(failure: Exception | None) -> None:
            if not ended.done():
                ended.set_result(failure)

        shard.write_group(group, stored_group_record(group.group_id, None), then)
        return ended

    async def forget(self, group_id: str, positions: Sequence[TopicPosition]) -> tuple[ErrorCode, list[ErrorCode]]:
        """Delete positions of a group. Returns one code for each position, in order (NONE when the deletion is durable,
        or there was no position), or one error for the request. Topics that a consumer group reads now are refused."""
        until_s = deadline(self._config)
        shard, error = self._groups.shard_of(group_id)
        if not group_id:
            error = ErrorCode.INVALID_GROUP_ID
        if shard is None or error is not ErrorCode.NONE:
            return error, []
        group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, []
        if group.machine.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        if group.machine.state is not GroupState.EMPTY and not group.machine.is_consumer_group:
            return ErrorCode.NON_EMPTY_GROUP, []
        codes: list[ErrorCode] = []
        begun: list[Write] = []
        # No write waits for the one before it, because it would delete a commit that was answered meanwhile.
        for start in range(0, len(positions), _TOMBSTONES_PER_TURN):
            if start:
                await next_turn()
            part = positions[start : start + _TOMBSTONES_PER_TURN]
            refusals = self._refusals(group, part)
            allowed = [at for at, code in zip(part, refusals, strict=True) if code is ErrorCode.NONE]
            held = [at for at in dict.fromkeys(allowed) if group.offsets.holds(at)]
            if held:
                begun.append(shard.write_positions(group, [(position, None) for position in held]))
            codes += refusals
        for write in begun:
            error = await outcome_of(write, until_s)
            if error is not ErrorCode.NONE:
                return error, []
        return ErrorCode.NONE, codes

    def _refusals(self, group: Group, positions: Sequence[TopicPosition]) -> list[ErrorCode]:
        machine = group.machine
        reads = frozenset() if machine.state is GroupState.EMPTY else subscribed_of(machine)
        codes = []
        for topic, partition in positions:
            facts = self._topics(topic)
            if facts is None or not 0 <= partition < facts.partitions:
                codes.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif reads is None or topic in reads:  # None: the topics that the members read are unknown
                codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            else:
                codes.append(ErrorCode.NONE)
        return codes

    async def _forget(
        self, shard: GroupShard, group: Group, positions: Sequence[TopicPosition], until_s: float
    ) -> ErrorCode:
        return await outcome_of(shard.write_positions(group, [(position, None) for position in positions]), until_s)


def _first(group: Group, count: int) -> list[TopicPosition]:
    return list(islice(group.offsets.positions(), count))
