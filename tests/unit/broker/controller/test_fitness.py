"""Who leads when somebody is unfit to: images in, rows out (R9; D20, D38, D39)."""

from __future__ import annotations

from broker.controller.decisions.fitness import Fitness, moved, waits
from broker.metadata.image import ClusterImage, check
from broker.metadata.records import NO_LEADER, Row, TopicCreated
from tests.support.brokers.cluster_kit import id_of, session

T = id_of(1)
UNFIT = Fitness(unfit_all=True)
FAILED = Fitness(unfit=((T, 0),))


def cluster(*rows: Row, ended: tuple[int, ...] = (), minimum: int = 1) -> ClusterImage:
    sessions = [session(node_id=n, broker_epoch=n, active=n not in ended) for n in (1, 2, 3)]
    return ClusterImage().with_records([*sessions, TopicCreated(T, "t", rows, {"min.insync.replicas": str(minimum)})])


def full(leader: int = 1, in_sync: tuple[int, ...] = (1, 2, 3)) -> Row:
    return Row((1, 2, 3), leader, 5, 7, in_sync, 5)


def leaders(image: ClusterImage, unfit: dict[int, Fitness]) -> list[int]:
    """After it; nobody leaves a set but whose log failed, and who changes begins a new leader epoch."""
    after = image.with_records(moved(image, unfit).records)
    check(after)
    for index, (before, row) in enumerate(zip(image.topics[T].rows, after.topics[T].rows, strict=True)):
        failed = {node_id for node_id, fitness in unfit.items() if (T, index) in fitness.unfit}
        assert set(before.in_sync) - failed <= set(row.in_sync)
        assert row.leader_epoch - before.leader_epoch == (row.leader != before.leader)
    assert moved(after, unfit).records == (), "what was settled stays so"
    return [row.leader for row in after.topics[T].rows]


def test_what_an_unfit_broker_leads_goes_to_the_first_assigned_that_is_fit() -> None:
    """In sync and with a session; what others lead is left alone."""
    rows = full(), full(2), full(in_sync=(1, 3))
    assert leaders(cluster(*rows), {1: UNFIT}) == [2, 2, 3]
    assert leaders(cluster(*rows, ended=(3,)), {1: UNFIT}) == [2, 2, 1]
    assert leaders(cluster(*rows), {1: UNFIT, 2: UNFIT}) == [3, 3, 3]


def test_an_unfit_broker_leads_what_no_fit_one_can() -> None:
    """All unfit: nothing is passed to and fro. What only one holds stays there."""
    everybody = dict.fromkeys((1, 2, 3), UNFIT)
    assert leaders(cluster(full(), full(3), Row((1,), 1, 5, 7, (1,), 5)), everybody) == [1, 3, 1]
    assert leaders(cluster(full(in_sync=(1,))), {1: UNFIT}) == [1]


def test_cluster_d38_a_log_that_failed_leads_nothing() -> None:
    """An unfit broker rather than that; nobody rather than that, but where nobody else is assigned. Other partitions of
    the broker stay."""
    assert leaders(cluster(full(), full()), {1: FAILED}) == [2, 1]
    assert leaders(cluster(full()), {1: FAILED, 2: UNFIT, 3: UNFIT}) == [2]
    assert leaders(cluster(full()), {1: FAILED, 2: FAILED, 3: FAILED}) == [NO_LEADER]
    assert leaders(cluster(full(in_sync=(1,))), {1: FAILED}) == [NO_LEADER]
    assert leaders(cluster(Row((1,), 1, 5, 7, (1,), 5)), {1: FAILED}) == [1]


def test_who_is_to_move_prefers_whose_log_is_whole() -> None:
    """The first in the order of assignment has a failed log, the second is unfit, the third neither."""
    assert leaders(cluster(full(1)), {1: UNFIT, 2: FAILED}) == [3]
    assert leaders(cluster(full(1, (1, 2))), {1: UNFIT, 2: FAILED}) == [1]


def test_whose_log_failed_leaves_the_set_down_to_the_minimum() -> None:
    """It reports nothing any more: what waits for it would wait for `replica.lag.time.max.ms`. Also of a follower's;
    where nobody can lead nobody leaves."""

    def set_after(image: ClusterImage, failed: tuple[int, ...]) -> tuple[int, ...]:
        after = image.with_records(moved(image, dict.fromkeys(failed, FAILED)).records)
        check(after)
        return after.topics[T].rows[0].in_sync

    assert set_after(cluster(full()), (1,)) == (2, 3)
    assert set_after(cluster(full()), (3,)) == (1, 2)
    assert set_after(cluster(full(in_sync=(1, 2)), minimum=2), (1,)) == (1, 2)
    assert set_after(cluster(full(), minimum=2), (2, 3)) == (1, 3)
    assert set_after(cluster(full()), (1, 2, 3)) == (1, 2, 3)


def test_what_nobody_led_for_a_failed_log_is_led_again_when_it_is_fit() -> None:
    """Two followers that were sent damage twice, and whose leader died then: each has all that was acknowledged, takes
    what comes in its next role, and says so. Nothing else happens to the row for as long as the leader stays away."""
    both = {2: FAILED, 3: FAILED}
    image = cluster(full(2, (2, 3)), ended=(1,), minimum=2)
    assert not waits(image)
    image = image.with_records(moved(image, both).records)
    assert image.topics[T].rows[0].leader == NO_LEADER and waits(image)
    assert leaders(image, both) == [NO_LEADER]
    assert leaders(image, {2: FAILED}) == [3]
    assert leaders(image, {2: FAILED, 3: UNFIT}) == [3], "an unfit broker leads what no fit one can"
    assert leaders(image, {}) == [2]
    assert not waits(cluster(full(NO_LEADER, (1,)), ended=(1,))), "who is away is waited for"
