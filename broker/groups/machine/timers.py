"""Deadlines by key, in a heap.

A key has at most one deadline: the one that was set last. The heap holds at most about twice as many entries as there
are keys: a heartbeat moves a deadline without touching the heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SLACK: Final = 64  # stale entries that are never worth a rebuild


class Timers(Generic[K]):
    """Deadlines in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._deadlines: dict[K, float] = {}
        self._queued: dict[K, float] = {}  # the earliest heap entry of a key
        self._heap: list[tuple[float, int, K]] = []
        self._order = 0  # entries of one time fire in the order they were set

    def __len__(self) -> int:
        return len(self._deadlines)

    def start(self, key: K, at_s: float) -> None:
        """Set or move a deadline. A later deadline costs no heap operation: the heap entry is moved when its old time
        comes."""
        self._deadlines[key] = at_s
        queued = self._queued.get(key)
        if queued is None or at_s < queued:
            self._push(key, at_s)

    def stop(self, key: K) -> None:
        self._deadlines.pop(key, None)

    def next_s(self) -> float | None:
        """Time of the next call of `due`, which may return no keys."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_s: float, count_max: int) -> list[K]:
        """Remove and return up to `count_max` keys whose deadline is not after `now_s`, in the order of their
        deadlines."""
        keys: list[K] = []
        while self._heap and self._heap[0][0] <= now_s and len(keys) < count_max:
            at_s, _, key = heapq.heappop(self._heap)
            if self._queued.get(key) != at_s:
                continue  # an earlier entry of this key was handled
            del self._queued[key]
            deadline = self._deadlines.get(key)
            if deadline is None:
                continue
            if deadline > at_s:
                self._push(key, deadline)  # the deadline was moved; if it is due, it is popped again in its order
            else:
                del self._deadlines[key]
                keys.append(key)
        return keys

    def _push(self, key: K, at_s: float) -> None:
        self._order += 1
        self._queued[key] = at_s
        heapq.heappush(self._heap, (at_s, self._order, key))
        if len(self._heap) > 2 * len(self._deadlines) + _SLACK:
            self._rebuild()

    def _rebuild(self) -> None:
        entries = sorted(self._deadlines.items(), key=lambda item: item[1])
        self._queued = dict(entries)
        self._heap = [(at_s, i, key) for i, (key, at_s) in enumerate(entries)]
        self._order = len(entries)
