"""Who comes back from a replica that does not serve stays at the leader for a while."""

from __future__ import annotations

from broker.replication.read_replica_selection import PLACES_MAX, STAY_S, RedirectMemory

HERE = ("log", 0)


def test_who_comes_back_for_the_same_offset_stays_for_a_while() -> None:
    """And is sent again after that."""
    away = RedirectMemory()
    assert away.may_go(HERE, 7, 0.0)
    assert not away.may_go(HERE, 7, 1.0)
    assert not away.may_go(HERE, 8, 2.0) and not away.may_go(HERE, 99, 1.0 + STAY_S - 0.1)
    assert away.may_go(HERE, 100, 1.0 + STAY_S)


def test_who_comes_back_later_or_further_on_is_sent_again() -> None:
    """It read there; or it asks anew after its time, at the end of a log in which nothing happens (Java does so every
    five minutes)."""
    away = RedirectMemory()
    assert away.may_go(HERE, 7, 0.0) and away.may_go(HERE, 8, 1.0)
    assert away.may_go(HERE, 8, 1.0 + STAY_S)


def test_partitions_are_apart_and_only_so_many_are_remembered() -> None:
    away = RedirectMemory()
    for index in range(PLACES_MAX + 1):
        assert away.may_go(("log", index), 0, 0.0)
    assert away.may_go(("log", 0), 0, 0.0), "forgotten: sent once more"
    assert not away.may_go(("log", PLACES_MAX), 0, 0.0)
