"""`make soak MINUTES=30 [BROKERS=3]`: rolling kills for that long, then the same load without kills for half as long.

Prints a table; figures go to docs/reliability/soak.json. Exit code 1 when anything acknowledged was lost, doubled or
changed, or when memory, descriptors or threads grow.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.reliability.results import merge_rows
from tests.soak.run import Plan, Soak, figures, judged_growth, printed

KILL_EVERY_S = (60.0, 90.0)
WARM_UP_S = 540.0
"""Until what is bounded is full: caches, and the ends of each log's last 1 024 appends (hotstore/log/locator.py)."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--mb-per-s", type=float, default=2.0, help="over all producers")
    parser.add_argument("--brokers", type=int, default=1, help="several: three replicas of everything")
    parser.add_argument("--secure", action="store_true", help="serve --secure: SASL_SSL, and mTLS among brokers")
    parser.add_argument("--phase", choices=("kills", "steady", "both"), default="both")
    parser.add_argument("--keep", help="run in this directory and leave it")
    options = parser.parse_args()
    failed = False
    for phase in ("kills", "steady") if options.phase == "both" else (options.phase,):
        seconds = 60 * options.minutes * (0.5 if options.phase == "both" and phase == "steady" else 1)
        kill_every = KILL_EVERY_S if phase == "kills" else None
        warm_up = 30.0 if phase == "kills" else min(WARM_UP_S, seconds / 2)
        plan = Plan(
            seconds, kill_every, options.mb_per_s * 1e6, warm_up, brokers=options.brokers, is_secured=options.secure
        )
        with tempfile.TemporaryDirectory(prefix="soak-") as directory:
            verdict = Soak(Path(options.keep or directory) / phase, plan).run()
        verdict.problems += judged_growth(verdict)
        print(printed(phase, verdict), flush=True)
        row = {
            "phase": phase,
            **figures(verdict),
            "rss_mib_curve": verdict.curve,
            "problems_told": verdict.problems[:5],
        }
        command = f"make soak MINUTES={options.minutes:g}"
        if options.brokers > 1:
            command += f" BROKERS={options.brokers}"
            row["phase"] += f", {options.brokers} brokers"
        if options.secure:
            command += " SECURE=1"
            row["phase"] += ", secured"
        merge_rows("soak", command, "phase", [row])
        failed = failed or bool(verdict.problems)
    return 1 if failed else 0


raise SystemExit(main())
