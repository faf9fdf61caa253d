"""Carrying a plan out, a bounded number of partitions at a time: a machine.

Owns which moves are asked for next, which are done, and how many of their bytes are copied. Always true: no more than
`at_once` partitions of this plan move at a time, so that ^C leaves no more than those behind; a copy counts for what it
was expected to take, at most. Pure. Must not know how brokers are asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from thermocline.cli.cluster.client import Name, Refusal, UnderWay
from thermocline.cli.cluster.moves.plan import Move


@dataclass(slots=True)
class Conduct:
    """One plan on its way. `running`: those that move now, moves that somebody else began among them; `refused`: why,
    for those that the cluster does not want."""

    waiting: deque[Move]
    running: dict[Name, Move] = field(default_factory=dict)
    done: dict[Name, Move] = field(default_factory=dict)
    refused: dict[Name, str] = field(default_factory=dict)
    at_once: int = 1
    _copied: dict[tuple[Name, int], int] = field(default_factory=dict)
    _all: dict[Name, Move] = field(default_factory=dict)

    @classmethod
    def of(cls, moves: Iterable[Move], running: Iterable[Move] = (), *, at_once: int) -> Conduct:
        """Of a plan, and what moves already."""
        conduct = cls(deque(moves), {(move.topic, move.partition): move for move in running}, at_once=at_once)
        conduct._all = {(m.topic, m.partition): m for m in (*conduct.waiting, *conduct.running.values())}
        return conduct

    # ── what is asked ────────────────────────────────────────────────────────────────────────────────────────────
    def next_batch(self) -> list[Move]:
        """To be asked for now: when half of what may move at a time is done, and it is one request for many."""
        room = self.at_once - len(self.running)
        if room * 2 < self.at_once and len(self.waiting) > room:
            return []
        return [self.waiting.popleft() for _ in range(max(0, min(room, len(self.waiting))))]

    def answered(self, batch: Sequence[Move], refusals: Mapping[Name, Refusal]) -> None:
        """What of the batch moves now; what is refused for now is asked again later."""
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
        """Nobody said whether they move."""
        self.waiting.extendleft(reversed(batch))

    # ── what is seen ─────────────────────────────────────────────────────────────────────────────────────────────
    def copies(self) -> dict[int, list[Name]]:
        """By broker: what it copies now."""
        found: dict[int, list[Name]] = {}
        for name, move in self.running.items():
            for node in move.added:
                found.setdefault(node, []).append(name)
        return found

    def looked(self, moving: Mapping[Name, UnderWay], sizes: Mapping[tuple[Name, int], int]) -> None:
        """What moves now, and how large copies are: they only grow, though what is copied may leave the disk again."""
        for copy, size in sizes.items():
            if copy[0] in self.running:
                self._copied[copy] = max(size, self._copied.get(copy, 0))
        for name in [name for name in self.running if name not in moving]:
            self.done[name] = self.running.pop(name)

    # ── how far it is ────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def is_over(self) -> bool:
        return not self.running and not self.waiting

    @property
    def partitions(self) -> int:
        return len(self._all)

    @property
    def hot_bytes(self) -> int:
        """Of all moves, refused ones left out."""
        return sum(move.hot_bytes or 0 for name, move in self._all.items() if name not in self.refused)

    @property
    def copied_bytes(self) -> int:
        """Of `hot_bytes`."""
        running = 0
        for name, move in self.running.items():
            each = (move.hot_bytes or 0) // max(len(move.added), 1)
            running += sum(min(self._copied.get((name, node), 0), each) for node in move.added)
        return running + sum(move.hot_bytes or 0 for move in self.done.values())
