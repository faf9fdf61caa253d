"""Plan of replica moves, which `cluster drain` and `cluster rebalance` show before replicas move. Pure.

A new replica copies the hot bytes from a leader; cold bytes stay in the bucket. No partition gets two replicas on one
broker, or a replica on a broker without session. Replicas are spread over fault domains where there are enough (R15).
The same cluster gives the same plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Nodes: TypeAlias = tuple[int, ...]
"""Replicas of a partition; the first is its preferred leader."""


@dataclass(frozen=True, slots=True)
class Place:
    """A broker that may hold replicas. `domain`: its fault domain (rack or machine); `active`: it has a session."""

    node: int
    domain: str
    active: bool = True


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition. `target`: replicas after the reassignment in progress, if any; `has_leader`: it can be copied. Bytes
    are None if unknown. `hot_bytes`: bytes one new replica copies; `cold_bytes`: bytes in the bucket.
    """

    topic: str
    partition: int
    replicas: Nodes
    target: Nodes = ()
    has_leader: bool = True
    hot_bytes: int | None = None
    cold_bytes: int | None = None

    @property
    def assigned(self) -> Nodes:
        """Replicas after the reassignment in progress."""
        return self.target or self.replicas

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Move:
    """A partition's new replicas. `hot_bytes`: bytes that all its new replicas copy; `cold_bytes`: bytes that need no
    copy, because they are in the bucket. Both are 0 if only the order changes.
    """

    topic: str
    partition: int
    before: Nodes
    after: Nodes
    hot_bytes: int | None = None
    cold_bytes: int | None = None

    @property
    def added(self) -> Nodes:
        return tuple(node for node in self.after if node not in self.before)

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Immovable:
    """A partition that cannot move, the reason, and the remedy."""

    held: Assignment
    why: str
    do: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`under_way`: moves in progress that fit the plan; `cannot`: partitions without a plan."""

    moves: tuple[Move, ...] = ()
    under_way: tuple[Assignment, ...] = ()
    cannot: tuple[Immovable, ...] = ()


def move_of(held: Assignment, after: Nodes) -> Move:
    """The move of one partition. Each new replica copies the hot bytes; cold bytes are not copied."""
    added = sum(node not in held.assigned for node in after)
    hot = None if held.hot_bytes is None else held.hot_bytes * added
    cold = held.cold_bytes if added else 0
    return Move(held.topic, held.partition, held.assigned, after, hot if added else 0, cold)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over moves: replicas copied, hot bytes, cold bytes. `unknown`: moves of unknown size."""

    replicas: int = 0
    hot_bytes: int = 0
    cold_bytes: int = 0
    unknown: int = 0


def totals(moves: Iterable[Move]) -> Totals:
    replicas = hot = cold = unknown = 0
    for move in moves:
        replicas += len(move.added)
        hot += move.hot_bytes or 0
        cold += move.cold_bytes or 0
        unknown += move.hot_bytes is None
    return Totals(replicas, hot, cold, unknown)


class Loads:
    """Replicas, hot bytes and leaderships of each broker after the plan."""

    def __init__(self, places: Sequence[Place], partitions: Iterable[Assignment]) -> None:
        self.domains = {place.node: place.domain for place in places}
        self.active = sorted(place.node for place in places if place.active)
        self.in_domain: dict[str, list[int]] = {}
        for node in self.active:
            self.in_domain.setdefault(self.domains[node], []).append(node)
        self.replicas: Counter[int] = Counter()
        self.hot: Counter[int] = Counter()
        self.leads: Counter[int] = Counter()
        for held in partitions:
            self.add(held, held.assigned)

    def add(self, held: Assignment, nodes: Nodes, sign: int = 1) -> None:
        """Count a partition on these brokers; sign −1 removes it."""
        hot = sign * (held.hot_bytes or 0)
        for node in nodes:
            self.replicas[node] += sign
            self.hot[node] += hot
        if nodes:
            self.leads[nodes[0]] += sign

    def domain_of(self, node: int) -> str:
        """An unregistered broker is a fault domain of its own."""
        return self.domains.get(node, f"node {node}")

    def spread(self, nodes: Iterable[int]) -> Counter[str]:
        return Counter(self.domain_of(node) for node in nodes)

    def idlest(self, others: Nodes, without: Collection[int]) -> int | None:
        """The broker for one more replica beside those on `others`: the least loaded broker of the least loaded domain,
        among the domains that hold the fewest of these replicas. None when every broker is in `others` or `without`.
        """
        crowd = self.spread(others)
        average = {
            domain: sum(self.replicas[node] for node in nodes) / len(nodes) for domain, nodes in self.in_domain.items()
        }
        free = [node for node in self.active if node not in others and node not in without]
        if not free:
            return None

        def load(node: int) -> tuple[int, float, int, int, int]:
            domain = self.domains[node]
            return crowd[domain], average[domain], self.replicas[node], self.hot[node], node

        return min(free, key=load)


def drain(places: Sequence[Place], partitions: Sequence[Assignment], node: int) -> Plan:
    """Move every replica of `node` to another broker, largest hot tails first.

    Moves in progress that leave `node` continue. A leadership of `node` goes to the replica whose broker leads the
    fewest partitions.
    """
    loads = Loads([place for place in places if place.node != node], partitions)
    moves, under_way, cannot = [], [], []
    for held in sorted(partitions, key=lambda each: (-(each.hot_bytes or 0), each.topic, each.partition)):
        if node not in held.assigned:
            if node in held.replicas:
                under_way.append(held)
            continue
        if not held.has_leader:
            cannot.append(
                Immovable(
                    held,
                    "no broker leads it, so there is no replica to copy from",
                    f"start broker {node}, or give it up (`thermocline cluster forget {node}`)",
                )
            )
            continue
        others = tuple(each for each in held.assigned if each != node)
        taker = loads.idlest(others, (node,))
        if taker is None:
            cannot.append(_too_few(held, len(loads.active)))
            continue
        after = tuple(taker if each == node else each for each in held.assigned)
        loads.add(held, held.assigned, -1)
        if held.assigned[0] == node:
            after = led_by(after, min(after, key=lambda each: (loads.leads[each], each == taker, each)))
        loads.add(held, after)
        moves.append(move_of(held, after))
    return Plan(_in_order(moves), tuple(under_way), tuple(cannot))


def led_by(nodes: Nodes, leader: int) -> Nodes:
    """The same brokers, `leader` first."""
    return leader, *(node for node in nodes if node != leader)


def _too_few(held: Assignment, left: int) -> Immovable:
    wanted = len(held.assigned)
    return Immovable(
        held,
        f"it has {wanted} replica{'s' * (wanted != 1)}, and {left} other broker{'s have' if left != 1 else ' has'} a "
        "session",
        "start another broker on the bucket first",
    )


def _in_order(moves: Iterable[Move]) -> tuple[Move, ...]:
    return tuple(sorted(moves, key=lambda move: (move.topic, move.partition)))
