"""Flags and help of `thermocline cluster drain` and `cluster rebalance`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from thermocline.cli.terminal.arguments import add_bootstrap, add_json, natural, positive

if TYPE_CHECKING:
    from thermocline.cli.terminal.arguments import Parser, Subparsers

_AT_ONCE: Final = 50  # partitions: 6 GB of hot tail with a segment of 128 MiB each


def register(verbs: Subparsers[Parser]) -> None:
    drain = verbs.add_parser(
        "drain",
        help="move everything off a broker",
        description="Prints the new broker of each replica, the bytes that move (the bucket does not hold them) and "
        "the\n"
        "bytes that stay in the bucket. Then it asks, and moves the replicas. Once the broker is stopped, the command\n"
        "takes it out of the cluster. It may be interrupted and run again. Runs against Apache Kafka too.",
        example="thermocline cluster drain 3 --dry-run\nthermocline cluster drain 3 --yes",
    )
    drain.add_argument("node", type=natural, metavar="NODE", help="its node id")
    _add_flags(drain)
    drain.set_defaults(run=run_drain)
    rebalance = verbs.add_parser(
        "rebalance",
        help="spread replicas and leaders evenly",
        description="Plans a few moves. After them every broker with a session holds about as many replicas, hot\n"
        "bytes and leaders as the others (replicas and leaders within 5 % of the mean, hot bytes within 20 % or\n"
        "256 MiB), and the replicas of each partition are spread over racks. Prints the plan, asks, and moves.\n"
        "It may be interrupted and run again. Runs against Apache Kafka too.",
        example="thermocline cluster rebalance --dry-run\nthermocline cluster rebalance --yes",
    )
    _add_flags(rebalance)
    rebalance.set_defaults(run=run_rebalance)


def _add_flags(parser: Parser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, and nothing else")
    parser.add_argument("--cancel", action="store_true", help="cancel the moves in progress instead")
    parser.add_argument(
        "--at-once",
        type=positive,
        default=_AT_ONCE,
        metavar="N",
        help=f"partitions that move at a time (default {_AT_ONCE})",
    )
    add_bootstrap(parser)
    add_json(parser)


def run_drain(arguments: argparse.Namespace) -> int:
    from thermocline.cli.cluster.moves.verbs import run_drain

    return run_drain(arguments)


def run_rebalance(arguments: argparse.Namespace) -> int:
    from thermocline.cli.cluster.moves.verbs import run_rebalance

    return run_rebalance(arguments)
