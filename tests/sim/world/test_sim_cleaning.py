"""Which refused resend the simulation excuses: of a batch that compaction removed before its log was fetched."""

from __future__ import annotations

import pytest

from tests.sim.world.cleaning import Sent, was_fetched_cleaned

BATCH: Sent = (9, 0, 20)
LATER: Sent = (9, 0, 25)


@pytest.mark.parametrize(
    ("held", "cleaned", "is_excused"),
    [
        pytest.param({LATER}, {"leader"}, True, id="cleaned in the log that it was fetched from"),
        pytest.param({LATER}, set(), False, id="no cleaner removed it"),
        pytest.param({LATER}, {"leader", "own"}, False, id="it was here: the producers' files know it"),
        pytest.param({BATCH, LATER}, {"leader"}, False, id="it is here"),
        pytest.param({(9, 0, 16)}, {"leader"}, False, id="nothing later of it is here"),
        pytest.param({(9, 1, 25), (8, 0, 25)}, {"leader"}, False, id="a later one of another epoch or producer"),
    ],
)
def test_a_resend_is_excused_where_it_was_fetched_cleaned(held: set[Sent], cleaned: set[str], is_excused: bool) -> None:
    assert was_fetched_cleaned(BATCH, "own", held, {BATCH: cleaned}) is is_excused
