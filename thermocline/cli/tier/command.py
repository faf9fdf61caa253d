"""`thermocline tier status` and `tier seal`: flags, and the watch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from thermocline.cli.terminal.arguments import add_bootstrap, add_json
from thermocline.cli.terminal.output import note
from thermocline.cli.terminal.watch import show

if TYPE_CHECKING:
    from thermocline.cli.terminal.arguments import Parser, Subparsers


def register(nouns: Subparsers[Parser]) -> None:
    verbs = nouns.add_parser(
        "tier",
        help="how much of each log is in the bucket; seal and copy now",
        example="thermocline tier status --watch",
    ).add_subparsers(metavar="VERB", required=True)
    status = verbs.add_parser(
        "status",
        help="where each partition's data lies",
        description="Prints where each partition's data lies. Runs against Apache Kafka too: unknown values are - or "
        "null.",
        example="thermocline tier status -b 127.0.0.1:9092 --topic orders --watch",
    )
    status.add_argument("--topic", metavar="T", help="this topic only")
    status.add_argument("--bucket", metavar="URL", help="also read the manifests in this bucket")
    status.add_argument("--watch", action="store_true", help="repeat every second")
    add_json(status)
    seal = verbs.add_parser(
        "seal",
        help="seal and copy everything now",
        description="Seal every active segment and copy everything to the bucket now, as before a planned replacement.",
        example="thermocline tier seal --wait && systemctl stop thermocline",
    )
    seal.add_argument("--topic", metavar="T", help="this topic only")
    seal.add_argument("--wait", action="store_true", help="end when everything is in the bucket and verified")
    for parser, run in ((status, show_status), (seal, seal_now)):
        add_bootstrap(parser)
        parser.set_defaults(run=run)


def show_status(arguments: argparse.Namespace) -> int:
    from thermocline.cli.tier.reader import TierReader
    from thermocline.cli.tier.status import picture

    source = TierReader(arguments.bootstrap_server, arguments.topic, arguments.bucket)

    def lines() -> list[str]:
        found = source.read()
        if arguments.json:
            for unknown in source.unknown():
                note(f"note: {unknown}")
            return [row.json() for row in found]
        notes = [f"note: {unknown}" for unknown in source.unknown()]
        return [picture(found), *source.brokers(), *source.retention(), *notes]

    return show(lines, watch=arguments.watch, redraw=not arguments.json)


def seal_now(arguments: argparse.Namespace) -> int:
    """POST /tier/seal to the brokers' HTTP ports."""
    from thermocline.cli.tier.seal import seal

    return seal(arguments.bootstrap_server, arguments.topic, wait=arguments.wait)
