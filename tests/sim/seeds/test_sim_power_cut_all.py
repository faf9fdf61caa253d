"""All machines of a cluster lose power at one moment, among all other faults: with `sync` nothing that was acknowledged
is missing, with `os` nothing that the bucket held, and no offset shows two records in either."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.checks.rows import table
from tests.sim.several.faults.power import NAME, simulate

BROKERS = 3
SEEDS = range(1, 41)
DURATION_S = 12.0


@pytest.mark.timeout(600)
def test_forty_seeds_live_through_having_no_power_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    """No finding in any of them; cuts of both modes in many."""
    hits: Counter[str] = Counter()
    failed, acked, checked = [], 0, 0
    for seed in SEEDS:
        outcome = simulate(seed, BROKERS, DURATION_S)
        hits.update(outcome.hits)
        acked += outcome.acked
        checked += outcome.checked
        if outcome.findings:
            found = "\n    ".join(f"{finding.kind}: {finding.detail[:300]}" for finding in outcome.findings[:5])
            replay = f"python -m tests.sim --brokers {BROKERS} --power-cut-all --duration {DURATION_S:g} --seed {seed}"
            failed.append(f"{replay}\n    {found}")
    with capsys.disabled():
        print(f"\n{len(SEEDS)} seeds of {BROKERS} brokers, {acked} records acknowledged, {checked} invariants")
        print("  faults that took effect:\n    " + "\n    ".join(table(hits)))
    assert not failed, "\n".join(failed)
    assert hits[f"{NAME}, sync"] >= 20 and hits[f"{NAME}, os"] >= 10, hits
    assert acked > 5000 and checked > 10_000
