"""Two brokers among late work, elections, deletions, kills and refusals: some seeds of `python -m tests.sim.pair`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.checks.rows import table
from tests.sim.pair.play import simulate

SEEDS = range(1, 41)
MUST_HIT = (
    *("late, files begins", "late, files is heard", "late, flush begins", "late, flush is heard"),
    *("late, store begins", "late, store is heard", "late, peer"),
    *("kill -9", "clean stop", "power cut, keeps 0.0", "unclean election"),
    *("topic deleted and made again", "reassigned", "reassigned back", "disk fault:write"),
)


@pytest.mark.filterwarnings("ignore:coroutine")  # of the dead
@pytest.mark.timeout(300)
def test_forty_seeds_keep_every_promise(capsys: pytest.CaptureFixture[str]) -> None:
    """No finding in any of them, and no kind of fault that never took effect."""
    hits: Counter[str] = Counter()
    failed = []
    acked = 0
    for seed in SEEDS:
        outcome = simulate(seed)
        hits.update(outcome.hits)
        acked += outcome.acked
        if outcome.findings:
            failed.append("\n    ".join((f"python -m tests.sim.pair --seed {seed}", *outcome.findings[:5])))
    with capsys.disabled():
        print(f"\n{len(SEEDS)} seeds of two brokers, {acked} records acknowledged; faults that took effect:")
        print("    " + "\n    ".join(table(hits)))
    assert not failed, "\n".join(failed)
    assert acked > 300
    never = [name for name in MUST_HIT if not hits[name]]
    assert not never, f"faults that never took effect in {len(SEEDS)} seeds: {never}"


def test_the_same_seed_is_the_same_run() -> None:
    """Twice in one process: what was done, acknowledged and struck, and how long it took."""
    first, second = simulate(5), simulate(5)
    assert (first.told, first.hits, first.acked) == (second.told, second.hits, second.acked)
    assert first.simulated_s == second.simulated_s
