"""Carrying a plan out, told as conversations with a cluster that answers as it likes."""

from __future__ import annotations

from thermocline.cli.cluster.client import MoveRefusal, Reassignment
from thermocline.cli.cluster.moves.pacer import MovePacer
from thermocline.cli.cluster.moves.plan import Move

MOVING = Reassignment((3, 2), (1, 2))


def moves(count: int, hot: int | None = 100) -> list[Move]:
    return [Move("log", index, (1, 2), (3, 2), hot, 1000) for index in range(count)]


def names(*indexes: int) -> list[tuple[str, int]]:
    return [("log", index) for index in indexes]


def test_a_bounded_number_moves_at_a_time() -> None:
    """The next are asked for when half of the room is free, many in one request; never more than the bound."""
    conduct = MovePacer.of(moves(10), at_once=4)
    batch = conduct.next_batch()
    assert [move.partition for move in batch] == [0, 1, 2, 3]
    conduct.answered(batch, {})
    assert conduct.next_batch() == []
    conduct.update(dict.fromkeys(names(1, 2, 3), MOVING), {})
    assert conduct.next_batch() == [] and list(conduct.done) == names(0)
    conduct.update(dict.fromkeys(names(2, 3), MOVING), {})
    batch = conduct.next_batch()
    assert [move.partition for move in batch] == [4, 5]
    conduct.answered(batch, {})
    conduct.update({}, {})
    conduct.answered(conduct.next_batch(), {})
    assert not conduct.is_over
    conduct.update({}, {})
    assert conduct.is_over and list(conduct.done) == names(*range(10))


def test_what_is_refused_is_left_out_and_what_is_refused_for_now_is_asked_again() -> None:
    conduct = MovePacer.of(moves(3), at_once=4)
    batch = conduct.next_batch()
    conduct.answered(batch, {("log", 0): MoveRefusal("no such topic", False), ("log", 1): MoveRefusal("not now", True)})
    assert conduct.refused == {("log", 0): "no such topic"} and list(conduct.running) == names(2)
    assert [move.partition for move in conduct.next_batch()] == [1]
    assert conduct.hot_bytes == 200


def test_an_answer_that_was_lost_is_asked_for_again() -> None:
    """In the same order: the same request is the same move."""
    conduct = MovePacer.of(moves(3), at_once=4)
    batch = conduct.next_batch()
    conduct.put_back(batch)
    assert conduct.next_batch() == batch


def test_copies_count_for_what_they_take_and_do_not_shrink() -> None:
    """A copy that was tiered away meanwhile is copied all the same; one that grew under load counts once."""
    two = Move("log", 0, (1, 2), (3, 4), 200, 0)
    conduct = MovePacer.of([two], at_once=4)
    conduct.answered(conduct.next_batch(), {})
    assert conduct.copies() == {3: names(0), 4: names(0)}
    conduct.update({("log", 0): MOVING}, {(("log", 0), 3): 60, (("log", 0), 4): 1000})
    assert conduct.copied_bytes == 160
    conduct.update({("log", 0): MOVING}, {(("log", 0), 3): 10})
    assert conduct.copied_bytes == 160
    conduct.update({}, {})
    assert conduct.copied_bytes == conduct.hot_bytes == 200


def test_what_moves_already_is_followed_to_its_end() -> None:
    """It takes of the room, and is not asked for."""
    going_on, *others = moves(4)
    conduct = MovePacer.of(others, [going_on], at_once=2)
    batch = conduct.next_batch()
    assert [move.partition for move in batch] == [1] and conduct.partitions == 4
    conduct.answered(batch, {})
    conduct.update({}, {})
    assert list(conduct.done) == names(0, 1)


def test_unknown_bytes_are_none_of_the_bar() -> None:
    conduct = MovePacer.of(moves(1, hot=None), at_once=1)
    conduct.answered(conduct.next_batch(), {})
    conduct.update({("log", 0): MOVING}, {(("log", 0), 3): 5})
    assert (conduct.hot_bytes, conduct.copied_bytes) == (0, 0)
