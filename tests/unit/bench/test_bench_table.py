"""The table of bench/RESULTS.md: medians against floors, and what a partial run may touch."""

from __future__ import annotations

import pytest

from bench.table import SHOWN, Floor, Measured, Row, Verdict, merge

NAMES = ["first", "second", "third"]
PYTHON = "Python 3.11.2"


def row(name: str, peer: list[float], ours: list[float], floor: Floor, cpu: tuple[float, float] = (9.0, 3.0)) -> Row:
    return Row(
        name, "work", "MB/s", floor, 0.33, [Measured(v, cpu[0]) for v in peer], [Measured(v, cpu[1]) for v in ours]
    )


@pytest.mark.parametrize(
    ("floor", "ours", "verdict"),
    [
        (Floor(1.3), [154, 160, 155], Verdict.YES),
        (Floor(1.3), [132, 160, 155], Verdict.UNCLEAR),  # all meet it, but they differ by more than 0.25
        (Floor(1.3), [120, 160, 155], Verdict.UNCLEAR),
        (Floor(1.3), [120, 140, 129], Verdict.NO),
        (Floor(0.3, lower_is_better=True), [19, 20, 21], Verdict.YES),
        (Floor(0.3, lower_is_better=True), [10, 20, 29], Verdict.UNCLEAR),
        (Floor(0.3, lower_is_better=True), [10, 31, 32], Verdict.NO),
        (Floor(0.001, 40, lower_is_better=True), [20, 21, 30], Verdict.YES),  # the value alone may meet it
        (Floor(0.001, 40, lower_is_better=True), [20, 31, 35], Verdict.UNCLEAR),
        (Floor(0.5, 40, lower_is_better=True), [30, 31, 45], Verdict.YES),  # the ratio is clear, the value is not
        (Floor(0.001, 40, lower_is_better=True), [10, 41, 45], Verdict.NO),
    ],
)
def test_a_floor_is_held_against_the_medians_and_the_spread(floor: Floor, ours: list[float], verdict: Verdict) -> None:
    """In the direction that is better; met by less than the rounds differ is not "yes", missed stays missed."""
    found = row("first", [100, 100, 100], ours, floor, (9.0, 1.0))
    assert found.verdict() is verdict
    assert f"| {SHOWN[verdict]} |" in found.line()


@pytest.mark.parametrize(
    ("cpu", "verdict"),
    [
        ([2.0, 2.1, 2.2], Verdict.YES),
        ([1.0, 2.1, 2.2], Verdict.UNCLEAR),
        ([1.0, 3.1, 3.2], Verdict.NO),
    ],
)
def test_cpu_is_a_floor_of_its_own(cpu: list[float], verdict: Verdict) -> None:
    """Fast enough but too dear is not met, and perhaps too dear is not clear: at most 0.33 of 9 s a GB."""
    found = row("first", [100, 100, 100], [200, 200, 200], Floor(1.3))
    found.ours = [Measured(200, each) for each in cpu]
    assert found.verdict() is verdict


def test_a_bad_floor_outweighs_a_good_one() -> None:
    """A row is as good as the worse of its two floors."""
    found = row("first", [100, 100, 100], [120, 120, 120], Floor(1.3), (9.0, 1.0))
    assert found.verdict() is Verdict.NO


def test_rounds_that_differ_are_seen() -> None:
    """Of both sides the one whose rounds differ more: it asks for two rounds more."""
    assert row("first", [100, 50, 100], [100, 60, 110], Floor(1.0)).spread == pytest.approx(1.0)


def test_no_figure_meets_no_floor() -> None:
    """A row without a peer has only its value to show."""
    assert row("first", [], [200], Floor(1.3)).verdict() is Verdict.NO
    assert row("first", [], [], Floor(1.3)).verdict() is Verdict.NO
    one = Row("first", "", "requests", Floor(value=40, lower_is_better=True), None, [], [Measured(36)])
    assert one.verdict() is Verdict.YES


def test_the_round_to_warm_up_does_not_count() -> None:
    """What was forgotten is in no median."""
    found = row("first", [1], [100], Floor(1.0))
    found.forget()
    found.peer.append(Measured(10))
    found.ours.append(Measured(20))
    assert found.ratio == 2.0


def test_a_line_names_the_interpreter() -> None:
    """Rows of one page may have been measured on several builds of Python."""
    found = row("first", [1], [2], Floor(1.0))
    found.notes, found.python = "a note", "Python 3.11.7 without PGO, without LTO"
    assert found.line().endswith("| a note; Python 3.11.7 without PGO, without LTO |")


def test_a_partial_run_leaves_the_other_lines_and_sections() -> None:
    """Lines stand in the table's order, whoever was measured last; parts of a benchmark stand with it."""
    page = merge("", [row("third", [1], [2], Floor(1)), row("second/b", [1], [3], Floor(1))], NAMES, 3, PYTHON)
    page += "\nBelow their floors: a note.\n\n## History\n\n| other | table |\n"
    page = merge(page, [row("first", [1], [4], Floor(1)), row("third", [1], [5], Floor(1))], NAMES, 3, PYTHON)
    lines = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert [(cells[0], cells[3]) for cells in lines[1:4]] == [
        ("| first", "4.00"),
        ("| second/b", "3.00"),
        ("| third", "5.00"),
    ]
    assert page.endswith("\nBelow their floors: a note.\n\n## History\n\n| other | table |\n")


def test_a_row_that_no_longer_exists_goes() -> None:
    """The table holds what the program can measure."""
    page = merge("", [row("gone", [1], [2], Floor(1))], ["gone"], 3, PYTHON)
    assert "| gone |" not in merge(page, [row("first", [1], [2], Floor(1))], NAMES, 3, PYTHON)
