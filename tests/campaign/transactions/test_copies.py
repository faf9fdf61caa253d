"""The books of the loops' output, and one short run of loops under harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign.books import Book, Problems, value_of
from tests.campaign.run import Plan, printed
from tests.campaign.transactions.copies import Copies
from tests.campaign.transactions.course import CopyCampaign

VALUE_BYTES = 30


@pytest.mark.timeout(300)
def test_loops_copy_each_record_once_while_a_leader_is_killed(tmp_path: Path) -> None:
    """Three real brokers, two loops of librdkafka that are killed, stopped and doubled: the books balance."""
    plan = Plan(seconds=12, seed=1, kinds=("kill leader",), libraries=("confluent-kafka",), per_s=1200, records=12_000)
    verdict = CopyCampaign(tmp_path, plan).run()
    print(printed(verdict))
    assert verdict.problems == []
    counts = verdict.counts
    assert counts["output read at the end"] == counts["input acknowledged"] >= 12_000
    assert counts["transactions seen"] > 10 and sum(counts[name] for name in counts if name.startswith("loops: ")) > 0
    assert counts["of these aborted on purpose"] > 0 and counts["offsets of both in the bucket alone"] > 0
    assert len(verdict.harms) >= 1 and counts["batches compared between replicas"] > 0


def copies_of(*sent: int) -> tuple[Copies, Problems]:
    """So many numbers were sent and acknowledged in each partition."""
    problems = Problems()
    books = [Book("in", partition, problems) for partition in range(len(sent))]
    for book, count in zip(books, sent, strict=True):
        for number in range(count):
            book.acknowledged(book.take_number(), number)
    return Copies("out", books, "reader", VALUE_BYTES), problems


def copy(number: int, label: str = "x.1.1", count: int = 1, fate: str = "c") -> bytes:
    return f"{fate} {count} {label} ".encode() + value_of(number, VALUE_BYTES)


def test_whole_transactions_in_order_are_right() -> None:
    copies, problems = copies_of(3, 1)
    copies.saw(0, 0, copy(0, "x.1.1", 3))
    copies.saw(1, 0, copy(0, "x.1.1", 3))
    copies.saw(0, 1, copy(1, "x.1.1", 3))
    assert not copies.have_all
    copies.saw(0, 3, copy(2, "x.1.2", 1))
    assert copies.have_all and copies.records == 4 and len(copies.transactions) == 2
    copies.end()
    assert problems.counts == {}


def test_each_kind_of_problem_is_told_from_the_others() -> None:
    copies, problems = copies_of(6)
    copies.saw(0, 0, copy(0))
    copies.saw(0, 1, copy(0, "y.1.1"))
    assert problems.counts == {"doubled": 1}
    copies.saw(0, 2, copy(2, "x.1.2"))
    copies.saw(0, 3, copy(1, "x.1.3"))
    assert problems.counts == {"doubled": 1, "reordered": 1}
    copies.saw(0, 4, copy(3, "x.1.4", fate="a"))
    assert problems.counts["aborted"] == 1
    copies.saw(0, 5, copy(4, "x.1.5", count=2))
    copies.saw(0, 6, copy(9, "x.1.6"))
    copies.saw(0, 7, copy(5, "x.1.7")[:-1])
    assert problems.counts == {"doubled": 1, "reordered": 1, "aborted": 1, "changed": 2}
    copies.saw(0, 7, copy(5, "x.1.8"))
    assert problems.counts["reordered"] == 2 and problems.counts["doubled"] == 2
    copies.end()
    assert problems.counts["lost"] == 1 and problems.counts["torn"] == 1
    assert problems.told[-2:] == [
        "lost: out-0, reader: number 3, input offset 3",
        "torn: out, reader: x.1.5 shows 1 of 2 records",
    ]


def test_a_number_that_nobody_acknowledged_may_be_missing() -> None:
    copies, problems = copies_of(1)
    book = copies._books[0]
    book.take_number()
    copies.saw(0, 0, copy(0))
    copies.end()
    assert problems.counts == {}
