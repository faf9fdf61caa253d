"""Fitness to lead: selects a broker to lead in place of an unfit broker (R9; D20, D38, D39). Pure.

- A replica with a failed log does not lead if other replicas are assigned. An unfit broker leads only partitions that
  no fit broker can lead.
- Leadership moves by a clean election. A replica with a failed log also leaves the in-sync set, down to the minimum,
  because it sends no reports any more. Other unfit replicas stay in the set.
- If no other replica is fitter, leadership stays, so that it does not move back and forth between two unfit brokers.
- Each new image is checked for corrections. Elections after a session's end ignore fitness; preferred elections respect
  it. A leaderless partition gets a leader again when one of its logs is fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from broker.controller.decisions.decision import Decision
from broker.metadata.image import ClusterImage
from broker.metadata.records import NO_LEADER, LogPlace, Row
from broker.metadata.row_steps import PartitionFitness, is_alone
from broker.metadata.rows import handed_over


class Fitness(NamedTuple):
    """A broker's health report. `unfit_all`: the broker leads only partitions that no other broker can lead (the broker
    stops, its disk is full, or the bucket does not answer it). `unfit`: failed logs, which do not lead. `lost_logs`:
    damaged logs (R18)."""

    unfit_all: bool = False
    unfit: tuple[LogPlace, ...] = ()
    lost_logs: tuple[LogPlace, ...] = ()

    @property
    def may_lead_all(self) -> bool:
        """Whether the broker may keep all its leaderships."""
        return not (self.unfit_all or self.unfit)


FIT: Final = Fitness()

Unfit = Mapping[int, Fitness]
"""Reports of sessions that are not fit to lead every partition, by node id."""

FitnessByNode = Mapping[int, Fitness]
"""Reports of sessions to this controller, by node id. A missing session has not reported yet."""

_CAN, _RATHER_NOT, _NEVER = range(3)


def waits(image: ClusterImage) -> bool:
    """Whether a partition is leaderless although a replica of its in-sync set has a session, because the log of that
    replica had failed. 30 000 rows take 1 ms."""
    return any(
        row.leader == NO_LEADER and any(image.nodes[node_id].active for node_id in row.in_sync)
        for topic in image.topics.values()
        for row in topic.rows
    )


def may_lead(place: LogPlace, node_id: int, unfit: Unfit) -> bool:
    """Whether leadership of this partition may move to a broker with a session."""
    told = unfit.get(node_id)
    return told is None or not (told.unfit_all or place in told.unfit)


def judge(told: FitnessByNode | None) -> Callable[[LogPlace], PartitionFitness | None]:
    """Judges the replicas of one partition by their brokers' reports; None: reports are ignored."""
    if told is None:
        return lambda _: None
    failed: dict[LogPlace, set[int]] = {}
    for node_id, fitness in told.items():
        for place in (*fitness.unfit, *fitness.lost_logs):
            failed.setdefault(place, set()).add(node_id)
    everybody = frozenset(told)
    unfit = frozenset(node_id for node_id, fitness in told.items() if fitness.unfit_all)

    def of(place: LogPlace) -> PartitionFitness:
        ill = frozenset(failed.get(place, ()))
        return PartitionFitness(everybody - ill, ill, unfit)

    return of


def moved(image: ClusterImage, unfit: Unfit) -> Decision[None]:
    """New leaders for partitions of unfit brokers (fitter brokers, or none), and for leaderless partitions that a fit
    member can lead."""
    failed = {node_id: frozenset(fitness.unfit) for node_id, fitness in unfit.items()}

    def rank(node_id: int, place: LogPlace) -> int:
        if place in failed.get(node_id, ()):
            return _NEVER
        return _RATHER_NOT if node_id in unfit and unfit[node_id].unfit_all else _CAN

    def chosen(place: LogPlace, row: Row, candidates: Sequence[int]) -> int:
        now = _NEVER if row.leader == NO_LEADER else rank(row.leader, place)
        if now == _CAN or not candidates:
            return row.leader
        best = min(candidates, key=lambda node_id: rank(node_id, place))  # the first assigned among equals
        if rank(best, place) < now:
            return best
        return NO_LEADER if now == _NEVER and not is_alone(row, row.leader) else row.leader

    def failed_at(place: LogPlace) -> list[int]:
        return [node_id for node_id, places in failed.items() if place in places]

    return Decision(tuple(handed_over(image, unfit.keys(), chosen, failed_at)), None)
