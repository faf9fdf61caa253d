"""Background cleaning of groups. The cleaner writes tombstones for expired offsets, for positions in deleted topics and
for empty groups. It adds topic ids to positions that have none.

A tombstone is decided only while no commit of its position is in flight, so a tombstone never follows a commit in
flight into the log. A position in a deleted topic is hidden even before its tombstone is written (`offsets.belongs`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from broker.config.groups import GroupConfig
from broker.groups.commit_outcome import Write
from broker.groups.offsets import TopicPosition, expiry_rule
from broker.groups.records import CommittedOffset, stored_group_record
from broker.groups.shard import Group, GroupShard
from broker.metadata.image import TopicLookup
from seams.clock import Clock
from seams.loop.turns import next_turn

log = logging.getLogger(__name__)

_GROUPS_AT_ONCE: Final = 200  # groups whose changes are written before the cleaner waits for them
_POSITIONS_AT_ONCE: Final = 2_000  # 10 µs each: encoded, and put into a batch

Changes = list[tuple[TopicPosition, CommittedOffset | None]]
Clean = Callable[[GroupShard, Group], Changes]


@dataclass(eq=False, repr=False)
class Cleaner:
    """Cleans the groups of one coordinator. `leaving`: names of deleted topics that are still being removed.
    `is_complete`: whether all topics are known (R29). Until then positions in unknown topics get no tombstones."""

    _ready: Callable[[], Sequence[GroupShard]]
    _clock: Clock
    _config: GroupConfig
    _topics: TopicLookup
    _leaving: Callable[[], Collection[str]]
    _is_complete: Callable[[], bool]

    def __post_init__(self) -> None:
        self._withdrawn: set[str] = set()
        self._loaded: list[GroupShard] = []  # shards loaded since the last check
        self._wake = asyncio.Event()

    def topic_withdrawn(self, name: str) -> None:
        """A topic was deleted: its positions get tombstones soon."""
        self._withdrawn.add(name)
        self._wake.set()

    def adopt(self, group: Group) -> None:
        """Give topic ids to positions without one, before a loaded group is used. Positions without a topic id
        (OffsetCommit 2–4 with a retention, as Kafka and earlier versions of this broker store them) belong to the
        current topic. While an earlier topic of that name is being removed, such positions probably belong to the
        earlier topic, and get no id.
        """
        group.offsets.adopt(self._topics, self._leaving)

    def shard_loaded(self, shard: GroupShard) -> None:
        """A shard was loaded: adopted topic ids, and tombstones of orphaned positions, are written soon."""
        self._loaded.append(shard)
        self._wake.set()

    async def run(self) -> None:
        """Expire offsets at every interval, and handle loaded shards and deleted topics, until cancelled."""
        interval_s = self._config.offsets_retention_check_interval_ms / 1000
        next_s = self._clock.monotonic_s() + interval_s
        while True:
            try:
                async with asyncio.timeout(max(next_s - self._clock.monotonic_s(), 0)):
                    await self._wake.wait()
            except TimeoutError:
                next_s = self._clock.monotonic_s() + interval_s
                await self._everywhere(self._expire)
                continue
            self._wake.clear()
            loaded, self._loaded = self._loaded, []
            names, self._withdrawn = frozenset(self._withdrawn), set()
            for shard in loaded:
                await self._in(shard, self._settle_owners)
            if names:
                await self._everywhere(partial(self._forget, names=names))

    async def _everywhere(self, clean: Clean) -> None:
        for shard in self._ready():
            await self._in(shard, clean)

    async def _in(self, shard: GroupShard, clean: Clean) -> None:
        """Change a bounded number of groups and positions at a time, so that tombstones do not push commits out of the
        queue. Each change is decided when it is written."""
        left = deque(shard.groups.values())
        while left and shard.is_ready:
            writes: list[Write] = []
            unfinished: list[Group] = []
            room = _POSITIONS_AT_ONCE
            for _ in range(min(len(left), _GROUPS_AT_ONCE)):
                group = left.popleft()
                if shard.groups.get(group.group_id) is not group:
                    continue
                changes = clean(shard, group)
                if changes:
                    writes.append(shard.write_positions(group, changes[:room]))
                if len(changes) >= room:
                    unfinished.append(group)
                    break
                room -= len(changes)
            if await self._are_settled(shard, writes):
                left.extend(unfinished)  # otherwise a log that refuses writes would be retried without end
            await next_turn()

    async def _are_settled(self, shard: GroupShard, writes: list[Write]) -> bool:
        if not writes:
            return True
        done, late = await asyncio.wait(writes, timeout=self._config.offsets_commit_timeout_ms / 1000)
        failures = [failure for write in done if (failure := write.result()) is not None]
        if failures or late:
            why = failures[0] if failures else "not durable in time"
            log.warning("cleaning __consumer_offsets-%d: %s; trying again later", shard.partition, why)
        return not failures and not late

    def _expire(self, shard: GroupShard, group: Group) -> Changes:
        changes = self._settle_owners(shard, group)
        rule = expiry_rule(group.machine)
        if changes or rule is None:
            return changes
        gone = group.offsets.expired(rule, self._clock.wall_ms(), self._config.offsets_retention_ms)
        stays = len(gone) < group.offsets.positions_count or (group.offsets.is_pending and not gone)
        if not stays and group.machine.is_idle and group.record is not None and not group.record_writes:
            shard.write_group(group, stored_group_record(group.group_id, None), lambda _: None)
        return _tombstones(gone)

    def _settle_owners(self, shard: GroupShard, group: Group) -> Changes:
        return [*group.offsets.adopted(), *self._forget(shard, group)]

    def _forget(self, shard: GroupShard, group: Group, names: frozenset[str] | None = None) -> Changes:
        """Tombstones for positions in deleted topics; with `names`, only for deleted topics of these names."""
        if not self._is_complete():
            return []  # the next check of expiry comes back to them
        return _tombstones(group.offsets.orphaned(self._topics, names))


def _tombstones(gone: Sequence[TopicPosition]) -> Changes:
    return [(position, None) for position in gone]
