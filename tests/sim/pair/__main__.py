"""`python -m tests.sim.pair --seed 7`, `--seeds 1..20000 --jobs 2`: replay runs of two brokers, and what came of it."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.sim.checks.rows import table
from tests.sim.pair.play import Outcome, simulate

SEEDS_A_JOB = 64


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.pair", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", help="a range, A..B, both ends included")
    parser.add_argument("--until-found", action="store_true", help="stop at the first seed with findings")
    parser.add_argument("--jobs", type=int, default=1, help="processes that play at once, a seed each")
    parser.add_argument("--verbose", action="store_true", help="also what was done, and traces of findings")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL + 1)  # what the dead leave behind
    first, _, last = (arguments.seeds or f"{arguments.seed}..{arguments.seed}").partition("..")
    hits: Counter[str] = Counter()
    failed, acked, played, simulated_s = [], 0, 0, 0.0
    began = time.monotonic()
    for outcome in _played(arguments.jobs, range(int(first), int(last) + 1)):
        hits.update(outcome.hits)
        acked += outcome.acked
        played += 1
        simulated_s += outcome.simulated_s
        if arguments.verbose:
            print("\n".join(outcome.told))
        for finding in dict.fromkeys(outcome.findings):
            print(f"seed {outcome.seed}: {finding[:700]}", flush=True)
        if outcome.findings:
            failed.append(outcome.seed)
            if arguments.verbose:
                print("\n".join(outcome.traces))
            if arguments.until_found:
                break
    took_s = time.monotonic() - began
    print(
        f"{played} seeds, {simulated_s:.0f} simulated s in {took_s:.1f} s ({played / max(took_s, 1e-9):.1f} seeds/s); "
        f"{acked} records acknowledged; what took effect:"
    )
    for line in table(hits):
        print(f"  {line}")
    print(f"seeds with findings: {failed or 'none'}")
    return 1 if failed else 0


def _played(jobs: int, seeds: range) -> Iterator[Outcome]:
    """Of every seed, in order. Several jobs are forks, each followed by another after some seeds: what runs leave in a
    process is gone with it."""
    if jobs <= 1:
        yield from map(simulate, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=SEEDS_A_JOB) as pool:
        yield from pool.imap(simulate, seeds, chunksize=4)


if __name__ == "__main__":
    sys.exit(main())
