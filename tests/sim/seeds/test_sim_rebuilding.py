"""A cluster whose `cluster.json` is lost under load goes on by one made anew from its manifests. No offset shows two
records, all that the bucket held is read again, every partition serves; nothing is lost after clean stops."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.checks.rows import table
from tests.sim.several.rebuilding import Stopped, replay

SEEDS = (1, 3, 4)


@pytest.mark.timeout(300)
def test_lost_roots_are_rebuilt(capsys: pytest.CaptureFixture[str]) -> None:
    """Lost and damaged, after clean stops and after kills; no finding, and the operator's last word is taken."""
    hits: Counter[str] = Counter()
    failed = []
    for seed in SEEDS:
        outcome = replay(seed)
        hits.update(outcome.hits)
        if outcome.findings:
            found = "\n    ".join(f"{finding.kind}: {finding.detail[:400]}" for finding in outcome.findings[:5])
            failed.append(f"tests.sim.several.rebuilding.replay({seed})\n    {found}")
    with capsys.disabled():
        print(f"\n{len(SEEDS)} lost roots\n    " + "\n    ".join(table(hits)))
    assert not failed, "\n".join(failed)
    assert hits["rebuilt and done"] == len(SEEDS)
    assert all(hits[f"rebuilt, all {stopped}"] for stopped in Stopped)
    assert hits["cluster.json lost"] and hits["cluster.json damaged"]
