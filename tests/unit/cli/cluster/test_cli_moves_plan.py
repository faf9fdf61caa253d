"""Plans of `cluster drain` and `cluster rebalance`: what holds for every cluster, and examples worked by hand."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from thermocline.cli.cluster.moves.plan import Assignment, Loads, Move, Place, Plan, drain, totals
from thermocline.cli.cluster.moves.rebalance_plan import HOT_BYTES_MIN, HOT_SLACK, band, rebalance

MIB = 1 << 20


def places(*domains: str, away: Iterable[int] = ()) -> list[Place]:
    """Brokers 1, 2, … in these fault domains."""
    return [Place(node, domain, node not in away) for node, domain in enumerate(domains, start=1)]


def held(
    *replicas: tuple[int, ...], topic: str = "log", hot: int | None = 0, cold: int | None = None
) -> list[Assignment]:
    return [Assignment(topic, index, nodes, hot_bytes=hot, cold_bytes=cold) for index, nodes in enumerate(replicas)]


def carried_out(partitions: Sequence[Assignment], plan: Plan) -> list[Assignment]:
    """What moved before goes on."""
    after = {(move.topic, move.partition): move.after for move in plan.moves}
    return [
        replace(each, replicas=after[each.topic, each.partition], target=())
        if (each.topic, each.partition) in after
        else each
        for each in partitions
    ]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Place], list[Assignment]]:
    """1 to 7 brokers in 1 to 4 domains, some away, and up to 40 partitions of up to 4 replicas."""
    count = draw(st.integers(1, 7))
    domains = draw(st.integers(1, 4))
    away = draw(st.sets(st.integers(1, count), max_size=2))
    found = places(*(f"rack {draw(st.integers(1, domains))}" for _ in range(count)), away=away)
    rng = random.Random(draw(st.integers(0, 1 << 30)))
    partitions = []
    for index in range(draw(st.integers(0, 40))):
        factor = rng.randint(1, min(4, count))
        nodes = tuple(rng.sample(range(1, count + 1), factor))
        partitions.append(
            Assignment(
                rng.choice("abc"),
                index,
                nodes,
                tuple(rng.sample(range(1, count + 1), factor)) if rng.random() < 0.05 else (),
                any(node not in away for node in nodes),
                rng.choice((None, 0, rng.randrange(1 << 31))),
                rng.choice((None, rng.randrange(1 << 40))),
            )
        )
    return found, partitions


def check_valid(found: list[Place], partitions: list[Assignment], plan: Plan) -> None:
    """Nobody twice, nobody without a session is given anything, as many replicas as before, each move once."""
    before = {(each.topic, each.partition): each for each in partitions}
    active = {place.node for place in found if place.active}
    assert len({(move.topic, move.partition) for move in plan.moves}) == len(plan.moves)
    for move in plan.moves:
        was = before[move.topic, move.partition]
        assert move.before == was.assigned and move.after != move.before
        assert len(set(move.after)) == len(move.after) == len(was.assigned)
        assert set(move.added) <= active
        assert move.hot_bytes == (
            None if was.hot_bytes is None and move.added else (was.hot_bytes or 0) * len(move.added)
        )


def crowding(found: list[Place], nodes: tuple[int, ...]) -> int:
    return sum(count * count for count in Loads(found, []).spread(nodes).values())


# ── drain ────────────────────────────────────────────────────────────────────────────────────────────────────────────
@given(clusters(), st.integers(1, 7))
def test_a_drained_broker_holds_nothing_and_nothing_else_moves(
    cluster: tuple[list[Place], list[Assignment]], node: int
) -> None:
    """Each replica of it goes once, to somebody who has none; whatever cannot go is named; again: nothing."""
    found, partitions = cluster
    plan = drain(found, partitions, node)
    check_valid(found, partitions, plan)
    stuck = {(each.held.topic, each.held.partition) for each in plan.cannot}
    moved = {(move.topic, move.partition) for move in plan.moves}
    assert moved | stuck == {(each.topic, each.partition) for each in partitions if node in each.assigned}
    for move in plan.moves:
        assert node not in move.after and len(move.added) == 1
    others = [place for place in found if place.active and place.node != node]
    for each in plan.cannot:
        assert not each.held.has_leader or all(place.node in each.held.assigned for place in others)
    assert drain(found, carried_out(partitions, plan), node).moves == ()
    shuffled = random.Random(1).sample(partitions, len(partitions))
    assert drain(found[::-1], shuffled, node) == plan, "the order in which things are told decides nothing"


def test_a_replica_goes_to_the_idlest_broker_of_the_idlest_domain() -> None:
    """Another rack than its fellows', though brokers of theirs hold less."""
    found = places("a", "a", "b", "c", "c")
    partitions = held((1, 3), (2, 4), (4, 3))
    (move,) = drain(found, partitions, 1).moves
    assert move.after == (3, 5), "rack b has the other replica; of rack c broker 5 holds nothing"
    (move,) = drain(places("a", "a", "b"), held((1, 3)), 1).moves
    assert move.after == (3, 2)


def test_who_led_on_the_drained_broker_is_followed_by_all_the_others_alike() -> None:
    found = places("a", "b", "c", "d")
    partitions = held(*[(1, 2, 3), (1, 3, 4), (1, 4, 2)] * 4)
    after = carried_out(partitions, drain(found, partitions, 1))
    assert Counter(each.replicas[0] for each in after) == {2: 4, 3: 4, 4: 4}


def test_too_few_brokers_and_nobody_to_copy_from_are_said_with_a_cure() -> None:
    found = places("a", "b", "c", away=(3,))
    stuck, orphan = held((1, 2), (1, 3))
    plan = drain(found, [stuck, replace(orphan, has_leader=False)], 1)
    assert [each.why for each in plan.cannot] == [
        "it has 2 replicas, and 1 other broker has a session",
        "no broker leads it, so there is no replica to copy from",
    ]
    assert plan.cannot[0].do == "start another broker on the bucket first"
    assert "thermocline cluster forget 1" in plan.cannot[1].do


def test_what_moves_away_already_goes_on_and_what_moves_there_is_turned() -> None:
    found = places("a", "b", "c", "d")
    leaves = Assignment("log", 0, (1, 2), (2, 3))
    comes = Assignment("log", 1, (2, 3), (1, 3))
    plan = drain(found, [leaves, comes], 1)
    assert plan.under_way == (leaves,)
    assert [(move.partition, move.before, move.after) for move in plan.moves] == [(1, (1, 3), (3, 4))]


# ── rebalance ────────────────────────────────────────────────────────────────────────────────────────────────────────
@given(clusters())
def test_what_is_rebalanced_needs_no_move(cluster: tuple[list[Place], list[Assignment]]) -> None:
    """A fixpoint; no partition is less spread over domains than it was; the same plan however it is told."""
    found, partitions = cluster
    plan = rebalance(found, partitions)
    check_valid(found, partitions, plan)
    after = carried_out(partitions, plan)
    assert rebalance(found, after).moves == ()
    assert rebalance(found[::-1], random.Random(1).sample(partitions, len(partitions))) == plan
    for was, now in zip(partitions, after, strict=True):
        assert crowding(found, now.assigned) <= crowding(found, was.assigned)
        if was.target or not was.has_leader:
            assert now.assigned == was.assigned, "what moves, or is led by nobody, stays"


@given(st.integers(2, 6), st.integers(1, 60), st.integers(1, 3), st.integers(0, 1 << 30))
def test_no_more_replicas_move_than_must(brokers: int, count: int, factor: int, seed: int) -> None:
    """Where nothing but numbers has to be even: those above the band and no others; then all are in it."""
    rng = random.Random(seed)
    found = places(*["one"] * brokers)
    factor = min(factor, brokers - 1)
    partitions = held(*(tuple(rng.sample(range(1, brokers + 1), factor)) for _ in range(count)))
    plan = rebalance(found, partitions)
    before, after = (Loads(found, each).replicas for each in (partitions, carried_out(partitions, plan)))
    whole = band(count * factor, brokers)
    assert all(whole.low <= after[place.node] <= whole.high for place in found)
    above = sum(max(0, before[place.node] - whole.high) for place in found)
    below = sum(max(0, whole.low - before[place.node]) for place in found)
    assert totals(plan.moves).replicas == max(above, below)


def test_a_new_broker_gets_its_share_and_leads_its_share() -> None:
    """Three brokers, a fourth: it takes a quarter, nothing else is copied, and leaders are even by order alone."""
    found = places("a", "b", "c", "d")
    partitions = held(*[(1, 2, 3), (2, 3, 1), (3, 1, 2)] * 4, hot=MIB, cold=10 * MIB)
    plan = rebalance(found, partitions)
    assert totals(plan.moves).replicas == 9 and {node for move in plan.moves for node in move.added} == {4}
    assert totals(plan.moves).hot_bytes == 9 * MIB and totals(plan.moves).cold_bytes == 90 * MIB
    after = Loads(found, carried_out(partitions, plan))
    assert [after.replicas[node] for node in (1, 2, 3, 4)] == [9, 9, 9, 9]
    assert [after.leads[node] for node in (1, 2, 3, 4)] == [3, 3, 3, 3]


def test_a_new_broker_gets_its_share_of_small_topics_too() -> None:
    """Fifty partitions of offsets once gave all that moved, and the new broker had nothing of what users wrote."""
    found = places("a", "b", "c", "d")
    sizes = {"__consumer_offsets": 50, "orders": 6, "events": 6}
    rings = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
    partitions = [
        replace(each, topic=topic)
        for topic, count in sizes.items()
        for each in held(*(rings[at % 3][: 1 if topic == "events" else 3] for at in range(count)))
    ]
    plan = rebalance(found, partitions)
    gets = Counter(move.topic for move in plan.moves if 4 in move.added)
    assert gets["orders"] in (4, 5, 6) and gets["events"] in (1, 2, 3) and gets.total() <= 44


def test_each_topic_gives_of_what_it_has_most() -> None:
    """A broker that joins gets of every topic, not all of one."""
    found = places("a", "b", "c")
    partitions = [replace(each, topic=topic) for topic in "abcd" for each in held(*[(1, 2), (2, 1)] * 3)]
    plan = rebalance(found, partitions)
    assert Counter(move.topic for move in plan.moves if 3 in move.added) == {"a": 4, "b": 4, "c": 4, "d": 4}


def test_replicas_that_share_a_rack_are_parted_first() -> None:
    """Even numbers do not make up for that."""
    found = places("a", "a", "b", "b")
    partitions = held((1, 2), (3, 4))
    plan = rebalance(found, partitions)
    for each in carried_out(partitions, plan):
        assert crowding(found, each.replicas) == 2
    assert totals(plan.moves).replicas == 2


def test_leaders_are_handed_on_along_others_where_the_two_share_no_partition() -> None:
    """1 leads all it holds, 3 leads nothing, and both only share partitions with 2."""
    found = places("a", "b", "c")
    partitions = held((1, 2), (1, 2), (2, 3), (2, 3))
    plan = rebalance(found, [*partitions, Assignment("more", 0, (1, 3))])
    assert totals(plan.moves).replicas == 0 and all(move.hot_bytes == 0 for move in plan.moves)
    leads = Loads(found, carried_out([*partitions, Assignment("more", 0, (1, 3))], plan)).leads
    assert sorted(leads[node] for node in (1, 2, 3)) == [1, 2, 2]


def test_hot_bytes_are_even_too() -> None:
    """As many replicas on both, and one has all the hot ones: they are swapped, as few as it takes."""
    found = places("a", "b")
    hot = [replace(each, hot_bytes=1 << 30) for each in held(*[(1,)] * 8, topic="hot")]
    partitions = [*hot, *held(*[(2,)] * 8, topic="cool")]
    plan = rebalance(found, partitions)
    after = Loads(found, carried_out(partitions, plan))
    assert after.replicas == {1: 8, 2: 8}
    assert abs(after.hot[1] - after.hot[2]) <= 2 * max(HOT_BYTES_MIN, int((4 << 30) * HOT_SLACK))
    assert totals(plan.moves).replicas <= 8
    assert rebalance(found, [replace(each, hot_bytes=200 * MIB) for each in held((1,))]).moves == ()


def test_who_is_away_neither_gives_nor_takes() -> None:
    found = places("a", "b", "c", away=(3,))
    plan = rebalance(found, held(*[(1, 3)] * 6))
    assert all(3 in move.after for move in plan.moves) and totals(plan.moves).replicas == 3
    assert rebalance(places("a", away=(1,)), held((1,))).moves == ()


def test_a_thousand_topics_are_planned_within_a_second() -> None:
    """10 000 partitions of 30 000 replicas; a broker goes, a broker comes. 0.6 s at most on a busy machine."""
    rng = random.Random(7)
    found = places(*(f"rack {number % 3}" for number in range(12)))
    partitions = [
        Assignment(
            f"topic-{index % 1000}", index // 1000, tuple(rng.sample(range(1, 12), 3)), hot_bytes=rng.randrange(1 << 27)
        )
        for index in range(10_000)
    ]
    began = time.process_time()
    gone, even = drain(found, partitions, 5), rebalance(found, partitions)
    assert time.process_time() - began < 2.0, "both"
    assert len(gone.moves) > 2000 and len(even.moves) > 2000
    after = Loads(found, carried_out(partitions, even))
    assert max(after.replicas[node] for node in after.active) <= band(30_000, 12).high
    assert all(crowding(found, each.replicas) == 3 for each in carried_out(partitions, even))


def test_bytes_of_a_move_are_of_all_its_copies() -> None:
    move = Move("log", 0, (1, 2), (3, 4), 20, 7)
    assert move.added == (3, 4) and move.name == "log-0"
    assert totals([move, Move("log", 1, (1,), (2,))]) == (totals([move]).__class__)(3, 20, 7, 1)
