"""Who is fit to lead, and what follows where somebody unfit does (R9; D20, D38, D39). Pure.

Owns the preference: a log that failed leads nothing, where others are assigned too; an unfit broker leads only what no
fit one can. Always true: leadership moves by a clean election; nobody leaves an in-sync set for it but whose log
failed, down to the minimum: it reports nothing any more, and the rest would wait for it; what nobody is fitter for
stays where it is, so two unfit brokers do not pass it to and fro. It is a correction of what stands, made again after
each image: elections that follow from a session's end know nothing of it, those of the preferred replica do; and what
nobody led for it is led again when a log is fit.
Must not know heartbeats, nor why somebody is unfit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from broker.controller.decisions.decision import Decision
from broker.metadata.image import ClusterImage
from broker.metadata.records import NO_LEADER, LogPlace, Row
from broker.metadata.row_steps import Said, is_alone
from broker.metadata.rows import handed_over


class Fitness(NamedTuple):
    """What a broker says of itself. `unfit_all`: it is to lead only what no other can (it stops, its disk is full, the
    bucket is away from it). `unfit`: logs that failed here: none of them leads. `lost_logs`: logs that were found
    damaged (R18)."""

    unfit_all: bool = False
    unfit: tuple[LogPlace, ...] = ()
    lost_logs: tuple[LogPlace, ...] = ()

    @property
    def may_lead_all(self) -> bool:
        """Whether nothing of what it leads has to move."""
        return not (self.unfit_all or self.unfit)


FIT: Final = Fitness()

Unfit = Mapping[int, Fitness]
"""Brokers with a session that say that they are not fit to lead everything, by node id."""

FitnessByNode = Mapping[int, Fitness]
"""What sessions said of themselves to this controller, by node id; of who is missing nothing is known yet."""

_CAN, _RATHER_NOT, _NEVER = range(3)


def waits(image: ClusterImage) -> bool:
    """Whether nobody leads a partition of which a member has a session: its log failed when that was decided. 30 000
    rows take 1 ms."""
    return any(
        row.leader == NO_LEADER and any(image.nodes[node_id].active for node_id in row.in_sync)
        for topic in image.topics.values()
        for row in topic.rows
    )


def may_lead(place: LogPlace, node_id: int, unfit: Unfit) -> bool:
    """Whether leadership of this may be moved to a broker with a session."""
    told = unfit.get(node_id)
    return told is None or not (told.unfit_all or place in told.unfit)


def judge(told: FitnessByNode | None) -> Callable[[LogPlace], Said | None]:
    """What `broker_reports` means for who holds a partition, by its place; None: nobody is asked."""
    if told is None:
        return lambda _: None
    failed: dict[LogPlace, set[int]] = {}
    for node_id, fitness in told.items():
        for place in (*fitness.unfit, *fitness.lost_logs):
            failed.setdefault(place, set()).add(node_id)
    everybody = frozenset(told)
    unfit = frozenset(node_id for node_id, fitness in told.items() if fitness.unfit_all)

    def of(place: LogPlace) -> Said:
        ill = frozenset(failed.get(place, ()))
        return Said(everybody - ill, ill, unfit)

    return of


def moved(image: ClusterImage, unfit: Unfit) -> Decision[None]:
    """What the brokers of `unfit`, by node id, lead and fitter ones can lead instead, or nobody may; and what nobody
    leads though the log of a member with a session is fit."""
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
