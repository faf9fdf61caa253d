"""Offsets of one group in open transactions (KIP-98, KIP-447): durable, but not committed until their marker.

- Open offsets are kept by producer id, in the order of the log. A marker ends its producer's open offsets up to the
  marker's epoch.
- A later plain record of the same position (a commit or a tombstone) replaces the open offsets, as in the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from broker.groups.records import CommittedOffset
from broker.internal_topics.batches import Producer

Position: TypeAlias = tuple[str, int]


class OpenOffset(NamedTuple):
    """One open offset. `order`: grows with the log, in one group."""

    order: int
    producer_epoch: int
    value: CommittedOffset


class OpenOffsets:
    __slots__ = ("_by_position", "_by_producer", "_order", "count", "metadata_bytes")

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[Position, OpenOffset]] = {}
        self._by_position: dict[Position, set[int]] = {}
        self._order = 0
        self.count = 0
        self.metadata_bytes = 0

    def put(self, producer: Producer, position: Position, value: CommittedOffset) -> None:
        """Add a durable record of a transaction. Calls follow the log's order."""
        self._remove(producer.producer_id, position)
        self._order += 1
        held = self._by_producer.setdefault(producer.producer_id, {})
        held[position] = OpenOffset(self._order, producer.producer_epoch, value)
        self._by_position.setdefault(position, set()).add(producer.producer_id)
        self.count += 1
        self.metadata_bytes += len(value.metadata)

    def put_again(self, producer: Producer, position: Position, value: CommittedOffset) -> None:
        """Apply a rewritten copy of an open offset (`ReplayedState.repeated`). The offset keeps its place in the log's
        order, which decides between several transactions that commit the same position."""
        held = self._by_producer.get(producer.producer_id, {})
        found = held.get(position)
        if found is None or found.producer_epoch != producer.producer_epoch:
            self.put(producer, position, value)
        elif found.value != value:
            self.metadata_bytes += len(value.metadata) - len(found.value.metadata)
            held[position] = found._replace(value=value)

    def override(self, position: Position, before: int | None = None) -> None:
        """Drop the position's open offsets of a smaller order, because a newer record replaces them."""
        for producer_id in tuple(self._by_position.get(position, ())):
            if before is None or self._by_producer[producer_id][position].order < before:
                self._remove(producer_id, position)

    def end(self, producer_id: int, producer_epoch: int) -> list[tuple[Position, OpenOffset]]:
        """Remove and return the offsets that a marker of this epoch ends. A transaction of a later epoch stays open."""
        held = self._by_producer.get(producer_id, {})
        ended = [(at, found) for at, found in held.items() if found.producer_epoch <= producer_epoch]
        for position, _ in ended:
            self._remove(producer_id, position)
        return ended

    def of(self, position: Position) -> list[CommittedOffset]:
        return [self._by_producer[owner][position].value for owner in self._by_position.get(position, ())]

    def holds(self, position: Position) -> bool:
        return position in self._by_position

    def is_open(self, producer_id: int) -> bool:
        return producer_id in self._by_producer

    def positions(self) -> Iterator[Position]:
        return iter(self._by_position)

    def positions_of(self, producer_id: int) -> list[Position]:
        return list(self._by_producer.get(producer_id, ()))

    def at(self, position: Position) -> list[tuple[int, Producer, CommittedOffset]]:
        """Open offsets of a position: order, producer and value, in the log's order."""
        found = []
        for owner in self._by_position.get(position, ()):
            one = self._by_producer[owner][position]
            found.append((one.order, Producer(owner, one.producer_epoch), one.value))
        return sorted(found, key=lambda row: row[0])

    def in_order(self) -> list[tuple[Producer, Position, CommittedOffset]]:
        """All open offsets, in the log's order."""
        found = [
            (one.order, Producer(owner, one.producer_epoch), at, one.value)
            for owner, held in self._by_producer.items()
            for at, one in held.items()
        ]
        found.sort(key=lambda row: row[0])
        return [row[1:] for row in found]

    def _remove(self, producer_id: int, position: Position) -> None:
        held = self._by_producer.get(producer_id)
        found = None if held is None else held.pop(position, None)
        if held is None or found is None:
            return
        self.count -= 1
        self.metadata_bytes -= len(found.value.metadata)
        owners = self._by_position[position]
        owners.discard(producer_id)
        if not owners:
            del self._by_position[position]
        if not held:
            del self._by_producer[producer_id]
