"""Groups of one partition of `__consumer_offsets`, as its records define them, while this broker leads it.

The groups are the state that an internal log replays and rewrites. `record` and `offsets` of a group have the content
of the applied part of the log. A commit is applied only when its append in this leader epoch succeeded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from broker.config.groups import GroupConfig
from broker.error_codes import ErrorCode
from broker.groups.commit_outcome import Write
from broker.groups.machine.classic import ClassicGroup
from broker.groups.machine.events import Effect, GroupMetadata
from broker.groups.offsets import GroupOffsets, TopicPosition
from broker.groups.open_offsets import OpenOffsets
from broker.groups.records import (
    CommittedOffset,
    OffsetKey,
    OffsetRecord,
    offset_record,
    parse,
    stored_group_record,
)
from broker.internal_topics.appender import Guard
from broker.internal_topics.batches import KeyValue, Producer
from broker.internal_topics.interfaces import Live
from broker.internal_topics.led_shard import Shard
from logformat.transaction_marker import TransactionMarker
from seams.clock import Clock

if TYPE_CHECKING:
    from broker.groups.coordinator import GroupCoordinator


class MemoryUsage:
    """Memory and number of all groups of a coordinator, and their limits."""

    def __init__(self, config: GroupConfig) -> None:
        self.bytes = 0
        self.group_count = 0
        self._config = config

    def is_full(self, more_bytes: int, *, new_group: bool) -> bool:
        over = self.bytes + more_bytes > self._config.state_bytes_max
        return over or (new_group and self.group_count >= self._config.groups_max)

    def resize(self, before: int, after: int) -> int:
        """A group takes `after` bytes instead of `before` (0: the group does not exist). Returns `after`."""
        self.bytes += after - before
        self.group_count += (after > 0) - (before > 0)
        return after


class Writes:
    """Commits of one group that are in flight to the log. The log decides them in order."""

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
    """The state machine of one group, and its records in the log."""

    __slots__ = ("accounted", "group_id", "machine", "offsets", "record", "record_writes", "writes")

    def __init__(self, group_id: str, machine: ClassicGroup) -> None:
        self.group_id = group_id
        self.machine = machine
        self.offsets = GroupOffsets()
        self.record: bytes | None = None  # the value of the newest durable metadata record
        self.record_writes = 0  # metadata records on their way to the log
        self.writes = Writes()
        self.accounted = 0

    @property
    def size_bytes(self) -> int:
        return self.machine.size_bytes + self.offsets.size_bytes + len(self.record or b"")

    @property
    def is_gone(self) -> bool:
        """Whether the group has no state to keep."""
        offsets = self.offsets
        busy = not offsets.is_empty or self.record is not None or self.record_writes
        return not busy and self.machine.is_idle


class GroupShard:
    """A `ReplayedState`. Groups are in order of their creation."""

    def __init__(
        self, shard: Shard, clock: Clock, config: GroupConfig, memory: MemoryUsage, owner: GroupCoordinator
    ) -> None:
        self.partition = shard.index
        self.groups: dict[str, Group] = {}
        self._shard = shard
        self._clock = clock
        self._config = config
        self._memory = memory
        self._owner = owner
        self._loaded: dict[str, GroupMetadata | None] = {}
        self._open: dict[int, set[str]] = {}  # groups with offsets in a producer's open transaction
        self._resolved: dict[tuple[str, TopicPosition], None] | None = None  # resolved by markers during a rewrite
        self._has_lost = False
        self.undecided: dict[int, int] = {}
        """By producer id: the epoch of a producer that had open offsets when the log lost records. The marker and the
        records may be lost, so the log itself may have no open transaction."""

    @property
    def is_ready(self) -> bool:
        return self._shard.is_ready

    def guard(self, producer_id: int) -> Guard:
        return self._shard.guard(producer_id)

    # ---- as the log's state ----------------------------------------------------------------------------------------

    def apply(self, records: Sequence[KeyValue]) -> None:
        self._replay(records, GroupOffsets.apply, OpenOffsets.put)

    def repeated(self, records: Sequence[KeyValue]) -> None:
        self._replay(records, GroupOffsets.repeated, OpenOffsets.put_again)

    def _replay(
        self,
        records: Sequence[KeyValue],
        commit: Callable[[GroupOffsets, str, int, CommittedOffset | None], None],
        put: Callable[[OpenOffsets, Producer, TopicPosition, CommittedOffset], None],
    ) -> None:
        for key, value, producer in records:
            record = parse(key, value)
            if record is None:
                continue
            if isinstance(record, OffsetRecord):
                group = self.create(record.key.group_id)
                where = (record.key.topic, record.key.partition)
                if producer is None or record.value is None:
                    commit(group.offsets, *where, record.value)
                else:
                    put(group.offsets.open, producer, where, record.value)
                    self._open.setdefault(producer.producer_id, set()).add(group.group_id)
            elif producer is None:
                group = self.create(record.group_id)
                group.record = record.raw
                self._loaded[record.group_id] = record.metadata

    def restore(self) -> Iterator[None]:
        """Restore the groups' machines; forget groups without state."""
        for group in list(self.groups.values()):
            metadata = self._loaded.pop(group.group_id, None)
            effects: tuple[Effect, ...] = ()
            if metadata is not None:
                group.machine, effects = ClassicGroup.restore(self._config, metadata)
            if not group.is_gone:
                self._owner.restored(self, group, effects)
            self.settle(group)
            yield
        self._loaded.clear()
        if self._has_lost:
            for group in self.groups.values():
                for producer, _, _ in group.offsets.open.in_order():
                    epoch = max(producer.producer_epoch, self.undecided.get(producer.producer_id, -1))
                    self.undecided[producer.producer_id] = epoch

    def end_transaction(self, marker: TransactionMarker) -> None:
        producer_id = marker.producer_id
        if self.undecided.get(producer_id, marker.producer_epoch + 1) <= marker.producer_epoch:
            del self.undecided[producer_id]
        groups = self._open.pop(producer_id, set())
        for group_id in groups:
            group = self.groups.get(group_id)
            if group is None:
                continue
            ended = group.offsets.end_transaction(producer_id, marker.producer_epoch, is_commit=marker.is_commit)
            if self._resolved is not None and marker.is_commit:
                self._resolved.update(dict.fromkeys((group_id, position) for position in ended))
            if group.offsets.open.is_open(producer_id):  # in a later epoch: the marker is a repeat, or late
                self._open.setdefault(producer_id, set()).add(group_id)
            self.settle(group)

    def lost(self) -> None:
        """An unknown part of the log's records is missing. A missing commit only causes records to be read again, but
        transaction markers may be missing too.
        """
        self._has_lost = True

    def live(self) -> Live:
        groups = [(g.group_id, g.record, list(g.offsets), g.offsets.open.in_order()) for g in self.groups.values()]
        count = sum((record is not None) + len(offsets) + len(opened) for _, record, offsets, opened in groups)
        return Live(count, _live_records(groups))

    def live_again(self) -> Generator[KeyValue | None, None, None]:
        """The rewritten records: committed positions, then open offsets, which are newer. Offsets that a marker commits
        meanwhile come last."""
        self._resolved = {}
        try:
            yield stored_group_record("", None)  # this record has no effect: no member may use the empty group id
            yield from self._committed_again()
            yield from self._opened_again()
            yield None  # later records are in no transaction
            while self._resolved:
                (group_id, (topic, partition)), _ = self._resolved.popitem()
                group = self.groups.get(group_id)
                value = None if group is None else group.offsets.get(topic, partition)
                if group is not None and value is not None:
                    yield offset_record(OffsetKey(group_id, topic, partition), value)
                    yield from self._opened_at(group, (topic, partition))
        finally:
            self._resolved = None

    def _opened_again(self) -> Iterator[KeyValue | None]:
        """Open offsets, sorted by producer so that there are few batches. Offsets of one position are in the log's
        order."""
        shared: list[tuple[str, TopicPosition]] = []
        for producer_id in list(self._open):
            yield None
            for group_id in list(self._open.get(producer_id, ())):
                group = self.groups.get(group_id)
                for position in group.offsets.open.positions_of(producer_id) if group is not None else ():
                    assert group is not None
                    held = group.offsets.open.at(position)
                    if len(held) > 1:
                        shared.append((group_id, position))
                    elif held and held[0][1].producer_id == producer_id:
                        yield _open_record(group_id, position, held[0])
        for group_id, position in shared:
            group = self.groups.get(group_id)
            if group is not None:
                yield from self._opened_at(group, position)

    def _opened_at(self, group: Group, position: TopicPosition) -> Iterator[KeyValue | None]:
        """The open offsets of one position, one record a batch. A newer record that is appended meanwhile is repeated
        after these records, which preserves the order."""
        last = 0
        while newer := [found for found in group.offsets.open.at(position) if found[0] > last]:
            yield None
            # Read the offsets again: while the previous record was appended, a marker may have ended them.
            newer = [found for found in group.offsets.open.at(position) if found[0] > last]
            if newer:
                last = newer[0][0]
                yield _open_record(group.group_id, position, newer[0])
        yield None

    def _committed_again(self) -> Iterator[KeyValue]:
        for group in list(self.groups.values()):
            if self.groups.get(group.group_id) is not group:
                continue
            if group.record is not None:
                yield stored_group_record(group.group_id, group.record)
            for topic, partition, _ in list(group.offsets):
                value = group.offsets.get(topic, partition)
                if value is not None:
                    yield offset_record(OffsetKey(group.group_id, topic, partition), value)

    def unload(self) -> None:
        self._owner.unloaded(self)
        for group in self.groups.values():
            group.accounted = self._memory.resize(group.accounted, 0)
        self.groups.clear()
        self._open.clear()
        self.undecided.clear()

    # ---- groups ----------------------------------------------------------------------------------------------------

    def create(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, ClassicGroup(self._config, self._clock.wall_ms()))
        return group

    def settle(self, group: Group) -> None:
        """Account the group's memory after a change, and forget the group if it is empty."""
        if self.groups.get(group.group_id) is not group:
            return
        if group.is_gone:
            del self.groups[group.group_id]
        group.accounted = self._memory.resize(group.accounted, 0 if group.is_gone else group.size_bytes)

    # ---- writing ---------------------------------------------------------------------------------------------------

    def write_positions(self, group: Group, values: Sequence[tuple[TopicPosition, CommittedOffset | None]]) -> Write:
        """Queue commits and tombstones. The future gets the failure, or None when the records are durable and
        applied."""

        def apply() -> None:
            for (topic, partition), value in values:
                group.offsets.apply(topic, partition, value)

        return self._write(group, values, apply)

    def write_open(
        self, producer: Producer, guard: Guard, group: Group, values: Sequence[tuple[TopicPosition, CommittedOffset]]
    ) -> Write:
        """As `write_positions`, for offsets of a transaction: they count when its marker commits them. `guard`: see
        `Shard.submit`. It is released when the write is done, which may be after the request's time-out."""

        def apply() -> None:
            for position, value in values:
                group.offsets.open.put(producer, position, value)
            self._open.setdefault(producer.producer_id, set()).add(group.group_id)

        return self._write(group, values, apply, producer, guard)

    def _write(
        self,
        group: Group,
        values: Sequence[tuple[TopicPosition, CommittedOffset | None]],
        apply: Callable[[], None],
        producer: Producer | None = None,
        guard: Guard | None = None,
    ) -> Write:
        positions = [position for position, _ in values]
        records = [offset_record(OffsetKey(group.group_id, *position), value) for position, value in values]
        if producer is not None:
            records = [record._replace(producer=producer) for record in records]
        write: Write = asyncio.get_running_loop().create_future()
        group.writes.begin()
        group.offsets.begin(positions)

        def done(failure: Exception | None) -> None:
            if guard is not None:
                guard.release()
            group.offsets.end(positions)
            if failure is None:
                apply()
            group.writes.end()
            if not write.done():
                write.set_result(failure)
            self.settle(group)

        self._shard.submit(records, done, guard)
        return write

    def write_group(self, group: Group, record: KeyValue, then: Callable[[Exception | None], None]) -> None:
        """Queue a metadata record or tombstone. `then` gets the outcome after the group was updated."""
        group.record_writes += 1

        def done(failure: Exception | None) -> None:
            group.record_writes -= 1
            if failure is None:
                group.record = record.value
            then(failure)
            self.settle(group)

        self._shard.submit([record], done)


ShardOf: TypeAlias = Callable[[str], tuple[GroupShard | None, ErrorCode]]
"""The shard of a group, or why it is not available now."""


def _open_record(group_id: str, position: TopicPosition, held: tuple[int, Producer, CommittedOffset]) -> KeyValue:
    return offset_record(OffsetKey(group_id, *position), held[2])._replace(producer=held[1])


_Held = tuple[
    str,
    bytes | None,
    list[tuple[str, int, CommittedOffset]],
    list[tuple[Producer, TopicPosition, CommittedOffset]],
]


def _live_records(groups: list[_Held]) -> Iterator[KeyValue]:
    for group_id, record, offsets, _ in groups:
        if record is not None:
            yield stored_group_record(group_id, record)
        for topic, partition, value in offsets:
            yield offset_record(OffsetKey(group_id, topic, partition), value)
    for group_id, _, _, opened in groups:
        for producer, (topic, partition), value in opened:
            yield offset_record(OffsetKey(group_id, topic, partition), value)._replace(producer=producer)
