"""`python -m tests.sim.planted [name…]`: every planted bug must be caught (make planted).

Copies the tree, applies one patch at a time, and runs what should catch it: simulated seeds until one has a finding, or
the named test. Prints a table and the median of the seeds it took; exit 1 when fewer than 95 % are caught, or a patch
does not apply.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from tests.sim.planted import ROOT, DoesNotApply, PlantedBug, planted_bugs

SEEDS_MAX = 500
SEEDS_OF_SEVERAL_MAX = 300
SEEDS_AT_ONCE = 10
TIMEOUT_S = 600.0
CAUGHT_SHARE_MIN = 0.95
SOURCE = ("seams", "logformat", "hotstore", "coldstore", "tiering", "broker", "thermocline", "tests")


def catch(bug: PlantedBug, tree: str) -> tuple[str, str] | None:
    """(who caught it: a seed or a test, what it said), or None."""
    environment = {**os.environ, "PYTHONPATH": tree, "PYTHONDONTWRITEBYTECODE": "1"}
    simulation, *options = bug.caught_by.split()
    if simulation != "sim":
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", bug.caught_by]
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        return (bug.caught_by, "failed, as it should") if done.returncode == 1 else None
    for first in range(1, (SEEDS_OF_SEVERAL_MAX if options else SEEDS_MAX) + 1, SEEDS_AT_ONCE):
        last = first + SEEDS_AT_ONCE - 1
        command = [sys.executable, "-m", "tests.sim", *options, "--seeds", f"{first}..{last}", "--until-found"]
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        lines = done.stdout.splitlines()
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if line.endswith("FINDINGS") and _is_clean(line.split(":")[0].removeprefix("seed "), options):
                return line.split(":")[0], following.strip()[:110]
        if done.returncode and "FINDINGS" not in done.stdout:
            raise RuntimeError(f"seeds {first}..{last}: the simulation itself failed:\n{done.stderr[-4000:]}")
    return None


def _is_clean(seed: str, options: list[str]) -> bool:
    """Whether the seed has no finding without the patch: only then the patch is what was caught."""
    command = [sys.executable, "-m", "tests.sim", *options, "--seed", seed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        print(f"seed {seed} has findings without any patch")
    return done.returncode == 0


def main(names: list[str]) -> int:
    missed, stale, seeds = 0, 0, list[int]()
    bugs = [bug for bug in planted_bugs() if not names or any(name in bug.name for name in names)]
    print(f"{'bug':36} {'caught by':12} {'seconds':>8}  how")
    for bug in bugs:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="planted-") as tree:
            for folder in SOURCE:
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(os.path.join(ROOT, folder), os.path.join(tree, folder), ignore=ignored)
            shutil.copy(os.path.join(ROOT, "pyproject.toml"), tree)
            try:
                bug.apply(tree)
                found = catch(bug, tree)
            except DoesNotApply as why:
                found = None
                stale += 1
                print(why)
        missed += found is None
        who, how = found or ("MISSED", bug.breaks)
        if who.startswith("seed "):
            seeds.append(int(who.removeprefix("seed ")))
        print(f"{bug.name:36} {who:12} {time.monotonic() - began:8.1f}  {how}", flush=True)
    if seeds:
        median = statistics.median(seeds)
        print(f"{len(seeds)} by the simulation, after a median of {median:g} seeds, at most {max(seeds)}")
    caught = len(bugs) - missed
    print(f"{caught} of {len(bugs)} caught")
    return 1 if stale or caught < CAUGHT_SHARE_MIN * len(bugs) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
