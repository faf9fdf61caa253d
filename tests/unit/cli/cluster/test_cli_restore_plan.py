"""`cluster restore`: what becomes of each partition, and what each look at the cluster asks for next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.metadata.rebuilt import UNKNOWN_REPLICA
from broker.observe.cluster_status import BrokerRow, PartitionRow
from thermocline.cli.cluster.restore.plan import Outcome, Step, StoredPartition, moves_held_up, plan
from thermocline.cli.cluster.restore.plan import next_step as next_step_of

ALL_LOST = PartitionRow("log", 0, 1, 2, (1, 2, 3), (1, 2, 3), ())
HELD = StoredPartition(log_start=5, remote_end=100, end=100, reserved_end=400, cold_bytes=1 << 20)
LOG = ("log", 0)


def broker(node: int, *, active: bool = True, given_up: bool = False, rack: str | None = None) -> BrokerRow:
    return BrokerRow(node, "127.0.0.1", 9000 + node, rack, active, 1, machine=f"boot {node}", given_up=given_up)


def brokers(*there: int, gone: tuple[int, ...] = (), given_up: tuple[int, ...] = ()) -> list[BrokerRow]:
    rows = [broker(node) for node in there] + [broker(node, active=False) for node in gone]
    return sorted(rows + [broker(n, active=False, given_up=True) for n in given_up], key=lambda row: row.node)


# ── what becomes of it ───────────────────────────────────────────────────────────────────────────────────────────────
def test_a_plan_without_brokers_names_all_that_are_gone_and_moves_nothing() -> None:
    """Their sessions still stand in `cluster.json`, as nobody was left to end them."""
    found = plan(brokers(1, 2, 3), [ALL_LOST], {LOG: HELD}, answers=lambda _: False)
    (one,) = found.partitions
    assert (one.fate, one.to, one.begins, one.gap) == (Outcome.RESTORED, (1, 2, 3), (), (100, 400))
    assert found.there == () and found.gone == {1: 1, 2: 1, 3: 1}


def test_other_brokers_take_the_places_of_those_that_are_gone() -> None:
    """As many replicas as before, or as there are brokers; who holds a replica already stays."""
    rows = [replace(ALL_LOST, partition=n) for n in range(4)]
    held = {("log", n): HELD for n in range(4)}
    fewer = plan(brokers(11, 12, gone=(1, 2, 3)), rows, held)
    assert {frozenset(one.to) for one in fewer.partitions} == {frozenset((11, 12))}
    assert [one.hot_bytes for one in fewer.partitions] == [0] * 4
    assert sorted(one.to[0] for one in fewer.partitions) == [11, 11, 12, 12], "leaders are spread"
    rows = [replace(row, in_sync=(2, 3)) for row in rows]
    more = plan(brokers(1, 11, 12, 13, gone=(2, 3)), rows, held)
    assert all(one.to[0] == 1 and len(set(one.to)) == 3 and not {2, 3} & set(one.to) for one in more.partitions)
    assert {node for one in more.partitions for node in one.to} == {1, 11, 12, 13}


def next_step(there: Sequence[BrokerRow], rows: Sequence[PartitionRow], damaged: dict[Any, str], **more: int) -> Step:
    """Somebody agreed to give up everybody."""
    return next_step_of(there, rows, damaged, may_give_up={(one.node, one.broker_epoch) for one in there}, **more)


def test_who_went_silent_after_somebody_agreed_is_waited_for() -> None:
    """Found by a reader: a broker that restarted during a restore, and alone held a partition, was given up with all
    that it had acknowledged."""
    alone = replace(ALL_LOST, leader=None, offline=True, replicas=(1, 2), in_sync=(2,))
    step = next_step_of(brokers(1, gone=(2, 3)), [alone], {}, may_give_up={(3, 1)})
    assert (step.give_up, step.move, step.leave, step.waits) == ([], {}, [], [LOG])


def test_where_a_member_of_the_set_is_there_nobody_is_given_up() -> None:
    """What it lacks others have: that is no restore."""
    found = plan(brokers(1, gone=(2, 3)), [ALL_LOST], {LOG: HELD})
    assert found.partitions[0].fate is Outcome.KEPT and found.partitions[0].gap is None
    assert found.gone == {} and found.away == {2: 1, 3: 1}
    step = next_step(brokers(1, gone=(2, 3)), [ALL_LOST], {})
    assert not step.give_up and not step.move


def test_a_damaged_manifest_is_named_and_holds_up_nobody() -> None:
    bad = replace(ALL_LOST, partition=1, leader=None, offline=True, in_sync=())
    found = plan(brokers(1, 2, 3), [ALL_LOST, bad], {LOG: HELD, ("log", 1): StoredPartition(damage="CRC")})
    assert [one.fate for one in found.partitions] == [Outcome.KEPT, Outcome.OFFLINE]
    assert next_step(brokers(1, 2, 3), [ALL_LOST, bad], {("log", 1): "CRC"}).is_done
    assert next_step(brokers(1, 2, 3), [ALL_LOST, bad], {}).waits == [("log", 1)]


def test_a_rebuilt_cluster_waits_for_its_unknown_replicas_until_they_are_given_up() -> None:
    """Who holds a log stays; the others are as many as topics get that do not say it; the mark itself does not leave:
    that is an operator's word."""
    row = replace(ALL_LOST, leader=None, offline=True, replicas=(UNKNOWN_REPLICA, 2), in_sync=())
    there = brokers(1, 2, 3, gone=(UNKNOWN_REPLICA,))
    found = plan(there, [row], {LOG: HELD}, default_factor=2)
    assert found.gone == {UNKNOWN_REPLICA: 1} and len(found.partitions[0].to) == 2
    assert found.partitions[0].to[0] == 2 and found.partitions[0].begins[0] == 2
    given_up = brokers(1, 2, 3, given_up=(UNKNOWN_REPLICA,))
    assert next_step(there, [row], {}).give_up == [UNKNOWN_REPLICA]
    (to,) = next_step(given_up, [row], {}, default_factor=2).move.values()
    done = replace(row, leader=2, offline=False, replicas=to, in_sync=to)
    assert next_step(given_up, [done], {}, default_factor=2).is_done


# ── step by step ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_first_they_are_given_up_then_replicas_move_then_they_leave() -> None:
    """Each from one look, so that whoever was cut off goes on."""
    lost = replace(ALL_LOST, leader=None, offline=True)
    first = next_step(brokers(11, 12, gone=(1, 2, 3)), [lost], {})
    assert (first.give_up, first.move, first.leave) == ([1, 2, 3], {}, [])
    emptied = replace(lost, in_sync=())
    second = next_step(brokers(11, 12, given_up=(1, 2, 3)), [emptied], {})
    assert (second.give_up, set(second.move[LOG]), second.leave) == ([], {11, 12}, [])
    moving = replace(emptied, target=second.move[LOG])
    third = next_step(brokers(11, 12, given_up=(1, 2, 3)), [moving], {})
    assert (third.give_up, third.move, third.leave, third.waits) == ([], {}, [], [LOG])
    moved = replace(moving, leader=11, offline=False, replicas=(11, 12), in_sync=(11, 12), target=())
    fourth = next_step(brokers(11, 12, given_up=(1, 2, 3)), [moved], {})
    assert fourth.leave == [1, 2, 3] and not fourth.is_done
    assert next_step(brokers(11, 12), [moved], {}).is_done


def test_a_move_that_was_under_way_ends_on_brokers_that_are_there() -> None:
    """Found by a reader: a row with a target was taken for one of ours, on its way, so it stayed offline for ever."""
    moving = replace(ALL_LOST, leader=None, offline=True, in_sync=(), target=(1, 2, 4))
    (to,) = next_step(brokers(11, 12, 13, given_up=(1, 2, 3, 4)), [moving], {}).move.values()
    assert set(to) == {11, 12, 13}
    (to,) = next_step(brokers(1, 2, 5, given_up=(3, 4)), [moving], {}).move.values()
    assert to == (1, 2, 5)
    more = replace(moving, replicas=(1,), target=(1, 2, 4))
    (to,) = next_step(brokers(11, 12, 13, given_up=(1, 2, 3, 4)), [more], {}).move.values()
    assert set(to) == {11, 12, 13}, "as many as were asked for"


def test_a_whole_partition_that_moves_to_a_broker_that_is_away_is_not_waited_for() -> None:
    """Nobody gives that one up, as nobody lacks what it may hold: the restore would have waited for ever."""
    there = brokers(1, gone=(2,))
    moving = replace(ALL_LOST, replicas=(1,), in_sync=(1,), target=(1, 2))
    assert next_step(there, [moving], {}).is_done
    assert moves_held_up(there, [moving]) == {LOG: (2,)}
    assert next_step(brokers(1, 2), [moving], {}).waits == [LOG]
    begins = replace(moving, starting=True)
    assert next_step(there, [begins], {}).waits == [LOG], "that one is to serve first"


@given(
    st.lists(
        st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True).flatmap(
            lambda replicas: st.tuples(
                st.just(tuple(replicas)),
                st.sets(st.sampled_from(replicas)),
                st.lists(st.integers(1, 6), max_size=4, unique=True).map(tuple),
            )
        ),
        min_size=1,
        max_size=8,
    ),
    st.sets(st.integers(1, 9)),
)
def test_whatever_is_there_the_steps_come_to_an_end(
    drawn: list[tuple[tuple[int, ...], set[int], tuple[int, ...]]], there: set[int]
) -> None:
    """Played against a cluster that does as it is asked: nobody is given up who is there or whom nobody waits for; at
    the end every partition that some broker can hold is led, with as many replicas as there can be, whether or not it
    was on its way elsewhere."""
    rows = [
        PartitionRow("log", n, None, 1, replicas, tuple(sorted(in_sync)), target, offline=True)
        for n, (replicas, in_sync, target) in enumerate(drawn)
    ]
    known = set(range(1, 7)) | there
    given_up: set[int] = set()
    for _ in range(6):
        rows = [_led(row, there, given_up) for row in rows]
        seen = [broker(node, active=node in there, given_up=node in given_up) for node in sorted(known)]
        step = next_step(seen, rows, {})
        assert not set(step.give_up) & there
        for node in step.give_up:
            assert any(node in {*row.replicas, *(row.target or ())} and not there & set(row.in_sync) for row in rows)
        if step.is_done:
            break
        given_up |= set(step.give_up)
        known -= set(step.leave)
        rows = [replace(row, in_sync=tuple(n for n in row.in_sync if n not in given_up)) for row in rows]
        rows = [replace(row, target=step.move.get(("log", row.partition), row.target)) for row in rows]
    else:
        assert not there, (step, rows)
    if there:
        for row, (replicas, in_sync, target) in zip(rows, drawn, strict=True):
            assert row.leader in there
            if not there & in_sync:
                assert set(row.replicas) <= there and not row.target
                assert len(row.replicas) >= min(len(target or replicas), len(there))


def _led(row: PartitionRow, there: set[int], given_up: set[int]) -> PartitionRow:
    """As the controller has it: by an in-sync replica that is there; by any, where the set is empty and every other
    one is there or was given up. A move ends when all that it names are there."""
    assigned = dict.fromkeys((*row.replicas, *(row.target or ())))
    candidates = [node for node in assigned if node in there and (node in row.in_sync or not row.in_sync)]
    if not candidates or (not row.in_sync and set(assigned) - there - given_up):
        return replace(row, leader=None, offline=True)
    led = replace(row, leader=candidates[0], offline=False, in_sync=row.in_sync or (candidates[0],))
    if not row.target or not set(row.target) <= there:
        return led
    return replace(led, leader=row.target[0], replicas=row.target, in_sync=row.target, target=())
