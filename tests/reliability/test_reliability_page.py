"""The page says what was recorded, and the figures are found in what the runs print today."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.reliability import page, steps
from tests.reliability.results import FOLDER, ROOT
from tests.reliability.steps import STEPS, Outcome, bit_flips, planted, power_cuts, simulation
from tests.sim.checks.rows import table


def outcome(*lines: str) -> Outcome:
    return Outcome(0, "\n".join(lines) + "\n", {})


def test_the_page_is_what_the_results_say(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody typed into it: written again from docs/reliability it is the same, byte for byte."""
    if not os.path.exists(page.PAGE):
        pytest.skip("docs/RELIABILITY.md was never written")
    with open(page.PAGE, encoding="utf-8") as file:
        kept = file.read()
    monkeypatch.setattr(page, "PAGE", f"{tmp_path}/page.md")
    page.write_page()
    with open(f"{tmp_path}/page.md", encoding="utf-8") as file:
        assert file.read() == kept, "run make reliability RENDER=1"


def test_the_simulations_lines_are_read() -> None:
    """As `tests.sim` prints them; the rows come from its own table."""
    hits = Counter({"kill -9": 3, "bucket lost put": 2, "wall clock jump": 1})
    found = simulation(
        outcome(
            "seed 1: 30 simulated s in 0.50 s, 1000 acked, 50 polls, 9000 callbacks, digest ab",
            "seed 2: 30 simulated s in 0.50 s, 500 acked, 20 polls, 1000 callbacks, digest cd FINDINGS",
            "  lost-write: ...",
            "7200 simulated s in 1.0 s; 1500 records acknowledged; faults that took effect:",
            *(f"  {line}" for line in table(hits)),
            "seeds with findings: [2]",
        )
    )
    assert (found["seeds"], found["seeds_with_findings"], found["acked"], found["simulated_hours"]) == (2, 1, 1500, 2.0)
    assert (found["polls"], found["callbacks"]) == (70, 10_000)
    rows = {row["row"]: row["hits"] for row in found["faults"]}
    assert rows["C1 kill"] == 3 and rows["T1' clocks"] == 1 and rows["O2 lost answers"] == 2
    assert rows["N1-N3 network"] == 0, "a row without a hit stays: it is a hole"


def test_planted_power_cut_and_flip_lines_are_read() -> None:
    """As `tests.sim.planted`, test_sim_power_cut and test_bit_flips_* print them."""
    bugs = planted(
        outcome(
            f"{'01-ack-before-fsync':36} {'seed 3':12} {1.0:8.1f}  lost-write",
            f"{'05-x':36} {'MISSED':12} {1.0:8.1f}  what it breaks",
            "20 by the simulation, after a median of 4.5 seeds, at most 81",
            "29 of 30 caught",
        )
    )
    assert (bugs["caught"], bugs["bugs"], bugs["seeds_median"], bugs["seeds_most"]) == (29, 30, 4.5, 81)
    assert [row["by"] for row in bugs["rows"]] == ["seed 3", "MISSED"]
    assert power_cuts(outcome("sync: 120 restarts after power cuts, of 40 effects x 3 kept subsets"))["restarts"] == 120
    flips = bit_flips(
        outcome(
            f"  {'segment, killed':44} {800:7} bits: {700:6} refused, {50:6} repaired, {49:6} harmless, 1 wrong"
            "; 64 of 128 bits of inner base offsets",
            f".  {'root':44} {80:7} bits: {80:6} refused,      0 repaired, {0:6} harmless, 0 wrong",
        )
    )
    assert (flips["bits"], flips["wrong"], flips["refused"], flips["known_wrong_offset"]) == (880, 1, 780, 64)


def test_a_sample_is_not_counted_beside_the_whole_it_is_part_of() -> None:
    """Found in review: `make test`'s sampled runs stood on the page, and in the sums, beside the full ones."""
    line = "{:7} bits: {:6} refused,      0 repaired,      0 harmless, 0 wrong"
    flips = bit_flips(outcome("  page 0  " + line.format(10, 10), "  page 0  " + line.format(70, 70)))
    assert flips["bits"] == 70 and len(flips["rows"]) == 1
    cuts = "{}: {} restarts after power cuts, of {} effects x 2 kept subsets"
    seen = [cuts.format("sync", 20, 10), cuts.format("sync", 200, 100), cuts.format("os", 30, 15)]
    assert power_cuts(outcome(*seen))["restarts"] == 230


def test_every_step_names_what_exists() -> None:
    """Files and modules of the commands are there."""
    for step in STEPS:
        for argument in (*step.full, *(step.quick or ())):
            if argument.startswith("tests/"):
                assert os.path.exists(os.path.join(ROOT, argument)), argument
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert {step.name for step in STEPS} >= steps.RECORD_THEMSELVES and FOLDER.startswith(ROOT)
