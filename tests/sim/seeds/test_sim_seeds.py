"""Fifty seeds of the whole broker among faults, every promise checked; and the same seed is the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.sim.checks.rows import table
from tests.sim.nemesis import KEEPS, Kind
from tests.sim.run import FAULTY, simulate
from tests.sim.transactions.cast import MUST_HIT as IN_TRANSACTIONS
from tests.support.store.faulty_store import Fault

SEEDS = range(13, 63)
MORE_SEEDS = range(63, 123)  # as many of them as it takes until each kind of fault took effect
DURATION_S = 12.0

# Kinds that are counted by who has the fault, under another name.
ELSEWHERE = (Kind.OUTAGE, Kind.TOXIC, Kind.FULL, Kind.FSYNC, Kind.POWER_CUT, Kind.DENIED, Kind.READ_ONLY)
MUST_HIT = (
    *(kind.value for kind in Kind if kind not in ELSEWHERE),
    *(f"power cut, keeps {keep}" for keep in KEEPS),
    *(f"bucket {fault.value}" for fault in (*FAULTY, Fault.OUTAGE, Fault.DENIED, Fault.READ_ONLY)),
    "disk fault:full",
    "disk fault:sync",
    "net split",
    *("late, files begins", "late, files is heard", "late, flush begins", "late, store begins", "late, store is heard"),
    *("cleaning, pass finished", "cleaning, swap", "cleaning, tombstones dropped", "cleaning, map full"),
    *("cleaning, killed in a swap", "cleaning, power cut in a swap", "cleaning, start finished a swap"),
    *("cleaning, pass cut off by a role's end", "cleaning, pass cut off by a full disk"),
    *IN_TRANSACTIONS,
    *("acls, WRITE refused", "acls, READ refused"),
)


@pytest.mark.parametrize("seed", range(101, 107))
def test_a_seed_keeps_every_promise(seed: int) -> None:
    """A sample of the fifty below, for `make test`."""
    outcome = simulate(seed, DURATION_S)
    assert not outcome.findings, [str(finding)[:300] for finding in outcome.findings[:5]]
    assert outcome.acked and outcome.checked


@pytest.mark.timeout(600)
def test_fifty_seeds_keep_every_promise(capsys: pytest.CaptureFixture[str]) -> None:
    """No finding in any of them, and no kind of fault that never took effect."""
    hits: Counter[str] = Counter()
    failed = []
    simulated_s, acked, checked = 0.0, 0, 0
    for seed in (*SEEDS, *MORE_SEEDS):
        if seed in MORE_SEEDS and all(hits[name] for name in MUST_HIT):
            break
        outcome = simulate(seed, DURATION_S)
        hits.update(outcome.hits)
        simulated_s += outcome.simulated_s
        acked += outcome.acked
        checked += outcome.checked
        if outcome.findings:
            found = "\n    ".join(f"{finding.kind}: {finding.detail[:300]}" for finding in outcome.findings[:5])
            failed.append(f"make sim SEED={seed}\n    {found}")
    with capsys.disabled():
        print(
            f"\nseeds up to {seed}, {simulated_s:.0f} simulated s, {acked} records acknowledged, {checked} invariants"
        )
        print("  faults that took effect:\n    " + "\n    ".join(table(hits)))
    assert not failed, "\n".join(failed)
    never = [name for name in MUST_HIT if not hits[name]]
    assert not never, f"faults that never took effect in {len(SEEDS) + len(MORE_SEEDS)} seeds: {never}"


def test_the_same_seed_is_the_same_run_under_any_hash_seed() -> None:
    """Four seeds, twice, in processes that hash strings differently: equal digests of all that clients saw."""

    def digests(hash_seed: str) -> list[str]:
        command = [sys.executable, "-m", "tests.sim", "--seeds", "3..6", "--duration", "5"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
        found = [line.rpartition("digest ")[2] for line in done.stdout.splitlines() if "digest" in line]
        assert len(found) == 4, done.stdout + done.stderr
        return found

    assert digests("1") == digests("2")
