"""Plan of a restore from the bucket: the outcome for each partition, and the next step. Pure.

Input: brokers and partitions of the image, and the bucket's state of each partition. Nothing bypasses the normal start:
lost nodes are given up, their replicas are moved to running brokers, and the partition starts by unclean recovery with
its guarantees (R20). A node is given up only if a partition has no in-sync replica left. Each step follows from the
current state alone, so an interrupted restore resumes.
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


class Outcome(StrEnum):
    KEPT = "kept"  # an in-sync replica runs: no record is missing
    RESTORED = "restored"  # no in-sync replica: it begins from the bucket, or from the best replica left
    OFFLINE = "offline"  # its manifest is damaged or missing


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """A partition in the bucket, by its manifest. A restored log continues at `end`, or at `reserved_end`.
    `cold_bytes`: bytes of log. `damage`: why the manifest cannot be read; the other values are meaningless then.
    """

    log_start: int = 0
    remote_end: int = 0
    end: int = 0
    reserved_end: int = 0
    cold_bytes: int = 0
    damage: str = ""

    @property
    def gap(self) -> tuple[int, int] | None:
        """The offsets [first, end) of records that may be lost; None if no record is lost."""
        return (self.end, self.reserved_end) if self.reserved_end > self.end else None


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The plan of one partition. `gap`: offsets that may be lost if only the bucket is left. `to`: replicas afterwards.
    `begins`: replicas that may start it; empty: any of them. `hot_bytes` move between brokers (None: unknown),
    `cold_bytes` do not.
    """

    topic: str
    partition: int
    fate: Outcome
    held: StoredPartition | None
    replicas: Replicas
    to: Replicas
    begins: Replicas

    @property
    def gap(self) -> tuple[int, int] | None:
        return self.held.gap if self.fate is Outcome.RESTORED and self.held is not None else None

    @property
    def hot_bytes(self) -> int | None:
        gone = self.fate is Outcome.RESTORED and not set(self.replicas) & set(self.to)
        return 0 if gone or set(self.replicas) == set(self.to) else None


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The plan of a cluster. `there`: nodes with a session; `gone`: nodes to give up, with their partition counts;
    `away`: nodes without a session that need not be given up, with their partition counts.
    """

    partitions: Sequence[PartitionPlan]
    there: Replicas
    gone: Mapping[int, int]
    away: Mapping[int, int]

    def of(self, fate: Outcome) -> list[PartitionPlan]:
        return [one for one in self.partitions if one.fate is fate]


@dataclass(frozen=True, slots=True)
class Step:
    """Requests that the current state asks for: nodes to give up, replicas to move, empty nodes to remove. `waits`:
    partitions that do not serve yet, or move to running brokers.
    """

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
    held: Mapping[Partition, StoredPartition],
    *,
    default_factor: int = 1,
    answers: Callable[[int], bool] = lambda _: True,
) -> RestorePlan:
    """`default_factor`: replication factor of partitions whose factor is unknown. `answers`: whether a broker with a
    session answers; a broker that does not answer will soon lose its session.
    """
    there = [one for one in brokers if one.active and answers(one.node)]
    alive = {one.node for one in there}
    lost = {(one.topic, one.partition) for one in partitions if not alive.intersection(one.in_sync)}
    gone = _to_give_up(brokers, partitions, lost, alive)
    wanted = _targets(there, [one for one in partitions if gone.keys() & _assigned(one)], default_factor)
    plans = []
    for one in partitions:
        place = (one.topic, one.partition)
        of = held.get(place)
        fate = Outcome.OFFLINE if of is not None and of.damage else Outcome.RESTORED if place in lost else Outcome.KEPT
        to = wanted.get(place, one.target or one.replicas)
        may_begin = tuple(node for node in dict.fromkeys((*one.replicas, *to)) if node in alive)
        in_sync = tuple(node for node in one.in_sync if node in alive)
        plans.append(
            PartitionPlan(*place, fate, of, one.replicas, to, may_begin if fate is Outcome.RESTORED else in_sync)
        )
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
    """The next step. Unlike in `plan`, silent brokers count as running until they lose their session. `may_give_up`:
    nodes that a person agreed to. A node that fell silent since then, or had another session, may return with all its
    records, so the restore waits for it.
    """
    there = [one for one in brokers if one.active]
    alive = {one.node for one in there}
    lost = {(one.topic, one.partition) for one in partitions if not alive.intersection(one.in_sync)}
    agreed = {one.node for one in brokers if (one.node, one.broker_epoch) in may_give_up}
    give_up = sorted(_to_give_up(brokers, partitions, lost, alive).keys() & agreed)
    forgotten = [one.node for one in brokers if one.given_up]
    # Wait for a move to running brokers, whoever started it; a move to a lost broker never ends.
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
    """Partitions that were moving to brokers that do not run and are not given up, with those brokers. The operator
    starts the brokers or cancels the move; nothing is lost until then.
    """
    away = {one.node for one in brokers if not one.active and not one.given_up}
    found = {(one.topic, one.partition): tuple(sorted(away.intersection(one.target or ()))) for one in partitions}
    return {place: nodes for place, nodes in found.items() if nodes}


# ── pieces ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def _assigned(one: PartitionRow) -> set[int]:
    return {*one.replicas, *(one.target or ())}


def _to_give_up(
    brokers: Sequence[BrokerRow], partitions: Sequence[PartitionRow], lost: set[Partition], alive: set[int]
) -> dict[int, int]:
    """Nodes that do not run, and for which a partition without in-sync replica waits, with their partition counts."""
    known = {one.node for one in brokers if not one.given_up} - alive
    waited = {node for one in partitions if (one.topic, one.partition) in lost for node in _assigned(one)}
    return {node: sum(node in _assigned(one) for one in partitions) for node in sorted(known & waited)}


def _targets(
    there: Sequence[BrokerRow], partitions: Sequence[PartitionRow], default_factor: int
) -> dict[Partition, Replicas]:
    """New replicas: as many as before, or fewer if fewer brokers run. Running replicas stay; brokers of other fault
    domains replace lost brokers.
    """
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
