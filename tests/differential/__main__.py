"""`python -m tests.differential --histories N`: see the package. `--site SEED --history N` repeats one,
`--site SEED --histories N` the first N."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence

from tests.differential.run import PER_SITE, Tally, run_site
from tests.differential.shrink import told


def _one(seed: str) -> tuple[str, Tally | None, str]:
    try:
        return seed, run_site(seed), ""
    except Exception as failure:  # noqa: BLE001 - whatever it is, it is told with what repeats it
        return seed, None, told(seed, failure)


def _seeds(first: str, histories: int) -> Iterator[str]:
    for number in range(-(-histories // PER_SITE)):
        yield f"{first}.{number}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--histories", type=int, help=f"3000 when left out; with --site {PER_SITE}")
    parser.add_argument("--seed", default=os.urandom(4).hex(), help="of the sites; a fresh one when left out")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--site", help="repeat one site")
    parser.add_argument("--history", type=int, help="of it, this history alone")
    parser.add_argument("--keep-going", action="store_true")
    options = parser.parse_args(arguments)
    if options.site is not None:
        numbers = range(options.histories or PER_SITE) if options.history is None else (options.history,)
        try:
            print(run_site(options.site, numbers))
        except Exception as failure:  # noqa: BLE001 - as above
            print(told(options.site, failure))
            return 1
        return 0
    histories = options.histories or 3000
    began, told_at = time.monotonic(), time.monotonic()
    total, found = Tally(), 0
    print(f"seed {options.seed}, {histories} histories", flush=True)
    with multiprocessing.Pool(options.processes, maxtasksperchild=50) as pool:
        for _, tally, words in pool.imap_unordered(_one, _seeds(options.seed, histories)):
            if tally is None:
                print(words, flush=True)
                found += 1
                if not options.keep_going:
                    break
                continue
            total.add(tally)
            if time.monotonic() - told_at > 60:
                told_at = time.monotonic()
                print(f"{total.histories} histories, {told_at - began:.0f} s", flush=True)
        pool.terminate()
    seconds = time.monotonic() - began
    print(f"{total.histories} histories in {seconds:.0f} s ({total.histories / max(seconds, 0.001):.0f}/s)")
    print(f"{total.frames} requests, runs of {dict(sorted(total.runs.items()))}")
    print(f"{total.batches} batches in {total.segments} segments recomputed by Kafka's rules")
    print(f"happened: {dict(total.happened)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
