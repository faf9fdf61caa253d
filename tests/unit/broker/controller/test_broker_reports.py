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


def taken(told: BrokerReports) -> dict[tuple[int, int], frozenset[tuple[str, int]]]:
    return {session: told.take_lost(session) for session in told.with_lost}


def test_only_what_is_new_is_told() -> None:
    told = BrokerReports()
    assert not told.hear((1, 5), FIT) and told.hear((1, 5), UNFIT) and not told.hear((1, 5), UNFIT)
    assert told.unfit(image((1, 5))) == {1: UNFIT} and told.unfit(image((1, 6))) == {}
    assert told.hear((1, 5), FIT) and told.unfit(image((1, 5))) == {}


def test_sessions_that_ended_are_not_kept() -> None:
    """A controller of months, among brokers that come and go, would keep one entry each for ever."""
    told, now = BrokerReports(), image((1, 5), (2, 6))
    for number in range(7, 1_000):
        told.hear((2, number - 1), lost(A))
        told.hear((1, 5), UNFIT)
        now = now.with_records([session(node_id=2, broker_epoch=number)])
        told.apply_image(now)
    assert len(told._fitness) == 1 and len(told._undecided) <= 1 and not told.with_lost
    told.apply_image(now.with_records([replace(now.nodes[1], active=False)]))
    assert not told._fitness


def test_each_loss_is_decided_once_and_a_second_one_again() -> None:
    """A log that was copied anew and lost again between two looks of the controller was not decided about."""
    told = BrokerReports()
    told.hear((1, 5), lost(A))
    assert taken(told) == {(1, 5): {A}} and taken(told) == {}
    told.hear((1, 5), lost(A, B))
    assert taken(told) == {(1, 5): {B}}
    told.hear((1, 5), lost(B))
    told.hear((1, 5), lost(A, B))
    assert taken(told) == {(1, 5): {A}}
    told.hear((1, 5), FIT)
    assert taken(told) == {}


def test_what_came_of_nothing_is_decided_again() -> None:
    """Nobody else had it, or the commit failed; not when it has it by now, and again when it was lost meanwhile."""
    told = BrokerReports()
    told.hear((1, 5), lost(A, B))
    assert told.take_lost((1, 5)) == {A, B}
    told.undecided((1, 5), [B])
    assert taken(told) == {(1, 5): {B}}
    told.hear((1, 5), lost(A))
    told.undecided((1, 5), [B])
    assert taken(told) == {}
    told.hear((1, 5), FIT)
    told.hear((1, 5), lost(A))
    told.undecided((1, 5), [])
    assert taken(told) == {(1, 5): {A}}, "lost anew while the first loss was being decided"
