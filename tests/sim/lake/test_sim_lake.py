"""Who reads the bucket alone misses nothing and sees nothing twice while objects are replaced under it."""

from __future__ import annotations

import pytest

from tests.sim.lake.__main__ import one


@pytest.mark.parametrize("seed", [22])
def test_what_the_bucket_shows_is_what_the_log_holds(seed: int) -> None:
    outcome = one(seed, 30.0)
    assert not outcome.findings, outcome.findings
    assert outcome.hits["lake: moved"] and outcome.hits["lake: rows"]
