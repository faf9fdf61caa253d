"""The runs behind docs/RELIABILITY.md: what to start, and which figures to take from what it printed.

Owns one `Step` a result. Always true: a figure comes out of the run's own output (its printed lines, or pytest's XML),
and a step whose run failed is recorded with the failure, not left out. Must not know the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.reliability.results import ROOT, load, record

Figures = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """A finished run: its exit code, its output, and pytest's counts where it was pytest."""

    code: int
    text: str
    tests: Mapping[str, int]
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Step:
    """`quick` and `full` are arguments of `python -m` (None: not in that mode); `take` finds the figures."""

    name: str
    quick: tuple[str, ...] | None
    full: tuple[str, ...]
    take: Callable[[Outcome], Figures]
    timeout_s: float = 7200.0


def run_step(step: Step, full: bool) -> bool:
    """Run it and record what came out; whether it succeeded. A step that the mode leaves out keeps its last result,
    and what a full run recorded is not replaced by a quick one's."""
    arguments = step.full if full else step.quick
    if arguments is None:
        return True
    outcome = _run(arguments, step.timeout_s)
    command = "python -m " + " ".join(arguments)
    fuller = not full and (load(step.name) or {}).get("command") == "python -m " + " ".join(step.full)
    if step.name not in RECORD_THEMSELVES and (not fuller or step.quick == step.full):
        record(step.name, command, {"passed": outcome.code == 0, **outcome.tests, **step.take(outcome)})
    if outcome.code != 0:
        print(f"{step.name}: {command} ended with {outcome.code}:\n{outcome.text[-3000:]}")
    return outcome.code == 0


def _run(arguments: Sequence[str], timeout_s: float) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="reliability-") as work:
        report = os.path.join(work, "junit.xml")
        is_pytest = arguments[0] == "pytest"
        more = ("-q", "-s", "-p", "no:cacheprovider", f"--junitxml={report}") if is_pytest else ()
        done = subprocess.run(
            [sys.executable, "-m", *arguments, *more],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        tests, names = _counted(report) if is_pytest and os.path.exists(report) else ({}, [])
    return Outcome(done.returncode, done.stdout, tests, names)


def _counted(report: str) -> tuple[dict[str, int], list[str]]:
    suite = ET.parse(report).getroot()
    cases = list(suite.iter("testcase"))
    skipped = sum(case.find("skipped") is not None for case in cases)
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    counts = {"tests": len(cases), "tests_passed": len(cases) - skipped - failed, "tests_skipped": skipped}
    return counts, [case.get("name") or "" for case in cases if case.find("skipped") is None]


# ── what is taken from each ──────────────────────────────────────────────────────────────────────────────────────────
def simulation(outcome: Outcome) -> Figures:
    seeds = re.findall(
        r"^seed (\d+): (\d+) simulated s .*?, (\d+) acked, (\d+) polls, (\d+) callbacks", outcome.text, re.M
    )
    total = re.search(r"^(\d+) simulated s in ([\d.]+) s; (\d+) records acknowledged", outcome.text, re.M)
    rows = re.findall(r"^ {2,}(\d+)  ((?:[A-Z]\d|T1')\S*(?: \S+)*?)(?: {2,}(.*))?$", outcome.text, re.M)
    return {
        "seeds": len(seeds),
        "seeds_with_findings": len(re.findall(r" FINDINGS$", outcome.text, re.M)),
        "simulated_hours": round(int(total[1]) / 3600, 2) if total else 0,
        "acked": int(total[3]) if total else 0,
        "polls": sum(int(polls) for *_, polls, _ in seeds),
        "callbacks": sum(int(callbacks) for *_, callbacks in seeds),
        "faults": [{"row": row.strip(), "hits": int(hits), "parts": parts or ""} for hits, row, parts in rows],
    }


def planted(outcome: Outcome) -> Figures:
    caught = re.search(r"^(\d+) of (\d+) caught", outcome.text, re.M)
    median = re.search(r"^(\d+) by the simulation, after a median of ([\d.]+) seeds, at most (\d+)", outcome.text, re.M)
    bugs = re.findall(r"^(\d\d-\S+) +(seed \d+|MISSED|tests/\S+)", outcome.text, re.M)
    return {
        "caught": int(caught[1]) if caught else 0,
        "bugs": int(caught[2]) if caught else 0,
        "by_simulation": int(median[1]) if median else 0,
        "seeds_median": float(median[2]) if median else None,
        "seeds_most": int(median[3]) if median else None,
        "rows": [{"bug": bug, "by": by} for bug, by in bugs],
    }


def _without_samples(rows: list[dict[str, Any]], kind: str, count: str) -> list[dict[str, Any]]:
    """A whole run plays the sample of `make test` too, which is part of it: of each kind the larger row counts."""
    largest: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row[count] >= largest.get(row[kind], row)[count]:
            largest[row[kind]] = row
    return list(largest.values())


def power_cuts(outcome: Outcome) -> Figures:
    cuts = re.findall(r"^(\w+): (\d+) restarts after power cuts, of (\d+) effects x (\d+) kept", outcome.text, re.M)
    rows = [{"flush": f, "restarts": int(r), "effects": int(e), "kept_subsets": int(k)} for f, r, e, k in cuts]
    rows = _without_samples(rows, "flush", "restarts")
    return {"rows": rows, "restarts": sum(row["restarts"] for row in rows)}


def bit_flips(outcome: Outcome) -> Figures:
    pattern = (
        r"^\.?  (\S.*?) +(\d+) bits: +(\d+) refused, +(\d+) repaired, +(\d+) harmless, (\d+) wrong(?:; (\d+) of (\d+))?"
    )
    rows = []
    for kind, bits, refused, repaired, harmless, wrong, known, _ in re.findall(pattern, outcome.text, re.M):
        counts = {"bits": bits, "refused": refused, "repaired": repaired, "harmless": harmless, "wrong": wrong}
        rows.append(
            {"kind": kind, **{name: int(n) for name, n in counts.items()}, "known_wrong_offset": int(known or 0)}
        )
    rows = _without_samples(rows, "kind", "bits")
    names = ("bits", "refused", "repaired", "harmless", "wrong", "known_wrong_offset")
    return {"rows": rows, **{name: sum(row[name] for row in rows) for name in names}}


def crash_points(outcome: Outcome) -> Figures:
    from seams.crash_points import POINTS

    hit = {point for point in POINTS if any(point in name for name in outcome.names)}
    return {"points": len(POINTS), "points_killed_at": len(hit)}


def peers(outcome: Outcome) -> Figures:
    rows = sorted({int(number) for name in outcome.names for number in re.findall(r"test_peer_t(\d+)_", name)})
    return {"rows_covered": rows}


def only_counts(_: Outcome) -> Figures:
    return {}


def _files_with(text: str) -> list[str]:
    """Test files that contain `text`, below tests/, relative to the root."""
    found = []
    for folder, _, names in os.walk(os.path.join(ROOT, "tests")):
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.startswith("test_") and name.endswith(".py"):
                with open(path, encoding="utf-8") as file:
                    if text in file.read():
                        found.append(os.path.relpath(path, ROOT))
    return sorted(found)


RECORD_THEMSELVES = frozenset({"fuzz", "fuzz_planted", "soak"})

STEPS = (
    Step("simulation", ("tests.sim", "--seeds", "1..25"), ("tests.sim", "--seeds", "1..1000"), simulation),
    Step("determinism", None, ("pytest", "tests/sim/seeds/test_sim_seeds.py", "-k", "hash_seed"), only_counts),
    Step("planted", None, ("tests.sim.planted",), planted, timeout_s=20_000),
    Step(
        "power_cuts",
        ("pytest", "tests/sim/scripted/test_sim_power_cut.py", "-m", "not slow"),
        ("pytest", "tests/sim/scripted/test_sim_power_cut.py"),
        power_cuts,
    ),
    Step(
        "every_effect",
        ("pytest", "tests/unit/hotstore/recovery/test_hotstore_every_effect.py",
         "tests/unit/hotstore/recovery/test_hotstore_crash_machine.py"),
        ("pytest", "tests/unit/hotstore/recovery/test_hotstore_every_effect.py",
         "tests/unit/hotstore/recovery/test_hotstore_crash_machine.py"),
        only_counts,
    ),
    Step(
        "bit_flips",
        ("pytest", "tests/unit/hotstore/recovery/test_bit_flips_hot.py",
         "tests/unit/coldstore/test_bit_flips_cold.py", "-m", "not slow"),
        ("pytest", "tests/unit/hotstore/recovery/test_bit_flips_hot.py", "tests/unit/coldstore/test_bit_flips_cold.py"),
        bit_flips,
    ),
    Step("crash_points", None, ("pytest", "tests/crash"), crash_points),
    Step(
        "peers",
        ("pytest", *_files_with("def test_peer_t"), "-k", "test_peer_t"),
        ("pytest", *_files_with("def test_peer_t"), "-k", "test_peer_t"),
        peers,
    ),
    Step(
        "store_faults",
        None,
        ("pytest", "tests/integration", "-k", "test_store_faults"),
        only_counts,
    ),
    Step(
        "hostile",
        ("pytest", "tests/unit/broker/wire/test_wire_hostile.py",
         "tests/unit/pipeline/decode/test_pipeline_decode_hostile.py"),
        (
            "pytest",
            "tests/unit/broker/wire/test_wire_hostile.py",
            "tests/unit/pipeline/decode/test_pipeline_decode_hostile.py",
            "tests/integration/broker/test_hostile_frames.py",
        ),
        only_counts,
    ),
    Step("clients", None, ("pytest", "tests/integration/clients/test_client_matrix.py"), only_counts),
    Step("conformance", ("pytest", "tests/unit/coldstore/stores/test_stores_conformance.py"),
         ("pytest", "tests/unit/coldstore/stores/test_stores_conformance.py",
          "tests/integration/store/test_stores_s3_conformance.py"),
         only_counts),
    Step("fuzz_planted", ("tests.fuzz", "--planted"), ("tests.fuzz", "--planted"), only_counts),
    Step("fuzz", None, ("tests.fuzz",), only_counts, timeout_s=20_000),
    Step("soak", None, ("tests.soak", "--minutes", "30"), only_counts),
)  # fmt: skip
