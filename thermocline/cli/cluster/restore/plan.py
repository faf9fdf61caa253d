"""What becomes of a cluster's partitions when only the bucket is left, and what is to be done next. Pure.

Owns the judgement, from one look at the cluster (its brokers and partitions as an image has them) and what the bucket
holds of each partition. Always true: nothing is assigned past the normal start: nodes that do not come back are given
up, replicas that are gone are moved to brokers that are there, and the partition begins by itself, uncleanly, with all
that this promises (R20); where a member of an in-sync set is there nothing is given up; each step follows from the look
alone, so that whoever was interrupted goes on. Must not know how brokers are asked, nor the bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from broker.controller.decisions.placement import domain, preferences
from broker.metadata.rebuilt import UNKNOWN_REPLICA
from broker.observe.cluster_status import BrokerRow, PartitionRow
from thermocline.cli.clients.statuses import Partition

Replicas = tuple[int, ...]
LastSession = tuple[int, int | None]
"""A node, and the broker epoch of its last session."""


class Fate(StrEnum):
    """What becomes of a partition."""

    KEPT = "kept"  # a member of its in-sync set is there: it lacks nothing
    RESTORED = "restored"  # nobody has all of it: it begins with what the bucket, or the best replica left, holds
    OFFLINE = "offline"  # its manifest is damaged or gone


@dataclass(frozen=True, slots=True)
class Held:
    """What the bucket holds of a partition, as its manifest says. `end`: a log restored from it goes on here, or at
    `reserved_end`; `cold_bytes`: of log. `damage`: why the manifest cannot be read; the rest means nothing then."""

    log_start: int = 0
    remote_end: int = 0
    end: int = 0
    reserved_end: int = 0
    cold_bytes: int = 0
    damage: str = ""

    @property
    def gap(self) -> tuple[int, int] | None:
        """[first, end) of offsets that may have been given to records which are lost; None: nothing is."""
        return (self.end, self.reserved_end) if self.reserved_end > self.end else None


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """Of one partition. `gap`: where nothing is left but the bucket, what is lost at most; what a living replica holds
    makes it smaller. `to`: who holds it then; `begins`: who may begin, empty: whoever is started. `hot_bytes`: that
    move between brokers (None: what follows the verified end), `cold_bytes` do not."""

    topic: str
    partition: int
    fate: Fate
    held: Held | None
    replicas: Replicas
    to: Replicas
    begins: Replicas

    @property
    def gap(self) -> tuple[int, int] | None:
        return self.held.gap if self.fate is Fate.RESTORED and self.held is not None else None

    @property
    def hot_bytes(self) -> int | None:
        gone = self.fate is Fate.RESTORED and not set(self.replicas) & set(self.to)
        return 0 if gone or set(self.replicas) == set(self.to) else None


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Of a cluster. `there`: who has a session; `gone`: who has none and has to be given up, with how many partitions
    are assigned to each; `away`: who has none and may stay so, the same."""

    partitions: Sequence[PartitionPlan]
    there: Replicas
    gone: Mapping[int, int]
    away: Mapping[int, int]

    def of(self, fate: Fate) -> list[PartitionPlan]:
        return [one for one in self.partitions if one.fate is fate]


@dataclass(frozen=True, slots=True)
class Step:
    """What a look asks for now, each part by itself: nodes to be given up; replicas to be moved; nodes that hold
    nothing any more and may leave. `waits`: partitions that do not serve yet, or are on their way to replicas that are
    there."""

    give_up: Sequence[int]
    move: Mapping[Partition, Replicas]
    leave: Sequence[int]
    waits: Sequence[Partition]

    @property
    def is_done(self) -> bool:
        return not (self.give_up or self.move or self.leave or self.waits)


def plan(
    brokers: Sequence[BrokerRow],
    partitions: Sequence[PartitionRow],
    held: Mapping[Partition, Held],
    *,
    default_factor: int = 1,
    answers: Callable[[int], bool] = lambda _: True,
) -> RestorePlan:
    """`default_factor`: replicas of partitions of which nobody knows how many there were. `answers`: whether a broker
    that has a session lives; one that does not is about to lose it."""
    there = [one for one in brokers if one.active and answers(one.node)]
    alive = {one.node for one in there}
    lost = {(one.topic, one.partition) for one in partitions if not alive.intersection(one.in_sync)}
    gone = _to_give_up(brokers, partitions, lost, alive)
    wanted = _targets(there, [one for one in partitions if gone.keys() & _assigned(one)], default_factor)
    plans = []
    for one in partitions:
        place = (one.topic, one.partition)
        of = held.get(place)
        fate = Fate.OFFLINE if of is not None and of.damage else Fate.RESTORED if place in lost else Fate.KEPT
        to = wanted.get(place, one.target or one.replicas)
        may_begin = tuple(node for node in dict.fromkeys((*one.replicas, *to)) if node in alive)
        in_sync = tuple(node for node in one.in_sync if node in alive)
        plans.append(PartitionPlan(*place, fate, of, one.replicas, to, may_begin if fate is Fate.RESTORED else in_sync))
    counts = {
        one.node: sum(one.node in _assigned(row) for row in partitions)
        for one in brokers
        if one.node not in alive and one.node not in gone
    }
    return RestorePlan(plans, tuple(sorted(alive)), gone, {node: count for node, count in counts.items() if count})


def next_step(
    brokers: Sequence[BrokerRow],
    partitions: Sequence[PartitionRow],
    damaged: Mapping[Partition, object],
    *,
    may_give_up: Collection[LastSession],
    default_factor: int = 1,
) -> Step:
    """From a look at a cluster that decides: who is silent has no session any more, or still has to lose it.
    `may_give_up`: those that somebody agreed to; who went silent since, or had another session since, may come back
    with all it has, and is waited for."""
    there = [one for one in brokers if one.active]
    alive = {one.node for one in there}
    lost = {(one.topic, one.partition) for one in partitions if not alive.intersection(one.in_sync)}
    agreed = {one.node for one in brokers if (one.node, one.broker_epoch) in may_give_up}
    give_up = sorted(_to_give_up(brokers, partitions, lost, alive).keys() & agreed)
    forgotten = [one.node for one in brokers if one.given_up]
    # A move to living brokers is ours, or as good; one that was under way to a broker that is gone never ends.
    holding = [one for one in partitions if not set(one.target or one.replicas).isdisjoint(forgotten)]
    move = {} if give_up or not there else _targets(there, holding, default_factor)
    assigned = {node for one in partitions for node in _assigned(one)}
    leave = [] if give_up else [node for node in forgotten if node not in assigned and node != UNKNOWN_REPLICA]
    held_up = moves_held_up(brokers, partitions)
    waits = [
        place
        for one in partitions
        if (place := (one.topic, one.partition)) not in damaged
        and (one.offline or one.starting or (one.target and place not in held_up))
    ]
    move = {place: to for place, to in move.items() if to}
    return Step(give_up, move, leave, waits)


def moves_held_up(brokers: Sequence[BrokerRow], partitions: Sequence[PartitionRow]) -> dict[Partition, Replicas]:
    """Partitions that moved when the cluster was lost, to brokers that are away and that nobody gives up; with these.
    It is the operator's to start them, or to take the move back: nothing is lost meanwhile."""
    away = {one.node for one in brokers if not one.active and not one.given_up}
    found = {(one.topic, one.partition): tuple(sorted(away.intersection(one.target or ()))) for one in partitions}
    return {place: nodes for place, nodes in found.items() if nodes}


# ── pieces ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def _assigned(one: PartitionRow) -> set[int]:
    return {*one.replicas, *(one.target or ())}


def _to_give_up(
    brokers: Sequence[BrokerRow], partitions: Sequence[PartitionRow], lost: set[Partition], alive: set[int]
) -> dict[int, int]:
    """Who is not there, and is waited for by a partition that nobody has all of; with how many each is assigned."""
    known = {one.node for one in brokers if not one.given_up} - alive
    waited = {node for one in partitions if (one.topic, one.partition) in lost for node in _assigned(one)}
    return {node: sum(node in _assigned(one) for one in partitions) for node in sorted(known & waited)}


def _targets(
    there: Sequence[BrokerRow], partitions: Sequence[PartitionRow], default_factor: int
) -> dict[Partition, Replicas]:
    """As many replicas as before, or as there are brokers: who holds it stays, and others, of other domains first, take
    the places of those that are gone."""
    if not there or not partitions:
        return {}
    nodes = {one.node: domain(one.rack, one.machine) for one in there}
    orders = preferences(nodes, len(partitions))
    found = {}
    for one, order in zip(partitions, orders, strict=True):
        kept = [node for node in dict.fromkeys((*one.replicas, *(one.target or ()))) if node in nodes]
        is_known = UNKNOWN_REPLICA not in one.replicas
        factor = max(len(one.target or one.replicas) if is_known else default_factor, len(kept), 1)
        others = [node for node in order if node not in kept]
        found[one.topic, one.partition] = tuple([*kept, *others][: min(factor, len(nodes))])
    return found
