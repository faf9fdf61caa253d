"""A soak of twenty seconds: the same load, kills every few seconds, the same books."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.ledger import Books
from tests.soak.run import Plan, Soak, printed
from tests.soak.samples import Sample, growth, slope, slope_within


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "secured"])
def test_soak_twenty_seconds_with_kills(tmp_path: Path, is_secured: bool) -> None:
    """Everything acknowledged is there once, at its offset, across kills; the bucket's books balance afterwards."""
    plan = Plan(13, (2.0, 4.0), bytes_per_s=1e6, warm_up_s=1.0, admin_every_s=3.0, is_secured=is_secured)
    verdict = Soak(tmp_path, plan).run()
    print(printed("short", verdict))
    assert verdict.problems == []
    assert verdict.kills >= 2 and verdict.counts["acked_all"] > 1000 and verdict.counts["replays"] > 0


def test_the_books_find_what_a_log_may_not_do() -> None:
    """Lost, doubled, moved, backwards, never seen: each is told."""
    books = Books("t-0", exactly_once=True)
    for _ in range(6):
        books.take_number()
    books.acknowledged(0, 0)
    books.saw(0, 0)
    assert books.problems == [] and books.acked == 1
    books.saw(0, 1)
    books.saw(3, 2)
    books.acknowledged(3, 7)
    books.saw(4, 2)
    books.acknowledged(5, 9)
    assert [problem.split(": ")[1][:24] for problem in books.problems] == [
        "number 0 is there again ",
        "numbers 1 to 2 are missi",
        "number 3 was acknowledge",
        "offset 2 was seen after ",
    ]
    assert len(books.unseen()) == 2


def test_growth_is_found_within_lives_and_across_them() -> None:
    """Each life has its own level; the common slope is what grows within, the medians what grows across."""
    flat = [Sample(life, at, 100.0 + 5 * life, 50, 9, 0.0) for life in range(4) for at in range(60)]
    assert slope([(0, 1), (1, 3), (2, 5)]) == 2
    assert slope_within([[(0, 1), (1, 2)], [(0, 50), (1, 51)]]) == 1
    found = growth(flat, lambda s: s.rss_mib, warm_up_s=10)
    assert (found.per_minute_within, found.per_life_across) == (0.0, 5.0)
    leaking = [Sample(0, at, 100.0 + at / 60, 50, 9, 0.0) for at in range(600)]
    assert abs(growth(leaking, lambda s: s.rss_mib, 0).per_minute_within - 1) < 1e-6
