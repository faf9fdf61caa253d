"""Eviction policy of the chunk cache: S3-FIFO (SOSP'23), scan-resistant. Pure.

It has a FIFO of newcomers, a FIFO of proven items, and the ids of recently evicted newcomers. A newcomer becomes proven
if it is visited again before its eviction, or added again soon after it. The sum of sizes is at most `bytes_max`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

NEWCOMERS_SHARE: Final = 0.25  # of the budget; prefetched chunks are newcomers until they are read
VISITS_MAX: Final = 3
GHOSTS_MAX: Final = 4096

Id = TypeVar("Id", bound=Hashable)


@dataclass(slots=True, eq=False)
class _Item:
    size: int
    visits: int = -1  # nothing read yet; the first visit proves nothing


class CachePolicy(Generic[Id]):
    """Decisions for a cache of at most `bytes_max` bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._newcomers: OrderedDict[Id, _Item] = OrderedDict()
        self._proven: OrderedDict[Id, _Item] = OrderedDict()
        self._ghosts: OrderedDict[Id, None] = OrderedDict()
        self._bytes = 0
        self._newcomer_bytes = 0

    def __contains__(self, item_id: Id) -> bool:
        return item_id in self._newcomers or item_id in self._proven

    def __len__(self) -> int:
        return len(self._newcomers) + len(self._proven)

    @property
    def bytes_max(self) -> int:
        return self._bytes_max

    @property
    def nbytes(self) -> int:
        return self._bytes

    def visit(self, item_id: Id) -> bool:
        """Note that the item is read. Returns whether it is cached."""
        item = self._find(item_id)
        if item is None:
            return False
        item.visits = min(item.visits + 1, VISITS_MAX)
        return True

    def admit(self, item_id: Id, size: int) -> tuple[bool, list[Id]]:
        """Add a new item. Returns whether it fits, and the evicted items in order."""
        assert item_id not in self, item_id
        if size > self._bytes_max:
            return False, []
        evicted = self._make_room(size)
        if item_id in self._ghosts:
            del self._ghosts[item_id]
            self._proven[item_id] = _Item(size)
        else:
            self._newcomers[item_id] = _Item(size)
            self._newcomer_bytes += size
        self._bytes += size
        return True, evicted

    def resize(self, bytes_max: int) -> list[Id]:
        """Change the budget. Returns the items that this evicts."""
        self._bytes_max = bytes_max
        return self._make_room(0)

    def remove(self, item_id: Id) -> bool:
        """Forget a deleted or damaged item. Returns whether it was cached."""
        item = self._newcomers.pop(item_id, None)
        if item is not None:
            self._newcomer_bytes -= item.size
        else:
            item = self._proven.pop(item_id, None)
        self._ghosts.pop(item_id, None)
        if item is None:
            return False
        self._bytes -= item.size
        return True

    def ids(self) -> list[Id]:
        """All items, newcomers first, in eviction order."""
        return [*self._newcomers, *self._proven]

    def _find(self, item_id: Id) -> _Item | None:
        item = self._newcomers.get(item_id)
        return item if item is not None else self._proven.get(item_id)

    def _make_room(self, size: int) -> list[Id]:
        evicted: list[Id] = []
        # Each step evicts an item, promotes one, or uses up a visit of a proven one, so this ends.
        while self._bytes + size > self._bytes_max and len(self):
            newcomers_first = self._newcomer_bytes + size > self._bytes_max * NEWCOMERS_SHARE or not self._proven
            queue = self._newcomers if newcomers_first and self._newcomers else self._proven
            victim = self._step(queue)
            if victim is not None:
                evicted.append(victim)
        return evicted

    def _step(self, queue: OrderedDict[Id, _Item]) -> Id | None:
        """Evict or move the oldest item of `queue`. Returns its id if it was evicted."""
        item_id, item = next(iter(queue.items()))
        if item.visits > 0 and queue is self._newcomers:
            self._promote(item_id, item)
            return None
        if item.visits > 0:
            item.visits -= 1
            queue.move_to_end(item_id)
            return None
        self.remove(item_id)
        if queue is self._newcomers:
            self._ghosts[item_id] = None
            while len(self._ghosts) > GHOSTS_MAX:
                self._ghosts.popitem(last=False)
        return item_id

    def _promote(self, item_id: Id, item: _Item) -> None:
        del self._newcomers[item_id]
        self._newcomer_bytes -= item.size
        item.visits = 0
        self._proven[item_id] = item
