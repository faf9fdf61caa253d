"""`python -m tests.sim --seed 7`, `--seeds 1..50`, `--brokers 3`: replay simulated runs and print what came of them."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

from tests.sim.checks.rows import table
from tests.sim.playing import Outcome
from tests.sim.run import simulate
from tests.sim.several import archive
from tests.sim.several import run as several
from tests.sim.several.faults import power

SEEDS_A_JOB = 16


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", help="a range, A..B, both ends included")
    parser.add_argument("--brokers", type=int, default=0, help="several of them over one bucket; 0: the world of one")
    parser.add_argument("--replication-factor", type=int, help="of several brokers' topics; not given: each seed draws")
    parser.add_argument("--archive", action="store_true", help="a read-only broker beside several brokers")
    parser.add_argument("--power-cut-all", action="store_true", help="all of several brokers lose power at one moment")
    parser.add_argument("--late", action="store_true", help="work that begins or is heard of late, in every run")
    parser.add_argument("--duration", type=float, help="simulated seconds of faults: 12, of several brokers 60")
    parser.add_argument("--until-found", action="store_true", help="stop at the first seed with findings")
    parser.add_argument("--jobs", type=int, default=1, help="processes that play at once, a seed each")
    parser.add_argument("--verbose", action="store_true", help="the brokers' own log on stderr")
    arguments = parser.parse_args()
    if arguments.late and (arguments.archive or arguments.power_cut_all):
        parser.error("--late is not played with --archive or --power-cut-all")
    logging.basicConfig(level=logging.INFO if arguments.verbose else logging.CRITICAL + 1)
    first, _, last = (arguments.seeds or f"{arguments.seed}..{arguments.seed}").partition("..")
    hits: Counter[str] = Counter()
    failed, simulated_s, acked = [], 0.0, 0
    began = time.monotonic()
    for seed, outcome, seed_took_s in _played(arguments, range(int(first), int(last) + 1)):
        hits.update(outcome.hits)
        simulated_s += outcome.simulated_s
        acked += outcome.acked
        print(
            f"seed {seed}: {outcome.simulated_s:.0f} simulated s in {seed_took_s:.2f} s, {outcome.acked} acked, "
            f"{outcome.polls} polls, {outcome.callbacks} callbacks, digest {outcome.digest}"
            f"{' FINDINGS' if outcome.findings else ''}",
            flush=True,
        )
        if first == last:
            print(f"  {outcome.shape}\n  errors answered: {dict(sorted(outcome.errors.items()))}")
        for finding in outcome.findings[:12]:
            print(f"  {finding.kind}: {finding.detail[:600]}")
        if outcome.findings:
            failed.append(seed)
            if arguments.until_found:
                break
    took_s = time.monotonic() - began
    print(f"{simulated_s:.0f} simulated s in {took_s:.1f} s; {acked} records acknowledged; faults that took effect:")
    for line in table(hits):
        print(f"  {line}")
    print(f"seeds with findings: {failed or 'none'}")
    return 1 if failed else 0


Played = tuple[int, Outcome, float]
"""A seed, what came of it, and how many seconds it took."""


def _played(arguments: argparse.Namespace, seeds: range) -> Iterator[Played]:
    """Of every seed, in order. Several jobs are forks, each followed by another after a few seeds: what runs leave in a
    process is gone with it."""
    play = partial(_play, arguments)
    if arguments.jobs <= 1:
        yield from map(play, seeds)
        return
    with multiprocessing.get_context("fork").Pool(arguments.jobs, maxtasksperchild=SEEDS_A_JOB) as jobs:
        yield from jobs.imap(play, seeds)


def _play(arguments: argparse.Namespace, seed: int) -> Played:
    began = time.monotonic()
    if arguments.brokers:
        duration_s, factor = arguments.duration or several.DURATION_S, arguments.replication_factor
        if arguments.archive or arguments.power_cut_all:
            play = archive.simulate if arguments.archive else power.simulate
            outcome = play(seed, arguments.brokers, duration_s, factor)
        else:
            outcome = several.simulate(seed, arguments.brokers, duration_s, factor, late=arguments.late)
    else:
        outcome = simulate(seed, arguments.duration or 12.0, late=arguments.late)
    return seed, outcome, time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
