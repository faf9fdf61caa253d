"""Thermocline beside Apache Kafka on this machine: `make bench` writes the first table of bench/RESULTS.md.

    bench/run.py                              the whole table, three rounds a row
    bench/run.py --list                       the names of the rows
    bench/run.py --only produce-1mb --rounds 1   one row, quickly; nothing is written below three rounds
    bench/run.py --beside CHECKOUT --only start  another version of ours in Kafka's place; nothing is written
    bench/run.py --python /usr/bin/python3.11    our brokers on another interpreter than this one

bench/README.md says how to read it. Both brokers run at once, idle while the other works; the sides take turns and
medians are compared. Needs Java and Maven (the peer), gcc (the load generator), versitygw (the S3 rows). Nothing here
is asserted: a benchmark is looked at, a test is not a stopwatch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))
from bench.interpreter import interpreter
from bench.rows import (
    cluster,
    compact,
    consume,
    encryption,
    footprint,
    mixed,
    produce,
    replace,
    s3,
    security,
    tls,
    transactions,
)
from bench.sides import BENCH, CalmMachine, Side, create, kafka_peer
from bench.stage import Stage
from bench.table import HEAD, Row, write

__all__ = ["CalmMachine", "Side", "create", "kafka_peer"]  # of bench/spark.py

ROUNDS: Final = 3
BENCHMARKS: Final[dict[str, Callable[[Stage], list[Row]]]] = {
    **produce.BENCHMARKS,
    **consume.BENCHMARKS,
    **mixed.BENCHMARKS,
    **footprint.BENCHMARKS,
    **s3.BENCHMARKS,
    **encryption.BENCHMARKS,
    **cluster.BENCHMARKS,
    **replace.BENCHMARKS,
    **compact.BENCHMARKS,
    **transactions.BENCHMARKS,
    **tls.BENCHMARKS,
    **security.BENCHMARKS,
}


def compile_all(python: str, checkout: Path) -> None:
    """Write the byte code of our packages, as an installation does."""
    packages = [str(init.parent) for init in sorted(checkout.glob("*/__init__.py"))]
    subprocess.run([python, "-m", "compileall", "-q", *packages], check=True)


def main() -> None:
    """Measure what was asked for, all of it by default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=BENCHMARKS, metavar="ROW", help="may be given again")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="compare with this version of ours, not Kafka")
    parser.add_argument("--python", type=Path, help="the interpreter of our brokers; one of the same minor version")
    parser.add_argument("--peer-python", type=Path, help="of the version beside, by default this program's own")
    parser.add_argument("--scale", type=float, default=0.1, help="of the 20 GB that replace… moves")
    parser.add_argument("--list", action="store_true", help="the names of the rows")
    options = parser.parse_args()
    if options.list:
        print("\n".join(BENCHMARKS))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the brokers end with us
    root = Path(tempfile.mkdtemp(prefix="thermocline-bench-"))
    peer = "Kafka" if options.beside is None else options.beside.name
    python, described = interpreter(options.python)
    peer_python, _ = interpreter(options.peer_python)
    print("\n".join(HEAD).replace("Kafka", peer))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # it adds over a second to each start
    compile_all(python, BENCH.parent)
    if options.beside is not None:
        compile_all(peer_python, options.beside)
    try:
        with ExitStack() as sides:
            stage = Stage(root, options.rounds, sides, options.beside, python, options.scale, peer_python)
            for name in options.only or BENCHMARKS:
                rows = BENCHMARKS[name](stage)
                for row in rows:
                    row.python = described
                print("\n".join(row.line() for row in rows), flush=True)
                if options.rounds >= ROUNDS and options.beside is None:
                    write(BENCH / "RESULTS.md", rows, list(BENCHMARKS), options.rounds, described)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
