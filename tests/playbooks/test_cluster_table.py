"""Every failure scenario of the design has a test that shows it, or a reason why it cannot happen."""

from __future__ import annotations

import pytest

from tests.playbooks.cases import LATER, SHOWN, scenarios, written

WRITTEN = dict.fromkeys(f"{number} {test.partition('::')[2]}" for number, test in written())


def test_no_scenario_is_without_a_test_or_a_reason() -> None:
    """One that is added to the page needs one, too."""
    known = scenarios()
    assert len(known) > 75
    assert sorted(known) == sorted({*SHOWN, *LATER}), "the page and this table name other scenarios"
    assert len(SHOWN) + len(LATER) == len(known), "each stands in one list"


@pytest.mark.parametrize("number", SHOWN, ids=lambda number: f"D{number}")
def test_the_test_that_the_table_names_is_there(number: int) -> None:
    """Under the name of its scenario: one that was renamed or taken away is missed here."""
    assert f"{number} {SHOWN[number]}" in WRITTEN, f"no {SHOWN[number]} anywhere in tests"
