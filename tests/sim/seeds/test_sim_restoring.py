"""A cluster whose machines are all lost under load goes on from its bucket: on the same ids and on others, on fewer
brokers and on more. No offset shows two records, all that the bucket held is read again, every partition serves."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.checks.rows import table
from tests.sim.several.restoring import Others, replay

SEEDS = (1, 2, 3, 12, 14, 15, 19)


@pytest.mark.timeout(300)
def test_lost_clusters_are_restored(capsys: pytest.CaptureFixture[str]) -> None:
    """Every kind of who is there afterwards; no finding. Seeds 2 and 14: a partition was on its way to a broker that is
    gone; the restore waited for it for ever. Seed 12: a partition was moved while its unclean start was on
    its way, and its leader said that it is done on top of the row before, for ever."""
    hits: Counter[str] = Counter()
    failed, acked = [], 0
    for seed in SEEDS:
        outcome = replay(seed)
        hits.update(outcome.hits)
        acked += outcome.acked
        if outcome.findings:
            found = "\n    ".join(f"{finding.kind}: {finding.detail[:400]}" for finding in outcome.findings[:5])
            failed.append(f"tests.sim.several.restoring.replay({seed})\n    {found}")
    with capsys.disabled():
        print(f"\n{len(SEEDS)} lost clusters, {acked} records acknowledged\n    " + "\n    ".join(table(hits)))
    assert not failed, "\n".join(failed)
    assert all(hits[f"restored by {others}"] for others in Others)
    assert hits["lost on the move"]
