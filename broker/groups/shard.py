"""The groups of one partition of `__consumer_offsets`: their durable state, loaded, changed and written out whole.

Owns the table of groups and the partition's place in the log. Always true: `record` and `offsets` of a group are what
the log holds below `end_offset`, never more; `snapshot` is exactly that, cut at one moment. Must not know requests,
timers, the bucket: whoever keeps snapshots asks `dirty_since` and confirms with `snapshot_written`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from broker.config.groups import GroupConfig
from broker.groups.classic import ClassicGroup
from broker.groups.events import Effect, GroupMetadata
from broker.groups.ledger import Ledger
from broker.groups.log import OffsetsLog
from broker.groups.offsets import GroupOffsets, TopicPosition
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
from logformat.errors import Retryable
from seams.clock import Clock
from seams.tasks import Tasks
from seams.turns import next_turn

_SNAPSHOT_CHUNK: Final = 200  # records between two chances for others to run: 4 ms


class ShardState(Enum):
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"  # its log cannot be read: an operator's business
    CLOSED = "closed"


class Snapshot(NamedTuple):
    """The live state at `end_offset` (exclusive), as whole batches whose offsets end there; b"" when nothing lives."""

    end_offset: int
    batches: bytes


@dataclass(slots=True)
class _Taken:
    """A snapshot that was cut and not yet confirmed; `is_behind` when something changed after the cut."""

    end_offset: int
    cut_s: float
    is_behind: bool = False


class Writes:
    """Commits of one group on their way to the log, which decides them in the order they were begun."""

    __slots__ = ("_begun", "_ended", "_waiters")

    def __init__(self) -> None:
        self._begun = 0
        self._ended = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def is_settled(self) -> bool:
        return self._begun == self._ended

    def begin(self) -> None:
        self._begun += 1

    def end(self) -> None:
        self._ended += 1
        while self._waiters and self._waiters[0][0] <= self._ended:
            _, waiter = self._waiters.pop(0)
            if not waiter.done():
                waiter.set_result(None)

    def settled(self) -> asyncio.Future[None]:
        """Done when every write begun so far is decided."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._begun, waiter))
        return waiter


class Group:
    """Everything known of one group: the machine's present, and what the log holds."""

    __slots__ = ("accounted", "group_id", "machine", "offsets", "record", "record_writes", "writes")

    def __init__(self, group_id: str, machine: ClassicGroup) -> None:
        self.group_id = group_id
        self.machine = machine
        self.offsets = GroupOffsets()
        self.record: bytes | None = None  # the value of its newest durable metadata record
        self.record_writes = 0  # metadata records on their way to the log
        self.writes = Writes()
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

    def __init__(
        self,
        partition: int,
        offsets_log: OffsetsLog,
        clock: Clock,
        config: GroupConfig,
        tasks: Tasks,
        ledger: Ledger,
    ) -> None:
        self.partition = partition
        self.state = ShardState.LOADING
        self.is_loaded = False
        self.groups: dict[str, Group] = {}
        self.end_offset = 0
        self.writer = PartitionWriter(partition, offsets_log, clock, config, tasks, self._appended)
        self._ledger = ledger
        self._config = config
        self._clock = clock
        self._loaded: dict[str, GroupMetadata | None] = {}
        self._cut_s = clock.monotonic_s()  # when the newest written snapshot was cut; at first, when this began
        self._is_dirty = False  # something changed since then
        self._taken: _Taken | None = None

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
            self.settle(group)
            if not group.is_gone:
                yield group, effects
        self._loaded.clear()
        self.is_loaded = True
        if self.end_offset:
            # What was replayed may be newer than the newest snapshot: whoever keeps that confirms it, or writes one.
            # How old it is nobody knows, so that one is due now: a broker that starts again and again would never
            # reach the end of an interval (simulated seed 2346).
            self._is_dirty = True
            self._taken = _Taken(self.end_offset, self._clock.monotonic_s())
            self._cut_s = -math.inf
        else:
            self._cut_s = self._clock.monotonic_s()

    def create(self, group_id: str) -> Group:
        """The group, empty if it was not there."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, ClassicGroup(self._config, self._clock.wall_ms()))
        return group

    def settle(self, group: Group) -> None:
        """After a change: count what the group takes; forget it when nothing is left of it."""
        if self.groups.get(group.group_id) is not group:
            return
        if group.is_gone:
            del self.groups[group.group_id]
        group.accounted = self._ledger.resize(group.accounted, 0 if group.is_gone else group.size_bytes)

    # ---- writing ---------------------------------------------------------------------------------------------------

    def write_positions(
        self, group: Group, values: Sequence[tuple[TopicPosition, CommittedOffset | None]]
    ) -> asyncio.Future[Exception | None]:
        """Queue commits and tombstones; the future gets the failure, or None when they are durable and applied."""
        positions = [position for position, _ in values]
        records = [offset_record(OffsetKey(group.group_id, *position), value) for position, value in values]
        write: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        group.writes.begin()
        group.offsets.begin(positions)

        def done(failure: Exception | None) -> None:
            group.offsets.end(positions)
            if failure is None:
                for (topic, partition), value in values:
                    group.offsets.apply(topic, partition, value)
            group.writes.end()
            if not write.done():
                write.set_result(failure)
            self.settle(group)

        self.writer.submit(records, done)
        return write

    def write_group(self, group: Group, record: KeyValue, then: Callable[[Exception | None], None]) -> None:
        """Queue a metadata record or tombstone; `then` hears of its fate after the group knows."""
        group.record_writes += 1

        def done(failure: Exception | None) -> None:
            group.record_writes -= 1
            if failure is None:
                group.record = record.value
            then(failure)
            self.settle(group)

        self.writer.submit([record], done)

    # ---- snapshots -------------------------------------------------------------------------------------------------

    def _appended(self, end_offset: int) -> None:
        """The log holds more now, and the state is about to say so."""
        self.end_offset = max(self.end_offset, end_offset)
        self._is_dirty = True
        if self._taken is not None:
            self._taken.is_behind = True

    @property
    def dirty_since_s(self) -> float | None:
        """Monotonic time of the newest written snapshot's cut, if anything changed after it."""
        return self._cut_s if self._is_dirty and self.is_loaded else None

    def snapshot_written(self, end_offset: int) -> None:
        """The snapshot that ended there is durable (after a start: was durable already)."""
        if self._taken is not None and self._taken.end_offset == end_offset:
            self._cut_s, self._is_dirty = self._taken.cut_s, self._taken.is_behind
            self._taken = None

    async def snapshot(self) -> Snapshot:
        """Cut at the moment of the call; the encoding takes turns with everybody else (20 µs a record).

        Raises Retryable while the partition is not loaded: half a state must never replace a whole one.
        """
        if not self.is_loaded:
            raise Retryable(f"the groups of __consumer_offsets-{self.partition} are not loaded; keep the last snapshot")
        end_offset = self.end_offset
        self._taken = _Taken(end_offset, self._clock.monotonic_s())
        groups = [(g.group_id, g.record, list(g.offsets)) for g in self.groups.values()]
        count = sum((record is not None) + len(offsets) for _, record, offsets in groups)
        # Each live record came from an offset of its own, so they fit below the end; the last one lies just below it.
        base = max(end_offset - count, 0)
        batches = bytearray()
        for chunk in chunks(_live_records(groups), _SNAPSHOT_CHUNK, self._config.append_batch_bytes_max):
            batches += batch_of(chunk, self._clock.wall_ms(), base)
            base += len(chunk)
            await next_turn()
        return Snapshot(end_offset, bytes(batches))


def _live_records(groups: list[tuple[str, bytes | None, list[tuple[str, int, CommittedOffset]]]]) -> Iterator[KeyValue]:
    for group_id, record, offsets in groups:
        if record is not None:
            yield stored_group_record(group_id, record)
        for topic, partition, value in offsets:
            yield offset_record(OffsetKey(group_id, topic, partition), value)
