"""Which replicas go where: the plan that `cluster drain` and `cluster rebalance` show before anything moves.

Owns the values of a plan and what it moves: hot bytes, which a new replica copies from a leader, and cold ones, which
lie in the bucket and stay there. Owns where a replica goes that has to leave its broker. Always true: no partition is
planned onto one broker twice, or onto one without a session; fault domains are striped where there are enough of them
(R15); the same cluster gives the same plan. Pure. Must not know how a cluster is asked, nor how moves are begun.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Nodes: TypeAlias = tuple[int, ...]
"""Brokers that hold a partition; the first is its preferred leader."""


@dataclass(frozen=True, slots=True)
class Place:
    """A broker that may hold replicas. `domain`: what fails together, its rack or machine; `active`: it has a
    session."""

    node: int
    domain: str
    active: bool = True


@dataclass(frozen=True, slots=True)
class Held:
    """A partition. `target`: where a move that is under way ends, empty when none is; `has_leader`: somebody can be
    copied from. Bytes None: not known. `hot_bytes`: what one new replica copies; `cold_bytes`: in the bucket."""

    topic: str
    partition: int
    replicas: Nodes
    target: Nodes = ()
    has_leader: bool = True
    hot_bytes: int | None = None
    cold_bytes: int | None = None

    @property
    def assigned(self) -> Nodes:
        """Who holds it when what is under way is done."""
        return self.target or self.replicas

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's new replicas. `hot_bytes` of all copies it takes; `cold_bytes` that no copy takes; 0 where only
    the order changes."""

    topic: str
    partition: int
    before: Nodes
    after: Nodes
    hot_bytes: int | None = None
    cold_bytes: int | None = None

    @property
    def added(self) -> Nodes:
        """Who copies it."""
        return tuple(node for node in self.after if node not in self.before)

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Cannot:
    """A partition that stays where it is, why, and what a person can do."""

    held: Held
    why: str
    do: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`under_way`: moves that somebody began before and that end as they should; `cannot`: what is not planned."""

    moves: tuple[Move, ...] = ()
    under_way: tuple[Held, ...] = ()
    cannot: tuple[Cannot, ...] = ()


def move_of(held: Held, after: Nodes) -> Move:
    """Its bytes: each new replica copies the hot ones, none the cold ones."""
    added = sum(node not in held.assigned for node in after)
    hot = None if held.hot_bytes is None else held.hot_bytes * added
    cold = held.cold_bytes if added else 0
    return Move(held.topic, held.partition, held.assigned, after, hot if added else 0, cold)


@dataclass(frozen=True, slots=True)
class Totals:
    """Of moves: copies between brokers; hot bytes of those, and cold ones beside them; `unknown`: moves that nobody
    knows the bytes of."""

    replicas: int = 0
    hot_bytes: int = 0
    cold_bytes: int = 0
    unknown: int = 0


def totals(moves: Iterable[Move]) -> Totals:
    """What all of them move."""
    replicas = hot = cold = unknown = 0
    for move in moves:
        replicas += len(move.added)
        hot += move.hot_bytes or 0
        cold += move.cold_bytes or 0
        unknown += move.hot_bytes is None
    return Totals(replicas, hot, cold, unknown)


class Loads:
    """What each broker holds once a plan is done: replicas, hot bytes, partitions it is to lead."""

    def __init__(self, places: Sequence[Place], partitions: Iterable[Held]) -> None:
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

    def add(self, held: Held, nodes: Nodes, sign: int = 1) -> None:
        """Count a partition on these brokers; −1: no more."""
        hot = sign * (held.hot_bytes or 0)
        for node in nodes:
            self.replicas[node] += sign
            self.hot[node] += hot
        if nodes:
            self.leads[nodes[0]] += sign

    def domain_of(self, node: int) -> str:
        """One that is not registered fails alone."""
        return self.domains.get(node, f"node {node}")

    def spread(self, nodes: Iterable[int]) -> Counter[str]:
        """How many replicas each fault domain has."""
        return Counter(self.domain_of(node) for node in nodes)

    def idlest(self, others: Nodes, without: Collection[int]) -> int | None:
        """Who takes a replica beside `others`: of the fault domains that hold fewest of them the least loaded one,
        there the broker that holds least. None when everybody holds one, or is in `without`."""
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


def drain(places: Sequence[Place], partitions: Sequence[Held], node: int) -> Plan:
    """Every replica of `node` goes to another broker; the largest hot tails are placed first.

    What is under way and leaves `node` goes on as it is. Who led there is followed by whoever leads least of those that
    hold the partition then.
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
                Cannot(
                    held,
                    "nobody leads it, so nobody can be copied from",
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


def _too_few(held: Held, left: int) -> Cannot:
    wanted = len(held.assigned)
    return Cannot(
        held,
        f"it has {wanted} replica{'s' * (wanted != 1)}, and {left} other broker{'s have' if left != 1 else ' has'} a "
        "session",
        "start another broker on the bucket first",
    )


def _in_order(moves: Iterable[Move]) -> tuple[Move, ...]:
    return tuple(sorted(moves, key=lambda move: (move.topic, move.partition)))
