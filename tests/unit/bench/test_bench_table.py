"""The table of bench/RESULTS.md: medians against floors, and what a partial run may touch."""

from __future__ import annotations

import pytest

from bench.table import Floor, Measured, Row, merge

NAMES = ["first", "second", "third"]


def row(name: str, peer: list[float], ours: list[float], floor: Floor, cpu: tuple[float, float] = (9.0, 3.0)) -> Row:
    return Row(
        name, "work", "MB/s", floor, 0.33, [Measured(v, cpu[0]) for v in peer], [Measured(v, cpu[1]) for v in ours]
    )


@pytest.mark.parametrize(
    ("floor", "ours", "met"),
    [
        (Floor(1.3), [134, 140, 135], True),
        (Floor(1.3), [120, 140, 129], False),
        (Floor(0.3, 2.0, lower_is_better=True), [1.0, 1.9, 1.8], True),
        (Floor(0.3, 2.0, lower_is_better=True), [29, 30, 30], True),
        (Floor(0.3, 2.0, lower_is_better=True), [30, 31, 32], False),
    ],
)
def test_a_floor_is_held_against_the_medians(floor: Floor, ours: list[float], met: bool) -> None:
    """A ratio of medians, or a value of ours, in the direction that is better."""
    found = row("first", [99, 100, 101], ours, floor, (9.0, 2.9))
    assert found.met is met
    assert ("| yes |" in found.line()) is met


def test_rounds_that_disagree_about_a_floor_are_unclear() -> None:
    """The medians meet it, one round does not: nobody may call that met; a floor that is missed stays missed."""
    assert row("first", [100, 100, 100], [140, 135, 120], Floor(1.3), (9.0, 2.9)).verdict() == "unclear"
    assert row("first", [100, 100, 100], [140, 125, 120], Floor(1.3), (9.0, 2.9)).verdict() == "**no**"
    assert row("first", [100, 50, 100], [100, 60, 110], Floor(1.0)).spread == pytest.approx(1.0)


def test_cpu_is_a_floor_of_its_own() -> None:
    """Fast enough but too dear is not met."""
    assert not row("first", [100], [200], Floor(1.3), (9.0, 3.1)).met


def test_no_figure_meets_no_floor() -> None:
    """A row without a peer has only its value to show."""
    assert not row("first", [], [200], Floor(1.3)).met
    assert Row("first", "", "requests", Floor(value=40, lower_is_better=True), None, [], [Measured(36)]).met


def test_a_partial_run_leaves_the_other_lines_and_sections() -> None:
    """Lines stand in the table's order, whoever was measured last; parts of a benchmark stand with it."""
    page = merge("", [row("third", [1], [2], Floor(1)), row("second/b", [1], [3], Floor(1))], NAMES, 3)
    page += "\nBelow their floors: a note.\n\n## History\n\n| other | table |\n"
    page = merge(page, [row("first", [1], [4], Floor(1)), row("third", [1], [5], Floor(1))], NAMES, 3)
    lines = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert [(cells[0], cells[3]) for cells in lines[1:4]] == [
        ("| first", "4.00"),
        ("| second/b", "3.00"),
        ("| third", "5.00"),
    ]
    assert page.endswith("\nBelow their floors: a note.\n\n## History\n\n| other | table |\n")


def test_a_row_that_no_longer_exists_goes() -> None:
    """The table holds what the program can measure."""
    page = merge("", [row("gone", [1], [2], Floor(1))], ["gone"], 3)
    assert "| gone |" not in merge(page, [row("first", [1], [2], Floor(1))], NAMES, 3)
