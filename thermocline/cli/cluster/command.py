"""`thermocline cluster`: the brokers of one bucket, as any of them sees them.

Owns the sub-commands. Must not know how brokers are asked (`source`), nor what is wrong when (`findings`).
"""

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
    """Add the command to the command line."""
    verbs = nouns.add_parser(
        "cluster", help="the brokers of a bucket: who decides, who is away", example="thermocline cluster status"
    ).add_subparsers(metavar="VERB", required=True)
    status = verbs.add_parser(
        "status",
        help="who decides, who is away, what is wrong",
        description="The controller, the brokers, the partitions that lack something, and what to do about it. Exit "
        "code 5 when something is wrong. Runs against Apache Kafka too: what is not known is - or null.",
        example="thermocline cluster status -b 127.0.0.1:9092 --watch",
    )
    status.add_argument("--watch", action="store_true", help="again every second, until stopped")
    add_bootstrap(status)
    add_json(status)
    status.set_defaults(run=show_status)
    moves.register(verbs)
    forget.register(verbs)
    restore.register(verbs)
    rebuild.register(verbs)


def show_status(arguments: argparse.Namespace) -> int:
    """Print it once, or every second."""
    from thermocline.cli.clients.wire_client import BrokerUnreachable
    from thermocline.cli.cluster.findings import findings, notes
    from thermocline.cli.cluster.moves.copying import CopyBook
    from thermocline.cli.cluster.moves.source import MovesSource
    from thermocline.cli.cluster.status import json_lines, picture, unreachable
    from thermocline.cli.terminal.watch import has_only_letters

    source, book, plain = MovesSource(arguments.bootstrap_server), CopyBook(), has_only_letters()
    wrong = was_there = False

    def lines() -> list[str]:
        nonlocal wrong, was_there
        try:
            seen = source.look()
            seen = replace(seen, copies=source.copies(seen))
        except BrokerUnreachable as failed:
            if not (arguments.watch and was_there):
                raise
            return unreachable(failed, as_json=arguments.json)  # whoever watches waits for the end of it
        was_there = True
        found = findings(seen)
        wrong = bool(found)
        if arguments.json:
            return json_lines(seen, found, notes(seen))
        book.note(seen.copies, time.monotonic())
        return picture(seen, found, notes(seen), book.lines(plain=plain))

    code = show(lines, watch=arguments.watch, redraw=not arguments.json)
    return Exit.FINDINGS if wrong and not arguments.watch else code
