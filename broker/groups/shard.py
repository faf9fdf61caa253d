"""The groups of one partition of `__consumer_offsets`: their durable state, loaded, changed and written out whole.

Owns the table of groups and the partition's place in the log. Always true: `record` and `offsets` of a group are what
the log holds below `end_offset`, never more; `snapshot` is exactly that, cut at one moment. Must not know requests,
timers, the bucket: whoever keeps snapshots asks `dirty_since` and confirms with `snapshot_written`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from broker.groups.classic import ClassicGroup
from broker.groups.config import GroupConfig
from broker.groups.events import Effect, GroupMetadata
from broker.groups.offsets import GroupOffsets
from broker.groups.records import (
    CommittedOffset,
    KeyValue,
    OffsetKey,
    OffsetRecord,
    batch_of,
    chunks,
    offset_record,
    parse_batches,
    stored_group_record,
)
from broker.groups.writer import PartitionWriter
from seams.clock import Clock

_SNAPSHOT_CHUNK: Final = 500  # records between two chances for others to run: 2–3 ms


class ShardState(Enum):
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"  # its log cannot be read: an operator's business
    CLOSED = "closed"


class Snapshot(NamedTuple):
    """The live state at `end_offset` (exclusive), as whole batches whose offsets end there; b"" when nothing lives."""

    end_offset: int
    batches: bytes


class Group:
    """Everything known of one group: the machine's present, and what the log holds."""

    __slots__ = ("accounted", "group_id", "last_write", "machine", "offsets", "record", "record_writes")

    def __init__(self, group_id: str, machine: ClassicGroup) -> None:
        self.group_id = group_id
        self.machine = machine
        self.offsets = GroupOffsets()
        self.record: bytes | None = None  # the value of its newest durable metadata record
        self.record_writes = 0  # metadata records on their way to the log
        self.last_write: asyncio.Future[Exception | None] | None = None  # the newest commit on its way
        self.accounted = 0

    @property
    def size_bytes(self) -> int:
        return self.machine.size_bytes + self.offsets.size_bytes + len(self.record or b"")

    @property
    def is_gone(self) -> bool:
        """Nothing would be lost by forgetting it."""
        offsets = self.offsets
        busy = offsets.count or offsets.is_pending or self.record is not None or self.record_writes
        return not busy and self.machine.is_idle


class Shard:
    """One partition. Groups are in order of their creation."""

    def __init__(self, partition: int, config: GroupConfig, clock: Clock) -> None:
        self.partition = partition
        self.state = ShardState.LOADING
        self.groups: dict[str, Group] = {}
        self.end_offset = 0
        self.writer: PartitionWriter  # set by the coordinator, which owns the tasks
        self._config = config
        self._clock = clock
        self._loaded: dict[str, GroupMetadata | None] = {}
        self._dirty_since_s: float | None = None
        self._taken: tuple[int, float | None] | None = None  # a snapshot not yet confirmed; the first change after it

    # ---- loading ---------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget what a broken-off load brought."""
        self.groups.clear()
        self._loaded.clear()
        self.end_offset = 0

    def replay(self, batches: bytes) -> None:
        """Take whole batches of the log, in order. Raises Corrupt."""
        for next_offset, records in parse_batches(batches):
            for record in records:
                if isinstance(record, OffsetRecord):
                    group = self.create(record.key.group_id)
                    group.offsets.apply(record.key.topic, record.key.partition, record.value)
                else:
                    group = self.create(record.group_id)
                    group.record = record.raw
                    self._loaded[record.group_id] = record.metadata
            self.end_offset = max(self.end_offset, next_offset)

    def restore(self) -> Iterator[tuple[Group, tuple[Effect, ...]]]:
        """Everything was replayed: bring the groups to life, with the effects of that; forget those without state."""
        for group in list(self.groups.values()):
            metadata = self._loaded.get(group.group_id)
            effects: tuple[Effect, ...] = ()
            if metadata is not None:
                group.machine, effects = ClassicGroup.restore(self._config, metadata)
            if group.is_gone:
                del self.groups[group.group_id]
            else:
                yield group, effects
        self._loaded.clear()
        if self.end_offset:
            # What was replayed may be newer than the newest snapshot: whoever keeps that confirms it, or writes one.
            self._dirty_since_s = self._clock.monotonic_s()
            self._taken = (self.end_offset, None)

    def create(self, group_id: str) -> Group:
        """The group, empty if it was not there."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, ClassicGroup(self._config, self._clock.wall_ms()))
        return group

    # ---- snapshots -------------------------------------------------------------------------------------------------

    def appended(self, end_offset: int) -> None:
        """The log holds more now, and the state is about to say so."""
        self.end_offset = max(self.end_offset, end_offset)
        now_s = self._clock.monotonic_s()
        if self._dirty_since_s is None:
            self._dirty_since_s = now_s
        if self._taken is not None and self._taken[1] is None:
            self._taken = (self._taken[0], now_s)

    @property
    def dirty_since_s(self) -> float | None:
        """Monotonic time of the first change that no written snapshot holds."""
        return self._dirty_since_s

    def snapshot_written(self, end_offset: int) -> None:
        """The snapshot that ended there is durable (after a start: was durable already)."""
        if self._taken is not None and self._taken[0] == end_offset:
            self._dirty_since_s = self._taken[1]
            self._taken = None

    async def snapshot(self) -> Snapshot:
        """Cut at the moment of the call; the encoding takes turns with everybody else (5 µs a record)."""
        end_offset = self.end_offset
        self._taken = (end_offset, None)
        groups = [(g.group_id, g.record, list(g.offsets)) for g in self.groups.values()]
        count = sum((record is not None) + len(offsets) for _, record, offsets in groups)
        # Each live record came from an offset of its own, so they fit below the end; the last one lies just below it.
        base = max(end_offset - count, 0)
        batches = bytearray()
        for chunk in chunks(_live_records(groups), _SNAPSHOT_CHUNK, self._config.append_batch_bytes_max):
            batches += batch_of(chunk, self._clock.wall_ms(), base)
            base += len(chunk)
            await asyncio.sleep(0)
        return Snapshot(end_offset, bytes(batches))


def _live_records(groups: list[tuple[str, bytes | None, list[tuple[str, int, CommittedOffset]]]]) -> Iterator[KeyValue]:
    for group_id, record, offsets in groups:
        if record is not None:
            yield stored_group_record(group_id, record)
        for topic, partition, value in offsets:
            yield offset_record(OffsetKey(group_id, topic, partition), value)
