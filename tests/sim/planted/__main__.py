"""`python -m tests.sim.planted [name…] [--results FILE]`: every planted bug must be caught (make planted).

Copies the tree, applies one patch at a time, and runs what should catch it: simulated seeds until one has a finding, or
the named test. What caught it has to find nothing without the patch. Prints a table and the median of the seeds it
took; exit 1 when fewer than 95 % are caught, or a patch does not apply. Always true: what counts against a catch is the
processor time of what ran, so that the answer is the same on a machine that does other work; wall time ends only what
hangs. With `--results` each answer is written down, and those that are there are not asked again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from tests.sim.planted import ROOT, DoesNotApply, PlantedBug, planted_bugs

SEEDS_MAX = 500
SEEDS_OF_SEVERAL_MAX = 300
SEEDS_AT_ONCE = 10
CPU_S = 600
MEMORY_MAX = 8 << 30  # some bugs have a loop note things without end
HANGS_S = 3600.0
"""A run that takes no processor time for long; ten seeds take a minute of it at most, and ten times that at load."""
TEST_HANGS_S = 900  # one test, by pytest-timeout: 120 s of it as a rule
CAUGHT_SHARE_MIN = 0.95
SOURCE = ("seams", "logformat", "hotstore", "coldstore", "tiering", "broker", "thermocline", "tests")

Caught = tuple[str, str]
"""Who caught it (a seed or a test), and what it said."""


class BrokenRun(Exception):
    """What ran ended without an answer."""


def catch(bug: PlantedBug, tree: str) -> Caught | None:
    """None: nobody did. Raises BrokenRun."""
    simulation, *options = bug.caught_by.split()
    if simulation != "sim":
        return _by_test(bug.caught_by, tree)
    for first in range(1, (SEEDS_OF_SEVERAL_MAX if options else SEEDS_MAX) + 1, SEEDS_AT_ONCE):
        last = first + SEEDS_AT_ONCE - 1
        done = _run(["-m", "tests.sim", *options, "--seeds", f"{first}..{last}", "--until-found"], tree)
        lines = done.stdout.splitlines()
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            seed = line.split(":")[0].removeprefix("seed ")
            if line.endswith("FINDINGS") and _is_clean(seed, ["-m", "tests.sim", *options, "--seed", seed]):
                return f"seed {seed}", following.strip()[:110]
        if done.returncode and "FINDINGS" not in done.stdout:
            raise BrokenRun(f"{bug.name}, seeds {first}..{last}: the simulation itself failed:\n{done.stderr[-4000:]}")
    return None


def _by_test(test: str, tree: str) -> Caught | None:
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o", f"timeout={TEST_HANGS_S}"]
    done = _run([*command, test], tree)
    # A name may have spaces, in the words of its case.
    failed = [
        line.removeprefix("FAILED ").split(" - ")[0] for line in done.stdout.splitlines() if line.startswith("FAILED ")
    ]
    if done.returncode != 1 or not failed:
        return None
    return (
        (failed[0].rpartition("/")[2], "failed, as it should") if _is_clean(failed[0], [*command, failed[0]]) else None
    )


def _is_clean(name: str, arguments: Sequence[str]) -> bool:
    """Whether it finds nothing without the patch: only then the patch is what was caught."""
    is_clean = _run(arguments, ROOT).returncode == 0
    if not is_clean:
        print(f"{name} has findings without any patch")
    return is_clean


def _run(arguments: Sequence[str], tree: str) -> subprocess.CompletedProcess[str]:
    """In a tree, with so much processor time."""
    environment = {**os.environ, "PYTHONPATH": tree, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
        preexec_fn=_limit,
    )


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, MEMORY_MAX))


def _plant(bug: PlantedBug) -> Caught | None:
    """In a copy of the tree. Raises DoesNotApply, BrokenRun, subprocess.TimeoutExpired."""
    with tempfile.TemporaryDirectory(prefix="planted-") as tree:
        for folder in SOURCE:  # with compiled files: they are valid as long as their source is not patched
            shutil.copytree(os.path.join(ROOT, folder), os.path.join(tree, folder))
        shutil.copy(os.path.join(ROOT, "pyproject.toml"), tree)
        bug.apply(tree)
        return catch(bug, tree)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.planted", description=__doc__)
    parser.add_argument("names", nargs="*", help="those whose names contain one of these; none: all")
    parser.add_argument("--results", help="a file of answers: what it has is not asked again, what is new is added")
    arguments = parser.parse_args()
    known = _known(arguments.results)
    stale, answers = 0, dict[str, Caught | None]()
    names = arguments.names
    bugs = [bug for bug in planted_bugs() if not names or any(name in bug.name for name in names)]
    print(f"{'bug':36} {'caught by':12} {'seconds':>8}  how")
    for bug in bugs:
        began = time.monotonic()
        if bug.name in known:
            answers[bug.name] = known[bug.name]
        else:
            try:
                answers[bug.name] = _plant(bug)
            except DoesNotApply as why:
                answers[bug.name] = None
                stale += 1
                print(why)
            except (subprocess.TimeoutExpired, BrokenRun) as why:
                answers[bug.name] = None
                print(why)
            else:
                _note(arguments.results, bug.name, answers[bug.name])
        who, how = answers[bug.name] or ("MISSED", bug.breaks)
        print(f"{bug.name:36} {who:12} {time.monotonic() - began:8.1f}  {how}", flush=True)
    caught = [answer for answer in answers.values() if answer is not None]
    seeds = [int(who.removeprefix("seed ")) for who, _ in caught if who.startswith("seed ")]
    if seeds:
        median = statistics.median(seeds)
        print(f"{len(seeds)} by the simulation, after a median of {median:g} seeds, at most {max(seeds)}")
    print(f"{len(caught)} of {len(bugs)} caught")
    return 1 if stale or len(caught) < CAUGHT_SHARE_MIN * len(bugs) else 0


def _known(path: str | None) -> dict[str, Caught | None]:
    if path is None or not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return {line["bug"]: None if line["by"] is None else (line["by"], line["how"]) for line in lines}


def _note(path: str | None, bug: str, answer: Caught | None) -> None:
    if path is not None:
        by, how = answer or (None, "")
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"bug": bug, "by": by, "how": how}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
