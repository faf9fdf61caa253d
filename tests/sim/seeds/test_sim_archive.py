"""A read-only broker beside three brokers among faults: what it serves is the log, and it writes nothing."""

from __future__ import annotations

import pytest

from tests.sim.several.archive import simulate

SEEDS = (1, 4, 7)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_read_only_broker_serves_the_log_and_nothing_else(seed: int) -> None:
    """Every promise, of what is read from it too; `python -m tests.sim --brokers 3 --archive --seed N` replays one."""
    outcome = simulate(seed, 3, 15.0)
    assert not outcome.findings, outcome.findings[:5]
    assert outcome.polls > 300
