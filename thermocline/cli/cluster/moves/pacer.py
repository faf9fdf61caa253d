"""Paces a plan of moves: which to start next, which are done, how many bytes are copied. Pure.

At most `at_once` partitions of the plan move at a time, so that no more than these continue after ^C. A copy counts for
at most its expected bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from thermocline.cli.cluster.client import MoveRefusal, Name, Reassignment
from thermocline.cli.cluster.moves.plan import Move


@dataclass(slots=True)
class MovePacer:
    """A plan in progress. `running`: moves in progress, also those that others started; `refused`: reasons of the
    cluster.
    """

    waiting: deque[Move]
    running: dict[Name, Move] = field(default_factory=dict)
    done: dict[Name, Move] = field(default_factory=dict)
    refused: dict[Name, str] = field(default_factory=dict)
    at_once: int = 1
    _copied: dict[tuple[Name, int], int] = field(default_factory=dict)
    _all: dict[Name, Move] = field(default_factory=dict)

    @classmethod
    def of(cls, moves: Iterable[Move], running: Iterable[Move] = (), *, at_once: int) -> MovePacer:
        """The pacer of a plan's moves, and of moves that are in progress already."""
        conduct = cls(deque(moves), {(move.topic, move.partition): move for move in running}, at_once=at_once)
        conduct._all = {(m.topic, m.partition): m for m in (*conduct.waiting, *conduct.running.values())}
        return conduct

    def next_batch(self) -> list[Move]:
        """Moves to start now: none until half of `at_once` is free, so that one request starts many moves."""
        room = self.at_once - len(self.running)
        if room * 2 < self.at_once and len(self.waiting) > room:
            return []
        return [self.waiting.popleft() for _ in range(max(0, min(room, len(self.waiting))))]

    def answered(self, batch: Sequence[Move], refusals: Mapping[Name, MoveRefusal]) -> None:
        """Record the response to a batch. Retriable refusals wait for another request."""
        for move in batch:
            name = move.topic, move.partition
            refusal = refusals.get(name)
            if refusal is None:
                self.running[name] = move
            elif refusal.for_now:
                self.waiting.append(move)
            else:
                self.refused[name] = refusal.why

    def put_back(self, batch: Sequence[Move]) -> None:
        """No response came for the batch."""
        self.waiting.extendleft(reversed(batch))

    def copies(self) -> dict[int, list[Name]]:
        found: dict[int, list[Name]] = {}
        for name, move in self.running.items():
            for node in move.added:
                found.setdefault(node, []).append(name)
        return found

    def update(self, moving: Mapping[Name, Reassignment], sizes: Mapping[tuple[Name, int], int]) -> None:
        """Record the reassignments in progress and the sizes of copies. A recorded size never falls, although copied
        bytes may leave the disk.
        """
        for copy, size in sizes.items():
            if copy[0] in self.running:
                self._copied[copy] = max(size, self._copied.get(copy, 0))
        for name in [name for name in self.running if name not in moving]:
            self.done[name] = self.running.pop(name)

    @property
    def is_over(self) -> bool:
        return not self.running and not self.waiting

    @property
    def partitions(self) -> int:
        return len(self._all)

    @property
    def hot_bytes(self) -> int:
        return sum(move.hot_bytes or 0 for name, move in self._all.items() if name not in self.refused)

    @property
    def copied_bytes(self) -> int:
        running = 0
        for name, move in self.running.items():
            each = (move.hot_bytes or 0) // max(len(move.added), 1)
            running += sum(min(self._copied.get((name, node), 0), each) for node in move.added)
        return running + sum(move.hot_bytes or 0 for move in self.done.values())
