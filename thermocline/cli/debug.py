"""`thermocline debug`: facts about this build for tests."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from thermocline.cli.terminal.outcome import Exit

if TYPE_CHECKING:
    from thermocline.cli.terminal.arguments import Parser, Subparsers


def register(nouns: Subparsers[Parser]) -> None:
    debug = nouns.add_parser(
        "debug", help="for tests of Thermocline itself", example="thermocline debug crash-points"
    ).add_subparsers(metavar="WHAT", required=True)
    points = debug.add_parser(
        "crash-points",
        help="list the points where THERMOCLINE_CRASH_AT may kill a broker",
        description="The names for THERMOCLINE_CRASH_AT=<point>[:n], one a line. A broker uses it only with "
        "--set thermocline.testing=true.",
        example="THERMOCLINE_CRASH_AT=copy.uploaded thermocline serve --data-dir /tmp/d --set thermocline.testing=true",
    )
    points.add_argument("-v", "--verbose", action="store_true", help="describe the state at each point")
    points.set_defaults(run=crash_points)
    job_points = debug.add_parser(
        "job-crash-points",
        help="list the points where THERMOCLINE_CRASH_AT may kill a job's driver or a worker",
        description="As crash-points, for `archive` and `scrub`, which use it only with THERMOCLINE_TESTING=true.",
        example="THERMOCLINE_TESTING=true THERMOCLINE_CRASH_AT=archive.committed "
        "thermocline archive orders --bucket file:///tmp/b --table t.orders --warehouse file:///tmp/lake",
    )
    job_points.add_argument("-v", "--verbose", action="store_true", help="describe the state at each point")
    job_points.set_defaults(run=job_crash_points)


def crash_points(arguments: argparse.Namespace) -> int:
    from seams.crash_points import POINTS

    return _listed(POINTS, verbose=arguments.verbose)


def job_crash_points(arguments: argparse.Namespace) -> int:
    from thermocline.pipeline.jobs.job_crash_points import POINTS

    return _listed(POINTS, verbose=arguments.verbose)


def _listed(points: Mapping[str, str], *, verbose: bool) -> int:
    for name, meaning in points.items():
        print(f"{name:30} {meaning}" if verbose else name)
    return Exit.DONE
