"""OffsetCommit and OffsetFetch, group by group.

Owns what of a commit is written and when it is answered, and which positions are shown. Always true: a commit that was
answered with NONE is durable; what is shown is durable, and of a shard that is still led when it is answered. Must not
know the wire, members (the machine admits a commit), nor where groups live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from broker.config.groups import GroupConfig
from broker.error_codes import ErrorCode
from broker.groups.commit_outcome import fate_of, is_over, patience
from broker.groups.commits import CommitRow, judge
from broker.groups.group_effects import GroupEffects
from broker.groups.machine.events import AdmitCommit, AdmitReply
from broker.groups.memory_usage import MemoryUsage
from broker.groups.offsets import FetchedOffset, GroupOffsets, Wanted
from broker.groups.shard import GroupShard
from broker.metadata.topic_facts import TopicLookup
from seams.clock import Clock

ShardOf: TypeAlias = Callable[[str], tuple[GroupShard | None, ErrorCode]]
"""Where a group lives, or why nobody can say now."""


class OffsetRequests:
    """One a coordinator."""

    def __init__(
        self,
        shard_of: ShardOf,
        performer: GroupEffects,
        memory: MemoryUsage,
        clock: Clock,
        config: GroupConfig,
        topics: TopicLookup,
    ) -> None:
        self._shard_of = shard_of
        self._performer = performer
        self._memory = memory
        self._clock = clock
        self._config = config
        self._topics = topics

    async def commit(
        self,
        group_id: str,
        member: AdmitCommit,
        rows: Sequence[CommitRow],
        *,
        retention_ms: int = -1,
        unknown_group: ErrorCode = ErrorCode.ILLEGAL_GENERATION,
        until_s: float | None = None,
    ) -> list[ErrorCode]:
        """One error a row, in order; those that are NONE are durable. `member`'s token is filled in here.

        `unknown_group` is what a member of no group is told (it depends on the API's version). `until_s`: of the whole
        request, as `fate.patience`; one that is over is refused, and nothing is written.
        """
        until_s = patience(self._config) if until_s is None else until_s
        if is_over(until_s):
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(rows)
        shard, error = self._shard_of(group_id)
        if shard is None:
            return [error] * len(rows)
        if len(rows) > self._config.commit_rows_max:
            return [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * len(rows)
        group = shard.groups.get(group_id)
        if group is None:
            if member.generation >= 0:
                return [unknown_group] * len(rows)
            if self._memory.is_full(0, new_group=True):
                return [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * len(rows)
            group = shard.create(group_id)
        future: asyncio.Future[AdmitReply] = asyncio.get_running_loop().create_future()
        self._performer.step(shard, group, AdmitCommit(future, member.member_id, member.generation, member.instance_id))
        error = future.result().error
        if error is ErrorCode.NONE:
            is_full = partial(self._memory.is_full, new_group=False)
            now_ms = self._clock.wall_ms()
            codes, values = judge(
                rows, group.offsets, self._topics, self._config, is_full, now_ms=now_ms, retention_ms=retention_ms
            )
            write = shard.write_positions(group, values) if values else None
        else:
            codes, write = [error] * len(rows), None
        shard.settle(group)
        if write is not None:
            failure = await fate_of(write, until_s)
            codes = [failure if code is ErrorCode.NONE else code for code in codes]
        return codes

    async def fetch(
        self, group_id: str, wanted: Sequence[Wanted] | None, *, until_s: float | None = None
    ) -> tuple[ErrorCode, tuple[FetchedOffset, ...]]:
        """Durable positions; None asks for all. An unknown group has none, which is no error. `until_s`: of the whole
        request, as `fate.patience`.

        Waits for commits that were accepted before it, so that the next owner of a partition never starts behind what
        its previous owner was allowed to commit. (Kafka waits only when the client asks for stable offsets.)
        """
        shard, error = self._shard_of(group_id)
        if shard is None:
            return error, ()
        if wanted is not None and sum(len(row.partitions) for row in wanted) > self._config.fetch_rows_max:
            return ErrorCode.INVALID_REQUEST, ()
        group = shard.groups.get(group_id)
        if group is not None and not group.writes.is_settled:
            try:
                async with asyncio.timeout_at(patience(self._config) if until_s is None else until_s):
                    await group.writes.settled()
            except TimeoutError:
                return ErrorCode.NOT_COORDINATOR, ()  # every client asks again after this one
            if self._shard_of(group_id)[0] is not shard:  # what it knew went to the next coordinator
                return ErrorCode.NOT_COORDINATOR, ()
            group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.NONE, GroupOffsets().fetch(wanted)
        return ErrorCode.NONE, group.offsets.fetch(wanted, self._topics)
