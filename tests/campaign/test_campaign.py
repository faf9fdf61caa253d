"""The campaign's own books, and one short run of it."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest

from tests.campaign.aftermath import differences, stack_traces
from tests.campaign.books import Book, Pause, Problems, Reading, longest_by_harm, value_of
from tests.campaign.nemesis import Nemesis
from tests.campaign.run import SETTINGS, Campaign, Plan, printed
from tests.support.clients.committing import PARTITIONS, Run
from tests.support.clients.committing_java import java
from tests.support.clients.stock_clients import read_confluent
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.link_proxy import Links
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import three
from tests.support.store.buckets import DirectoryBucket

LEDGER = "ledger"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "secured"])
def test_a_minute_of_harm_costs_nothing_that_was_acknowledged(tmp_path: Path, is_secured: bool) -> None:
    """Three real brokers, three client libraries, a leader killed, another cut off: the books balance."""
    plan = Plan(seconds=60, seed=1, kinds=("kill leader", "cut off leader"), per_s=500, is_secured=is_secured)
    verdict = Campaign(tmp_path, plan).run()
    print(printed(verdict))
    assert verdict.problems == []
    assert verdict.counts["acknowledged"] > 1000 and verdict.counts["of these cold"] > 0
    assert verdict.counts["batches compared between replicas"] > 0 and len(verdict.harms) >= 2


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_harm_costs_the_java_client_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Apache Kafka's own producer, idempotent with acks=all, and its consumer, in a group: leaders are stopped for
    longer than any time-out, cut off, heard one way only, and restarted again and again. It gives nothing up, and what
    it was told is safe is there once at its offset, in order."""
    require_kafka()
    kinds = ("stop leader", "cut off leader", "one way only", "restart loop")
    problems: list[str] = []
    site = Site(tmp_path, DirectoryBucket(tmp_path / "bucket"), dict(SETTINGS))
    with Links() as links, three(site, links) as cluster:
        cluster.create(LEDGER, PARTITIONS, min_insync_replicas=2, internal_segment_bytes=4096)
        run = Run(cluster.everywhere, LEDGER, "group-java")
        with java(run, tmp_path, delivery_timeout_s=600):
            cluster.wait(lambda: run.check() or len(run.read) > 20, "records are read", 120)
            nemesis = Nemesis(cluster, (LEDGER,), {}, Random(1), kinds, problems, print)
            nemesis.run(time.monotonic() + 600, harms_max=len(kinds))
            run.end("write", 120)
            cluster.wait(lambda: run.check() or run.has_read_all, "everything read", 120)
            run.end("read", 120)
        assert problems == [] and {harm.kind for harm in nemesis.harms} == set(kinds)
        ends = {p: 1 + max(o for q, o in run.acknowledged.values() if q == p) for p in range(PARTITIONS)}
        found = read_confluent(cluster.everywhere, LEDGER, ends)
    assert len(run.acknowledged) == run.sent > 500
    assert len(found) == run.sent, "none lost, none doubled"
    assert {int(r.value or b""): (r.partition, r.offset) for r in found} == run.acknowledged
    assert {number: (p, o) for p, o, number in run.read} == run.acknowledged
    for index in range(PARTITIONS):
        numbers = [int(r.value or b"") for r in found if r.partition == index]
        assert numbers == sorted(numbers), f"partition {index} is reordered"


def test_the_books_tell_each_kind_of_problem_from_the_others() -> None:
    """Lost, doubled, reordered, changed, moved; what nobody was told of is none."""
    problems = Problems()
    book = Book("t", 0, problems)
    for number in range(8):
        assert book.take_number() == number
        if number not in (5, 6):
            book.acknowledged(number, 10 + number)
    book.gave_up(6, "refused")
    assert problems.counts == {"given up": 1}
    reading = Reading(book, "reader")
    reading.saw(0, 10, is_right=True)
    reading.saw(2, 12, is_right=True)
    reading.saw(1, 13, is_right=True)
    assert problems.counts == {"given up": 1, "reordered": 1, "moved": 1}
    reading.saw(2, 14, is_right=True)
    assert problems.counts["doubled"] == 1 and problems.counts["moved"] == 2
    reading.saw(3, 13, is_right=False)
    assert problems.counts["reordered"] == 2 and problems.counts["changed"] == 1
    reading.saw(99, 15, is_right=True)
    assert problems.counts["changed"] == 2
    assert "lost" not in problems.counts
    reading.end()
    assert problems.counts["lost"] == 2, "4 and 7; 5 was not answered, 6 was given up"
    assert [text for text in problems.told if text.startswith("lost")] == [
        "lost: t-0, reader: number 4, acknowledged at 14",
        "lost: t-0, reader: number 7, acknowledged at 17",
    ]


def test_values_of_neighbours_differ_and_carry_their_number() -> None:
    assert value_of(7, 100).startswith(b"7 ") and len(value_of(7, 100)) == 100
    assert value_of(7, 100)[2:] != value_of(8, 100)[2:]


def test_a_pause_belongs_to_the_harm_in_which_it_began() -> None:
    """The last acknowledgement may lie a little before the harm that ended them."""
    pauses = [Pause("t-0", 5.0, 6.0), Pause("t-0", 9.9, 14.0), Pause("t-0", 15.0, 16.0), Pause("t-0", 19.0, 40.0)]
    assert longest_by_harm(pauses, [10.0, 20.0]) == [21.0, 0.0]
    assert longest_by_harm(pauses, [10.0, 19.4]) == [pytest.approx(4.1), 21.0]


def batch(base: int, content: bytes) -> bytes:
    return base.to_bytes(8, "big") + len(content).to_bytes(4, "big") + content


def test_replicas_that_differ_are_found_where_both_hold_the_offset(tmp_path: Path) -> None:
    """Segments begin where they like, and a log may have lost its beginning; room allocated ahead is no batch."""
    logs = {
        "one": {0: [batch(0, b"a"), batch(1, b"b")], 2: [batch(2, b"c")]},
        "two": {1: [batch(1, b"b"), batch(2, b"c") + bytes(64)]},
        "three": {0: [batch(0, b"a"), batch(1, b"X"), batch(2, b"c")]},
    }
    for name, segments in logs.items():
        for base, content in segments.items():
            path = tmp_path / name / "t-0" / f"{base:020d}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(content))
    assert differences([tmp_path / "one", tmp_path / "two"], "t-0") == (2, [])
    _, found = differences([tmp_path / "one", tmp_path / "three"], "t-0")
    assert found == ["t-0: one and three differ at offset 1"]
    with (tmp_path / "two" / "t-0" / f"{1:020d}.log").open("wb") as log:
        log.write(batch(1, b"b"))
    assert differences([tmp_path / "one", tmp_path / "two"], "t-0")[1] == ["t-0: last batch at 2 in one, at 1 in two"]


def test_a_stack_trace_is_named_by_its_last_line() -> None:
    log = 'INFO fine\nTraceback (most recent call last):\n  File "x", line 1, in f\n    g()\nKeyError: 7\nINFO on\n'
    assert stack_traces(log * 2) == ["KeyError: 7"]
    assert stack_traces("INFO fine\n") == []
