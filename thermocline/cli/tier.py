"""`thermocline tier`: how far the log has sunk, and sinking it now.

Owns the two sub-commands. `status` asks only what any Kafka broker answers, plus our HTTP port and a bucket where there
are some; `seal` is one POST. Always true: `seal` never says that everything is in the bucket while a topic that it was
asked for is not copied at all. Must not know how tiering works.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from thermocline.cli.arguments import add_bootstrap, add_json
from thermocline.cli.outcome import CommandFailed, Exit
from thermocline.cli.output import Progress, note

if TYPE_CHECKING:
    from thermocline.cli.arguments import Parser, Subparsers
    from thermocline.cli.tier_source import TierSource

_WATCH_INTERVAL_S = 1.0
_CLEAR = "\x1b[H\x1b[2J"  # cursor home, screen empty


def register(nouns: Subparsers[Parser]) -> None:
    """Add the command to the command line."""
    verbs = nouns.add_parser(
        "tier", help="how far the log has sunk; seal and copy now", example="thermocline tier status --watch"
    ).add_subparsers(metavar="VERB", required=True)
    status = verbs.add_parser(
        "status",
        help="where each partition's data lies",
        description="Where each partition's data lies. Runs against Apache Kafka too: what is not known is - or null.",
        example="thermocline tier status -b 127.0.0.1:9092 --topic orders --watch",
    )
    status.add_argument("--topic", metavar="T", help="this topic only")
    status.add_argument("--bucket", metavar="URL", help="read the manifests there as well")
    status.add_argument("--watch", action="store_true", help="again every second, until stopped")
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
    """Print the rows once, or every second."""
    from thermocline.cli.tier_source import TierSource

    source = TierSource(arguments.bootstrap_server, arguments.topic, arguments.bucket)
    try:
        while True:
            _print(source, arguments)
            if not arguments.watch:
                return Exit.DONE
            time.sleep(_WATCH_INTERVAL_S)
    except KeyboardInterrupt:
        return Exit.DONE


def _print(source: TierSource, arguments: argparse.Namespace) -> None:
    from thermocline.cli.tier_status import picture

    found = source.read()
    if arguments.json:
        for row in found:
            print(row.json())
    else:
        live = arguments.watch and sys.stdout.isatty()
        print(f"{_CLEAR if live else ''}{picture(found)}")
        for line in (*source.brokers(), *source.leaving()):
            print(line)
    sys.stdout.flush()


def seal_now(arguments: argparse.Namespace) -> int:
    """POST /tier/seal to the broker's HTTP port."""
    import json

    from thermocline.cli.http_client import HttpRefused, post_json
    from thermocline.cli.tier_source import TierSource, http_address

    source = TierSource(arguments.bootstrap_server, arguments.topic, None)
    if arguments.topic is not None:
        source.read()  # a name that is mistyped must not look like a topic that is safe
    host, port = http_address(arguments.bootstrap_server)
    progress = Progress()
    progress.show("sealing and copying…" if arguments.wait else "sealing…")
    try:
        answer = post_json(host, port, "/tier/seal", json.dumps({"topic": arguments.topic, "wait": arguments.wait}))
    except HttpRefused as refused:
        what = f"sealing {arguments.topic or 'all topics'}"
        raise CommandFailed(f"{what}: {refused}; see `thermocline tier status`") from refused
    finally:
        progress.done()
    if not json.loads(answer or b"{}").get("done"):
        note("sealed; copying goes on, see `thermocline tier status`")
        return Exit.DONE
    uncopied = source.uncopied()
    if arguments.topic in uncopied:
        raise CommandFailed(
            f"topic {arguments.topic} is not copied to the bucket: {uncopied[arguments.topic]}; it is on this disk only"
        )
    note("everything is in the bucket" if not uncopied else "everything that is tiered is in the bucket")
    for topic, why in uncopied.items():
        note(f"NOT in the bucket, on this disk only: {topic} ({why})")
    return Exit.DONE
