"""OffsetCommit and OffsetFetch, group by group.

A commit answered with NONE is durable. Fetched positions are durable, and this broker still leads their shard when they
are sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from msgspec.structs import replace

from broker.config.groups import GroupConfig, is_too_long
from broker.error_codes import ErrorCode
from broker.groups.commit_outcome import Write, deadline, is_over, outcome_of
from broker.groups.group_effects import GroupEffects
from broker.groups.machine.events import AdmitCommit, AdmitReply
from broker.groups.offsets import (
    OFFSET_OVERHEAD_BYTES,
    FetchedOffset,
    GroupOffsets,
    TopicPosition,
    Wanted,
    refuses_metadata,
)
from broker.groups.records import NO_EXPIRY, CommittedOffset
from broker.groups.shard import Group, GroupShard, MemoryUsage, ShardOf
from broker.internal_topics.batches import Producer
from broker.metadata.image import TopicLookup
from broker.wire.primitives import ZERO_UUID
from seams.clock import Clock
from seams.loop.turns import next_turn

_ROWS_PER_TURN: Final = 1_500  # 15 µs each on the loop


class CommitRow(NamedTuple):
    """One partition of an OffsetCommit. `metadata` is "" for null, as Kafka stores it. `topic_id`: the requested topic;
    zero: the topic that has the name now."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    topic_id: UUID = ZERO_UUID


class Judged(NamedTuple):
    """The judgement of a commit's rows. `codes`: one per row, in order; `values`: the commits of rows with NONE."""

    codes: list[ErrorCode]
    values: list[tuple[TopicPosition, CommittedOffset]]


def judge(
    rows: Sequence[CommitRow],
    held: GroupOffsets,
    topics: TopicLookup,
    config: GroupConfig,
    is_full: Callable[[int], bool],
    *,
    now_ms: int,
    retention_ms: int,
) -> Judged:
    """Validate the rows of an OffsetCommit. Each row is checked separately, except for memory bounds: if the rows make
    this group or all groups too large, all rows are refused. An accepted position belongs to the current topic of the
    name (KIP-516). `held`: the group's positions. `is_full`: whether this number of additional bytes exceeds the limit.
    `retention_ms` −1: the configured retention. 30 µs a row, on the loop; the caller enforces `config.commit_rows_max`.
    """
    expire_at_ms = NO_EXPIRY if retention_ms < 0 else now_ms + retention_ms
    codes: list[ErrorCode] = []
    values: list[tuple[TopicPosition, CommittedOffset]] = []
    growth = more = 0
    for row in rows:
        facts = topics(row.topic)
        code = refuses_metadata(row.metadata, config.offset_metadata_bytes_max)
        if facts is None or not 0 <= row.partition < facts.partitions or is_too_long(row.topic):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif row.topic_id not in (ZERO_UUID, facts.topic_id):  # the topic was created again since the request was read
            code = ErrorCode.UNKNOWN_TOPIC_ID
        codes.append(code)
        if code is ErrorCode.NONE:
            assert facts is not None
            value = CommittedOffset(row.offset, row.leader_epoch, row.metadata, now_ms, expire_at_ms, facts.topic_id)
            values.append(((row.topic, row.partition), value))
            if not held.holds((row.topic, row.partition)):
                growth += OFFSET_OVERHEAD_BYTES + len(row.metadata)
                more += 1
    if more and (held.positions_count + more > config.group_positions_max or is_full(growth)):
        full = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        return Judged([full if code is ErrorCode.NONE else code for code in codes], [])
    return Judged(codes, values)


class BegunCommit(NamedTuple):
    """A commit whose accepted rows are queued. `codes`: one per row, in order. `write` None: nothing is written."""

    codes: list[ErrorCode]
    write: Write | None = None

    async def outcome(self, until_s: float) -> list[ErrorCode]:
        """One error per row, in order; rows with NONE are durable. `until_s`: the deadline of the request."""
        if self.write is None:
            return self.codes
        failure = await outcome_of(self.write, until_s)
        return [failure if code is ErrorCode.NONE else code for code in self.codes]


Verify: TypeAlias = Callable[[], Awaitable[ErrorCode]]
"""Asks a transaction's coordinator whether the group's partition of `__consumer_offsets` belongs to the transaction."""


@dataclass(slots=True, eq=False, repr=False)
class OffsetRequests:
    _shard_of: ShardOf
    _effects: GroupEffects
    _memory: MemoryUsage
    _clock: Clock
    _config: GroupConfig
    _topics: TopicLookup

    def begin_commit(
        self,
        group_id: str,
        member: AdmitCommit,
        rows: Sequence[CommitRow],
        *,
        retention_ms: int,
        unknown_group: ErrorCode,
        until_s: float,
    ) -> BegunCommit:
        """Queue the accepted rows for the log, behind all earlier commits. `member`'s token is filled in here.
        `unknown_group`: the error for a member of a group that does not exist (it depends on the API's version).
        `until_s`: the deadline of the request (`deadline`); after the deadline the commit is refused and not
        written."""
        if is_over(until_s):
            return BegunCommit([ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(rows))
        shard, error = self._shard_of(group_id)
        if shard is None:
            return BegunCommit([error] * len(rows))
        if len(rows) > self._config.commit_rows_max:
            return BegunCommit([ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * len(rows))
        return self._begin(shard, group_id, member, rows, shard.write_positions, unknown_group, retention_ms)

    async def commit_in_transaction(
        self,
        group_id: str,
        member: AdmitCommit,
        rows: Sequence[CommitRow],
        producer: Producer,
        verify: Verify,
        *,
        until_s: float,
    ) -> list[ErrorCode]:
        """As `commit`, for offsets that count when the producer's transaction commits (KIP-98). `verify` asks the
        transaction's coordinator whether the partition of `__consumer_offsets` belongs to the transaction (KIP-890).
        The rows are written in one or more parts. No part is written after a marker that came since the call, because
        before transaction version 2 the producer's next transaction has the same epoch."""
        shard, error = self._shard_of(group_id)
        if shard is None:
            return [error] * len(rows)
        if len(rows) > self._config.commit_rows_max:
            return [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * len(rows)
        starts: Sequence[int] = range(0, len(rows), _ROWS_PER_TURN)
        guards = deque(shard.guard(producer.producer_id) for _ in starts)
        member = replace(member, is_transactional=True)
        begun: list[BegunCommit] = []
        try:
            error = await verify()
            for start in starts:
                if start:
                    await next_turn()
                part = rows[start : start + _ROWS_PER_TURN]
                if error is ErrorCode.NONE and (is_over(until_s) or self._shard_of(group_id)[0] is not shard):
                    error = ErrorCode.NOT_COORDINATOR
                if error is not ErrorCode.NONE:
                    begun.append(BegunCommit([error] * len(part)))
                    continue
                write = partial(shard.write_open, producer, guards[0])
                begun.append(self._begin(shard, group_id, member, part, write, ErrorCode.ILLEGAL_GENERATION, -1))
                if begun[-1].write is not None:
                    guards.popleft()  # its write releases it
        finally:
            for guard in guards:
                guard.release()
        return [code for one in begun for code in await one.outcome(until_s)]

    def _begin(
        self,
        shard: GroupShard,
        group_id: str,
        member: AdmitCommit,
        rows: Sequence[CommitRow],
        write_rows: Callable[[Group, Sequence[tuple[TopicPosition, CommittedOffset]]], Write],
        unknown_group: ErrorCode,
        retention_ms: int,
    ) -> BegunCommit:
        group = shard.groups.get(group_id)
        if group is None:
            if member.generation >= 0:
                return BegunCommit([unknown_group] * len(rows))
            if self._memory.is_full(0, new_group=True):
                return BegunCommit([ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * len(rows))
            group = shard.create(group_id)
        future: asyncio.Future[AdmitReply] = asyncio.get_running_loop().create_future()
        self._effects.step(shard, group, replace(member, token=future))
        error, write = future.result().error, None
        codes = [error] * len(rows)
        if error is ErrorCode.NONE:
            is_full = partial(self._memory.is_full, new_group=False)
            now_ms = self._clock.wall_ms()
            codes, values = judge(
                rows, group.offsets, self._topics, self._config, is_full, now_ms=now_ms, retention_ms=retention_ms
            )
            write = write_rows(group, values) if values else None
        shard.settle(group)
        return BegunCommit(codes, write)

    async def fetch(
        self,
        group_id: str,
        wanted: Sequence[Wanted] | None,
        *,
        until_s: float | None = None,
        require_stable: bool = False,
    ) -> tuple[ErrorCode, tuple[FetchedOffset, ...]]:
        """Durable positions; `wanted` None: all. An unknown group has no positions, which is not an error. `until_s`:
        the deadline of the request (`deadline`). Waits for commits that were accepted before, so that the next owner of
        a partition never starts below a commit of the previous owner. Kafka waits only when the client asks for stable
        offsets.
        """
        shard, error = self._shard_of(group_id)
        if shard is None:
            return error, ()
        if wanted is not None and sum(len(row.partitions) for row in wanted) > self._config.fetch_rows_max:
            return ErrorCode.INVALID_REQUEST, ()
        group = shard.groups.get(group_id)
        if group is not None and not group.writes.is_settled:
            try:
                async with asyncio.timeout_at(deadline(self._config) if until_s is None else until_s):
                    await group.writes.settled()
            except TimeoutError:
                return ErrorCode.NOT_COORDINATOR, ()  # every client retries after this error
            if self._shard_of(group_id)[0] is not shard:  # the group moved to the next coordinator
                return ErrorCode.NOT_COORDINATOR, ()
            group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.NONE, GroupOffsets().fetch(wanted)
        return ErrorCode.NONE, group.offsets.fetch(wanted, self._topics, require_stable=require_stable)
