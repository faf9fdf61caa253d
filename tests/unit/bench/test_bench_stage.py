"""Rounds: who goes first, what does not count, and when three are too few."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain, cycle
from pathlib import Path

import pytest

from bench.interpreter import interpreter
from bench.stage import Stage
from bench.table import Floor, Measured, Row
from seams.interpreter import this_build


def played(tmp_path: Path, rounds: int, peer: Iterator[float], ours: Iterator[float]) -> tuple[Row, str]:
    """A row of given figures, and the order of its turns (k: the peer's, t: ours)."""
    order: list[str] = []

    def turn(name: str, figures: Iterator[float]) -> Measured:
        order.append(name)
        return Measured(next(figures))

    row = Row("row", "", "MB/s", Floor(1.0))
    with ExitStack() as sides:
        Stage(tmp_path, rounds, sides).compare(row, lambda: turn("k", peer), lambda: turn("t", ours))
    return row, "".join(order)


def test_sides_take_turns_in_alternating_order_after_a_round_that_does_not_count(tmp_path: Path) -> None:
    """Until 2026-11-22 ours always ran after Kafka, and a JVM that was cold for this work counted."""
    row, order = played(tmp_path, 3, chain([1.0], cycle([100.0])), chain([1.0], cycle([200.0])))
    assert order == "kt" + "kt" + "tk" + "kt"
    assert row.rounds == [(2.0, 200.0)] * 3


def test_rounds_that_differ_ask_for_two_more(tmp_path: Path) -> None:
    """By more than 15 %, of either side; a quick look stays quick."""
    row, order = played(tmp_path, 3, cycle([100.0]), cycle([100.0, 110.0, 120.0]))
    assert len(row.ours) == 5 and len(order) == 12
    row, _ = played(tmp_path, 3, cycle([100.0]), cycle([100.0, 105.0, 110.0]))
    assert len(row.ours) == 3
    row, _ = played(tmp_path, 1, cycle([100.0]), cycle([100.0, 200.0]))
    assert len(row.ours) == 1


@pytest.mark.not_fast
def test_brokers_run_on_this_interpreter_unless_told_otherwise() -> None:
    """And it is named as the broker names it."""
    assert interpreter(None) == (sys.executable, str(this_build()))
