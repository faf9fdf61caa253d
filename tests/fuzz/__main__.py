"""`make fuzz`: every target under Atheris, a process each, and a table of executions, crashes and memory.

Options: `--runs N` (executions of each target; its default share otherwise), `--only A,B`, `--keep` (minimise what was
found into the committed corpus), `--planted` (how soon known bugs are found), `--finding FILE WHAT` (keep an input
whose bug is mended, by the words that say what it was: `uuid-not-utf-8`). Figures go to docs/reliability, merged by
target, so that a part may be run again. Exit code 1 when a target found something: the input lies in
tests/fuzz/findings/.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fuzz.kept import FINDING, keep, kept, smallest, unpacked
from tests.fuzz.plants import PLANTS
from tests.fuzz.targets import load, names
from tests.reliability.results import ROOT, merge_rows

HERE = os.path.dirname(os.path.abspath(__file__))
FINDINGS = os.path.join(HERE, "findings")
ATHERIS = "atheris==3.0.0"

RUNS = 200_000
"""Executions of a target in a full run: the least for a slow one; quick ones get more, 10⁷ in all."""
RUNS_OF = {
    "indexes": 1_000_000,
    "leader_epochs": 1_000_000,
    "object_keys": 2_500_000,
    "offset_checkpoints": 1_000_000,
    "producer_snapshots": 1_000_000,
    "request_header": 1_000_000,
    "identity_files": 600_000,
    "tokens": 1_000_000,
}
COUNTS_CALLS = ("answers_in_proportion",)
"""Atheris adds calls to the code, and this target counts calls. `python -m tests.fuzz.proportion` tries all its inputs.
"""
INPUT_BYTES_MAX = 4096
INPUT_BYTES_MAX_OF = {"manifest_page": 12_288}  # a Parquet file of five rows has 5 KB
KEPT_INPUTS_MAX = 120
KEPT_BYTES_MAX = 100_000
RSS_MB_MAX = 1500
INPUT_SECONDS_MAX = 20


@dataclass(frozen=True)
class Row:
    """One target's run. RSS in MiB: after the first tenth of the executions, and at the end."""

    target: str
    executions: int
    crashes: int
    edges: int
    rss_start_mib: int
    rss_end_mib: int
    seconds: float

    @property
    def rss_growth(self) -> float:
        return self.rss_end_mib / self.rss_start_mib - 1 if self.rss_start_mib else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, help="executions of each target (default: its share of 10^7)")
    parser.add_argument("--only", default="", help="targets, separated by commas")
    parser.add_argument("--keep", action="store_true", help="minimise new inputs into tests/fuzz/corpus")
    parser.add_argument("--planted", action="store_true", help="executions until each planted off-by-one is found")
    parser.add_argument("--finding", nargs=2, metavar=("FILE", "WHAT"), help="keep a mended finding for good")
    options = parser.parse_args()
    if options.finding:
        return _keep_finding(*options.finding)
    _install_atheris()
    if options.planted:
        return _find_plants(options.runs or RUNS, options.only)
    chosen = [name for name in options.only.split(",") if name] or [
        name for name in names() if name not in COUNTS_CALLS
    ]
    rows = [_fuzz(name, options.runs or RUNS_OF.get(name, RUNS), options.keep) for name in chosen]
    _print(rows)
    merge_rows("fuzz", "make fuzz", "target", [asdict(row) for row in rows])
    return 1 if any(row.crashes for row in rows) else 0


def _install_atheris() -> None:
    """Into this virtual environment, once: it is no dependency of the project, and has wheels for CPython 3.11 only."""
    if importlib.util.find_spec("atheris") is None:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", ATHERIS], check=True)


def _fuzz(name: str, runs: int, keeps: bool) -> Row:
    old = kept(name)
    os.makedirs(FINDINGS, exist_ok=True)
    known = set(os.listdir(FINDINGS))
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as work:
        grown, seeds, log = os.path.join(work, "grown"), _seeds_in(name, work), os.path.join(work, "log")
        corpus = unpacked(old, os.path.join(work, "kept"))
        os.mkdir(grown)
        started = time.monotonic()
        arguments = [f"-runs={runs}", f"-max_len={_bytes_max(name)}", f"-artifact_prefix={FINDINGS}/{name}-"]
        _child(name, [*arguments, grown, corpus, seeds], log)
        seconds = time.monotonic() - started
        row = _row(name, log, len(set(os.listdir(FINDINGS)) - known), seconds)
        print(f"{name}: {row.executions} executions in {seconds:.0f} s, {row.crashes} findings", flush=True)
        if row.crashes:
            with open(log, errors="replace") as file:
                print(file.read()[-3000:])
        if keeps:
            keep(name, _minimised(name, [corpus, grown, seeds], old, os.path.join(work, "merge.log")))
    return row


def _child(name: str, arguments: list[str], log: str, plant: str | None = None) -> None:
    limits = [f"-rss_limit_mb={RSS_MB_MAX}", f"-timeout={INPUT_SECONDS_MAX}", "-print_final_stats=1"]
    with open(log, "wb") as file:
        command = [sys.executable, "-m", "tests.fuzz.child", name, *limits, *arguments]
        environment = {**os.environ, **({} if plant is None else {"FUZZ_PLANT": plant})}
        subprocess.run(command, stdout=file, stderr=file, cwd=ROOT, env=environment, check=False)


def _bytes_max(name: str) -> int:
    return INPUT_BYTES_MAX_OF.get(name, INPUT_BYTES_MAX)


def _row(name: str, log: str, crashes: int, seconds: float) -> Row:
    with open(log, errors="replace") as file:
        text = file.read()
    lines = [(int(m[1]), int(m[2])) for m in re.finditer(r"^#(\d+)\s.*\brss: (\d+)Mb", text, re.MULTILINE)]
    edges = [int(m[1]) for m in re.finditer(r"\bcov: (\d+)", text)]
    executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    executions = int(executed[1]) if executed else max((count for count, _ in lines), default=0)
    if not executions:
        raise SystemExit(f"{name} did not run:\n{text[-3000:]}")
    warm = [rss for count, rss in lines if count >= executions // 10] or [0]
    return Row(name, executions, crashes, max(edges, default=0), warm[0], warm[-1], round(seconds, 1))


def _minimised(name: str, folders: list[str], old: dict[str, bytes], log: str) -> dict[str, bytes]:
    """The smallest inputs that together reach what all of them reach, within the corpus's bounds."""
    with tempfile.TemporaryDirectory(prefix=f"merge-{name}-") as merged:
        _child(name, ["-merge=1", f"-max_len={_bytes_max(name)}", merged, *folders], log)
        found = {file: Path(merged, file).read_bytes() for file in os.listdir(merged)}
    return smallest(found, old, inputs_max=KEPT_INPUTS_MAX, bytes_max=KEPT_BYTES_MAX) if found else old


def _keep_finding(file: str, what: str) -> int:
    """A file of tests/fuzz/findings/ into the archive of the target that its name begins with."""
    target = max((name for name in names() if os.path.basename(file).startswith(f"{name}-")), key=len)
    keep(target, {**kept(target), FINDING + what: Path(file).read_bytes()})
    print(f"kept as {FINDING}{what} of {target}")
    return 0


def _find_plants(runs_max: int, only: str) -> int:
    """One plant after the other; 0 when every one was found."""
    rows: list[dict[str, object]] = []
    for plant in (plant for plant in PLANTS if not only or plant.target in only.split(",")):
        with tempfile.TemporaryDirectory(prefix="fuzz-plant-") as work:
            seeds, log = _seeds_in(plant.target, work), os.path.join(work, "log")
            arguments = [f"-runs={runs_max}", f"-max_len={_bytes_max(plant.target)}", f"-artifact_prefix={work}/found-"]
            _child(plant.target, [*arguments, "-seed=1", seeds], log, plant.name)
            found = any(file.startswith("found-") for file in os.listdir(work))
            row = _row(plant.target, log, int(found), 0.0)
        rows.append({"plant": plant.name, "target": plant.target, "found": found, "executions": row.executions})
        print(f"{plant.name:56}{plant.target:20}{'found after' if found else 'NOT FOUND in':>14}{row.executions:>10,}")
    merge_rows("fuzz_planted", "python -m tests.fuzz --planted", "plant", rows)
    return 0 if all(row["found"] for row in rows) else 1


def _seeds_in(name: str, work: str) -> str:
    """A folder of the target's seeds, a file each."""
    folder = os.path.join(work, "seeds")
    os.mkdir(folder)
    for number, seed in enumerate(load(name).seeds()):
        with open(os.path.join(folder, f"{number:04d}"), "wb") as file:
            file.write(seed)
    return folder


def _print(rows: list[Row]) -> None:
    print(f"{'target':24}{'executions':>12}{'crashes':>9}{'edges':>7}{'RSS MiB':>14}{'growth':>8}{'exec/s':>9}")
    for row in rows:
        rss = f"{row.rss_start_mib} → {row.rss_end_mib}"
        rate = row.executions / max(row.seconds, 0.1)
        line = f"{row.target:24}{row.executions:>12,}{row.crashes:>9}{row.edges:>7}{rss:>14}"
        print(f"{line}{row.rss_growth:>8.1%}{rate:>9,.0f}")
    total = sum(row.executions for row in rows)
    print(f"{len(rows)} targets, {total:,} executions, {sum(row.crashes for row in rows)} new findings")


if __name__ == "__main__":
    sys.exit(main())
