"""Leaderships that go back by themselves: to whom, when, and to whom never (auto.leader.rebalance.enable)."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from broker.controller.decisions.elections import ElectionType, elect
from broker.controller.decisions.fitness import Fitness, Unfit
from broker.controller.leader_rebalance import balanced, due
from broker.error_codes import ErrorCode
from broker.metadata.image import ClusterImage, check
from broker.metadata.records import NO_LEADER, Row, TopicCreated
from tests.support.brokers.cluster_kit import id_of, session
from tests.support.brokers.house import house
from tests.support.waiting import until

T = id_of(1)
UNFIT = Fitness(unfit_all=True)
ODD_LED = Row((1, 2, 3), 2, 5, 7, (1, 2, 3), 5)


def cluster(*rows: Row, ended: tuple[int, ...] = ()) -> ClusterImage:
    sessions = [session(node_id=n, broker_epoch=n, active=n not in ended) for n in (1, 2, 3)]
    return ClusterImage().with_records([*sessions, TopicCreated(T, "t", rows, {})])


def leaders(image: ClusterImage, unfit: Unfit | None = None) -> list[int]:
    """After a look and its commit."""
    unfit = unfit or {}
    places = list(due(image.topics[T], image, unfit))
    decided = balanced(image, places, unfit)
    assert decided.answer == len(places)
    after = image.with_records(decided.records)
    check(after, image)
    assert list(due(after.topics[T], after, unfit)) == [], "what was done stays so"
    for before, row in zip(image.topics[T].rows, after.topics[T].rows, strict=True):
        assert row.leader_epoch - before.leader_epoch == (row.leader != before.leader)
        assert row.in_sync == before.in_sync
    return [row.leader for row in after.topics[T].rows]


def test_the_first_assigned_leads_again_where_it_can() -> None:
    """Not while it is out of sync, without a session, or unfit; not what is being moved, nor what nobody leads."""
    lags, first = Row((1, 2, 3), 2, 5, 7, (2, 3), 5), Row((1, 2, 3), 1, 5, 7, (1, 2, 3), 5)
    moves = Row((1, 2), 2, 5, 7, (1, 2), 5, target=(3, 2))
    nobody = Row((1, 2, 3), NO_LEADER, 5, 7, (1,), 5)
    assert leaders(cluster(ODD_LED, lags, first, moves)) == [1, 2, 1, 2]
    assert leaders(cluster(ODD_LED, lags, nobody, ended=(1,))) == [2, 2, NO_LEADER]
    assert leaders(cluster(ODD_LED), {1: UNFIT}) == [2]
    assert leaders(cluster(ODD_LED, ODD_LED), {1: Fitness(unfit=((T, 0),)), 2: UNFIT}) == [2, 1]


def test_what_was_due_is_decided_anew() -> None:
    """Between the look and the commit its session may end, its topic go, it may say that it is unfit."""
    image, places = cluster(ODD_LED), [(T, 0), (T, 4), (id_of(9), 0)]
    assert balanced(image, places, {}).answer == 1
    assert balanced(image, places, {1: UNFIT}).records == ()
    assert balanced(cluster(ODD_LED, ended=(1,)), places, {}).records == ()


_ROWS = st.lists(
    st.builds(
        lambda replicas, count, leader: Row(
            tuple(replicas), tuple(replicas)[leader % count], 5, 7, tuple(replicas)[:count], 5
        ),
        st.permutations([1, 2, 3]),
        st.integers(1, 3),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=5,
)


@given(_ROWS, st.sets(st.sampled_from([1, 2, 3])), st.sets(st.integers(0, 4)))
def test_nobody_unfit_ever_gets_a_leadership(rows: list[Row], unfit_all: set[int], failed: set[int]) -> None:
    """Nor by a preferred election that somebody asks for: both leave or make the same leaders."""
    image = cluster(*rows)
    unfit = {node: Fitness(node in unfit_all, tuple((T, index) for index in sorted(failed))) for node in (1, 2)}
    now = leaders(image, unfit)
    asked = [("t", index) for index in range(len(rows))]
    decided = elect(image, ElectionType.PREFERRED, asked, unfit=unfit)
    assert [row.leader for row in image.with_records(decided.records).topics[T].rows] == now
    for index, (row, leader) in enumerate(zip(rows, now, strict=True)):
        first = row.replicas[0]
        told = unfit.get(first)
        may = told is None or not (told.unfit_all or (T, index) in told.unfit)
        assert leader == (first if may and first in row.in_sync else row.leader)
        available = leader == first
        expected = ErrorCode.ELECTION_NOT_NEEDED if row.leader == first else ErrorCode.NONE
        assert decided.answer["t", index].error == (expected if available else ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)


async def test_a_leader_that_comes_back_leads_again_within_an_interval() -> None:
    """Once it is in sync; broker 3 is killed and comes back, the controller is another one."""
    async with house(6, "leader.imbalance.check.interval.seconds=20") as it:
        first: list[int] = [it.row(index).replicas[0] for index in range(6)]
        assert [it.row(index).leader for index in range(6)] == first and 3 in first
        await it.kill(3)
        await until(lambda: all(it.row(index).leader != 3 for index in range(6)), 20)
        await asyncio.sleep(45)
        assert all(it.row(index).leader != 3 for index in range(6)), "it has no session"
        await it.start(3)
        await until(lambda: all(len(it.row(index).in_sync) == 3 for index in range(6)), 30)
        epochs = [it.row(index).leader_epoch for index in range(6)]
        assert await until(lambda: [it.row(index).leader for index in range(6)] == first, 25) > 0
        after = [it.row(index).leader_epoch for index in range(6)]
        assert [b - a for a, b in zip(epochs, after, strict=True)] == [leader == 3 for leader in first]


async def test_leaders_stay_where_they_are_when_it_is_switched_off() -> None:
    settings = ("leader.imbalance.check.interval.seconds=1", "auto.leader.rebalance.enable=false")
    async with house(6, *settings) as it:
        await it.kill(3)
        await until(lambda: all(it.row(index).leader != 3 for index in range(6)), 20)
        await it.start(3)
        await until(lambda: all(len(it.row(index).in_sync) == 3 for index in range(6)), 30)
        await asyncio.sleep(60)
        assert all(it.row(index).leader != 3 for index in range(6))


async def test_an_unfit_broker_gets_nothing_back_until_it_is_fit() -> None:
    """Its disk is full: what it led goes once, and does not come and go at every look; asked for, it is refused in
    Kafka's words. With room again it leads again."""
    async with house(3, "leader.imbalance.check.interval.seconds=5") as it:
        leader = it.row().leader
        it.watched = next(node for node in (1, 2, 3) if node != leader)
        before = it.row()
        disk = it.disks[leader]
        disk.allocate("/filler", disk.space("/").free)
        await it.lives[leader].produce("log", b"a" * 1000)
        await until(lambda: it.row().leader != leader, 15)
        await asyncio.sleep(60)
        assert it.row().leader_epoch == before.leader_epoch + 1
        door = it.lives[it.controllers[0]].context.controller
        elected = await door.elect(ElectionType.PREFERRED, [("log", 0)])
        assert elected["log", 0].error is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        disk.unlink("/filler")
        await until(lambda: it.row().leader == leader, 60)
        assert it.row().leader_epoch == before.leader_epoch + 2
