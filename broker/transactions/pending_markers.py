"""Pending transaction markers, grouped by the broker that leads their partition. Pure.

- A partition of a decided transaction is in one place: waiting for its leader, in a request, or answered. Partitions
  are answered one by one, so a stalled partition delays only its own transaction, and an answered partition gets no
  second marker.
- A decision has one `Ending` in the table, from the decision until its completion is durable. A late answer is compared
  with the decided state in the `Ending` (TX3), because a later transaction has another state.
- A deleted topic needs no markers. It is recognised by its id, because a later topic may have the same name (TX39).
- When a coordinator's role ends, its entries are dropped; the next coordinator finds the decisions in its log.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker.metadata.records import NO_LEADER
from broker.transactions.interfaces import TransactionalPartition
from broker.transactions.shard import Entry, TransactionShard
from broker.transactions.transaction import Transaction
from logformat.transaction_marker import TransactionMarker

ROWS_MAX: Final = 5_000  # partitions in one request
_AGAIN_S: Final = 0.1
_AGAIN_MAX_S: Final = 5.0

DELETED: Final = -2
"""Instead of a leader: the topic is gone."""

LeaderOf = Callable[[TransactionalPartition], int]
"""The node that leads a partition; NO_LEADER, or DELETED."""


@dataclass(eq=False, slots=True)
class Ending:
    """A decided transaction of one shard. `decided`: the decided state of its id. It is compared by identity, because
    before transaction version 2 a later transaction has the same producer id and epoch. `left`: the partitions without
    an answer. `is_marked`: no partition is left. `is_over`: the transaction is complete, or the role ended."""

    shard: TransactionShard
    entry: Entry
    decided: Transaction
    marker: TransactionMarker
    began_s: float
    left: set[TransactionalPartition] = field(default_factory=set)
    is_marked: bool = False
    is_over: bool = False

    @property
    def is_current(self) -> bool:
        """Whether the id still has the decided state, and this role lasts."""
        return not self.is_over and not self.shard.is_dropped and self.entry.transaction is self.decided


class Pair(NamedTuple):
    """One marker of one partition, and the number of failed attempts."""

    ending: Ending
    partition: TransactionalPartition
    failures: int = 0


class PendingMarkers:
    def __init__(self, leader_of: LeaderOf) -> None:
        self._leader_of = leader_of
        self._endings: dict[Entry, Ending] = {}  # an entry belongs to one id in one role
        self._waiting: dict[int, dict[tuple[int, TransactionalPartition], Pair]] = {}  # by node
        self._slow: dict[int, dict[tuple[int, TransactionalPartition], Pair]] = {}  # by node, after a failed attempt
        self._later: list[tuple[float, int, Pair]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._endings)

    @property
    def partitions(self) -> int:
        return sum(len(ending.left) for ending in self._endings.values())

    def endings(self) -> Iterator[Ending]:
        return iter(self._endings.values())

    def add(self, ending: Ending) -> bool:
        """Add a decided transaction. Returns False if its `Ending` is here already."""
        held = self._endings.get(ending.entry)
        if held is not None and held.decided is ending.decided:
            return False
        if held is not None:
            held.is_over = True
        self._endings[ending.entry] = ending
        ending.left.update(ending.decided.partitions)
        for partition in sorted(ending.left):
            self._place(Pair(ending, partition))
        return True

    def forget(self, shard: TransactionShard) -> None:
        """Drop the endings of a shard whose role ended."""
        for ending in [ending for ending in self._endings.values() if ending.shard is shard]:
            self.completed(ending)

    def marked(self, ending: Ending) -> bool:
        """Whether every partition answered; True only once for each ending. The ending stays here until `completed`."""
        if ending.is_over or ending.is_marked or ending.left:
            return False
        ending.is_marked = True
        return True

    def completed(self, ending: Ending) -> None:
        """The transaction is complete: drop its entry."""
        ending.is_over = True
        if self._endings.get(ending.entry) is ending:
            del self._endings[ending.entry]

    # ---- requests ----------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[tuple[int, bool]]:
        """The brokers to which markers can be sent now. The flag says whether earlier attempts of these markers
        failed."""
        for is_slow, waiting in ((False, self._waiting), (True, self._slow)):
            for node, pairs in waiting.items():
                if node >= 0 and pairs:
                    yield node, is_slow

    def take(self, node: int, *, is_slow: bool) -> list[Pair]:
        """The next request to a broker. The caller gives each pair to `answered` or `failed`."""
        waiting = (self._slow if is_slow else self._waiting).get(node)
        taken: list[Pair] = []
        while waiting and len(taken) < ROWS_MAX:
            pair = waiting.pop(next(iter(waiting)))
            if not pair.ending.is_over:
                taken.append(pair)
        return taken

    def answered(self, pair: Pair) -> None:
        """The marker is committed in that partition, or the transaction cannot be open there."""
        pair.ending.left.discard(pair.partition)

    def failed(self, pair: Pair, now_s: float) -> None:
        """Send the marker again after a pause, or when another broker leads."""
        if not pair.ending.is_over:
            after_s = min(_AGAIN_S * 2 ** min(pair.failures, 10), _AGAIN_MAX_S)
            self._order += 1
            heapq.heappush(self._later, (now_s + after_s, self._order, pair._replace(failures=pair.failures + 1)))

    def next_s(self) -> float | None:
        """Time of the next repeated marker."""
        return self._later[0][0] if self._later else None

    def due(self, now_s: float) -> list[Ending]:
        """Queue the repeated markers that are due. Returns the endings that lost partitions of deleted topics."""
        changed: dict[int, Ending] = {}
        while self._later and self._later[0][0] <= now_s:
            self._place_again(heapq.heappop(self._later)[2], changed)
        return list(changed.values())

    def moved(self) -> list[Ending]:
        """Queue all waiting markers by a newer image, including those that wait for a repeat. Returns the endings that
        lost partitions of deleted topics."""
        waiting = [
            pair for by_node in (self._waiting, self._slow) for pairs in by_node.values() for pair in pairs.values()
        ]
        waiting += [pair for _, _, pair in self._later]
        self._waiting, self._slow, self._later = {}, {}, []
        changed: dict[int, Ending] = {}
        for pair in waiting:
            self._place_again(pair, changed)
        return list(changed.values())

    def _place_again(self, pair: Pair, changed: dict[int, Ending]) -> None:
        if pair.ending.is_over:
            return
        before = len(pair.ending.left)
        self._place(pair)
        if len(pair.ending.left) < before:
            changed[id(pair.ending)] = pair.ending

    def _place(self, pair: Pair) -> None:
        node = self._leader_of(pair.partition)
        if node == DELETED:
            pair.ending.left.discard(pair.partition)
            return
        waiting = self._slow if pair.failures else self._waiting
        waiting.setdefault(node if node >= 0 else NO_LEADER, {})[id(pair.ending), pair.partition] = pair
