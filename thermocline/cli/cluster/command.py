"""`thermocline cluster` and its sub-commands; runs `cluster status`."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from thermocline.cli.cluster import forget
from thermocline.cli.cluster.moves import command as moves
from thermocline.cli.cluster.restore import command as restore
from thermocline.cli.cluster.restore import rebuild
from thermocline.cli.terminal.arguments import add_bootstrap, add_json
from thermocline.cli.terminal.outcome import Exit
from thermocline.cli.terminal.watch import show

if TYPE_CHECKING:
    from thermocline.cli.terminal.arguments import Parser, Subparsers


def register(nouns: Subparsers[Parser]) -> None:
    verbs = nouns.add_parser(
        "cluster", help="the brokers of a bucket: controller, sessions, moves", example="thermocline cluster status"
    ).add_subparsers(metavar="VERB", required=True)
    status = verbs.add_parser(
        "status",
        help="controller, brokers, and findings",
        description="Prints the controller, the brokers, the partitions with a problem, and the remedies. Exit code 5 "
        "when there is a finding, 1 when a broker's HTTP port refused the token. Runs against Apache Kafka too: "
        "unknown values are - or null.",
        example="thermocline cluster status -b 127.0.0.1:9092 --watch",
    )
    status.add_argument("--watch", action="store_true", help="repeat every second")
    add_bootstrap(status)
    add_json(status)
    status.set_defaults(run=show_status)
    moves.register(verbs)
    forget.register(verbs)
    restore.register(verbs)
    rebuild.register(verbs)


def show_status(arguments: argparse.Namespace) -> int:
    from thermocline.cli.clients.wire_client import BrokerUnreachable
    from thermocline.cli.cluster.findings import findings, notes
    from thermocline.cli.cluster.moves.copying import CopyBook
    from thermocline.cli.cluster.reader import ClusterReader
    from thermocline.cli.cluster.status import json_lines, picture, unreachable
    from thermocline.cli.terminal.watch import is_ascii_only

    source, book, plain = ClusterReader(arguments.bootstrap_server), CopyBook(), is_ascii_only()
    code = Exit.DONE
    was_there = False

    def lines() -> list[str]:
        nonlocal code, was_there
        try:
            seen = source.read()
            seen = replace(seen, copies=source.copies(seen))
        except BrokerUnreachable as failed:
            if not (arguments.watch and was_there):
                raise
            return unreachable(failed, as_json=arguments.json)  # a watch continues through an outage
        was_there = True
        found = findings(seen)
        code = Exit.FINDINGS if found else Exit.FAILED if seen.token_refused else Exit.DONE
        if arguments.json:
            return json_lines(seen, found, notes(seen))
        book.note(seen.copies, time.monotonic())
        return picture(seen, found, notes(seen), book.lines(plain=plain))

    shown = show(lines, watch=arguments.watch, redraw=not arguments.json)
    return shown if arguments.watch else code
