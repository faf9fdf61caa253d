"""What sessions said of themselves: kept while they last, and every loss of a log decided once."""

from __future__ import annotations

from msgspec.structs import replace

from broker.controller.decisions.fitness import FIT, Fitness
from broker.controller.unfit_brokers import BrokerReports
from broker.metadata.image import ClusterImage
from tests.support.brokers.cluster_kit import id_of, session

A, B = (id_of(1), 0), (id_of(1), 1)
UNFIT = Fitness(unfit_all=True)


def image(*sessions: tuple[int, int]) -> ClusterImage:
    return ClusterImage().with_records([session(node_id=node, broker_epoch=epoch) for node, epoch in sessions])


def lost(*places: tuple[str, int]) -> Fitness:
    return Fitness(unfit=places, lost_logs=places)


def taken(reports: BrokerReports) -> dict[tuple[int, int], frozenset[tuple[str, int]]]:
    return {session: reports.take_lost_logs(session) for session in reports.with_lost_logs}


def test_only_what_is_new_is_told() -> None:
    reports = BrokerReports()
    assert not reports.record((1, 5), FIT) and reports.record((1, 5), UNFIT) and not reports.record((1, 5), UNFIT)
    assert reports.unfit(image((1, 5))) == {1: UNFIT} and reports.unfit(image((1, 6))) == {}
    assert reports.record((1, 5), FIT) and reports.unfit(image((1, 5))) == {}


def test_sessions_that_ended_are_not_kept() -> None:
    """A controller of months, among brokers that come and go, would keep one entry each for ever."""
    reports, now = BrokerReports(), image((1, 5), (2, 6))
    for number in range(7, 1_000):
        reports.record((2, number - 1), lost(A))
        reports.record((1, 5), UNFIT)
        now = now.with_records([session(node_id=2, broker_epoch=number)])
        reports.apply_image(now)
    assert len(reports._fitness) == 1 and len(reports._pending) <= 1 and not reports.with_lost_logs
    reports.apply_image(now.with_records([replace(now.nodes[1], active=False)]))
    assert not reports._fitness


def test_each_loss_is_decided_once_and_a_second_one_again() -> None:
    """A log that was copied anew and lost again between two looks of the controller was not decided about."""
    reports = BrokerReports()
    reports.record((1, 5), lost(A))
    assert taken(reports) == {(1, 5): {A}} and taken(reports) == {}
    reports.record((1, 5), lost(A, B))
    assert taken(reports) == {(1, 5): {B}}
    reports.record((1, 5), lost(B))
    reports.record((1, 5), lost(A, B))
    assert taken(reports) == {(1, 5): {A}}
    reports.record((1, 5), FIT)
    assert taken(reports) == {}


def test_what_came_of_nothing_is_decided_again() -> None:
    """Nobody else had it, or the commit failed; not when it has it by now, and again when it was lost meanwhile."""
    reports = BrokerReports()
    reports.record((1, 5), lost(A, B))
    assert reports.take_lost_logs((1, 5)) == {A, B}
    reports.restore_lost_logs((1, 5), [B])
    assert taken(reports) == {(1, 5): {B}}
    reports.record((1, 5), lost(A))
    reports.restore_lost_logs((1, 5), [B])
    assert taken(reports) == {}
    reports.record((1, 5), FIT)
    reports.record((1, 5), lost(A))
    reports.restore_lost_logs((1, 5), [])
    assert taken(reports) == {(1, 5): {A}}, "lost anew while the first loss was being decided"
