"""`thermocline certificate`: the certificates that `serve --secure` made, in its data directory.

Works beside a running broker, which loads a renewed certificate by itself; `reload` makes running brokers read all
their files now.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from thermocline.cli.terminal.arguments import add_bootstrap, add_json
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import json_line, table

if TYPE_CHECKING:
    from thermocline.cli.serve.secure.directory import SecuredDirectory
    from thermocline.cli.terminal.arguments import Parser, Subparsers

_RELOAD_TIMEOUT_S: Final = 70.0  # the broker's own timeout is a minute


def register(nouns: Subparsers[Parser]) -> None:
    verbs = nouns.add_parser(
        "certificate",
        help="list, renew the certificates of serve --secure; reload those of running brokers",
        example="thermocline certificate list --data-dir /var/lib/thermocline",
    ).add_subparsers(metavar="VERB", required=True)
    listing = verbs.add_parser(
        "list",
        help="hosts and expiry dates of certificates",
        example="thermocline certificate list --data-dir /var/lib/thermocline --json",
    )
    renew = verbs.add_parser(
        "renew",
        help="make new certificates for the same hosts",
        description="Needs security/ca-key.pem. A running broker uses the new certificate within ten seconds; "
        "connections that are open stay.",
        example="thermocline certificate renew --data-dir /var/lib/thermocline",
    )
    authority = verbs.add_parser(
        "authority",
        help="make a new CA, for a cluster whose CA is lost or was never made",
        description="Stop all brokers first. Afterwards give its join.properties to the other brokers (serve --secure "
        "--join), and its security/ca.pem to all clients. Users, ACLs and records stay as they are.",
        example="thermocline certificate authority --data-dir /var/lib/thermocline",
    )
    reload = verbs.add_parser(
        "reload",
        help="make running brokers read certificates, keys and users again",
        description="Every broker now reads these again: key and trust stores, the secrets of its HTTP port, the users "
        "of PLAIN in its --config, the key file of an encrypted bucket. Content that cannot be used is refused, and "
        "the old content stays in use. SIGHUP does the same.",
        example="thermocline certificate reload -b kafka.example:9092 --json",
    )
    add_bootstrap(reload)
    reload.set_defaults(run=reload_files)
    add_json(listing)
    add_json(reload)
    for parser, run in ((listing, list_certificates), (renew, renew_certificates), (authority, new_authority)):
        parser.add_argument("--data-dir", metavar="DIR", required=True, help="of serve --secure")
        parser.set_defaults(run=run)


def list_certificates(arguments: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    found = _directory(arguments).certificates()
    if arguments.json:
        for file, hosts, expires in found:
            print(json_line({"file": str(file), "hosts": list(hosts), "expires": f"{expires:%Y-%m-%dT%H:%M:%SZ}"}))
        return Exit.DONE
    now = datetime.now(UTC)
    rows: list[tuple[str, str, str]] = []
    try:
        for file, hosts, expires in found:
            rows.append((file.name, f"{expires:%Y-%m-%d}" + " (expired)" * (expires <= now), ", ".join(hosts)))
    finally:  # an unreadable file is reported after the others
        print(table(("certificate", "expires", "hosts"), rows))
    return Exit.DONE


def renew_certificates(arguments: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    for file, hosts, expires in _directory(arguments).renew(datetime.now(UTC)):
        print(f"{file}: until {expires:%Y-%m-%d}, for {', '.join(hosts)}")
    return Exit.DONE


def reload_files(arguments: argparse.Namespace) -> int:
    """POST /reload to the brokers' HTTP ports."""
    from seams.typed_json import decoder_of
    from thermocline.cli.clients.connections import http_addresses
    from thermocline.cli.clients.http_client import HttpRefused, post_json
    from thermocline.cli.clients.statuses import Reloaded

    rows, failed = [], []
    for node_id, address in http_addresses(arguments.bootstrap_server).items():
        try:
            answer = post_json(address, "/reload", "{}", timeout_s=_RELOAD_TIMEOUT_S)
            found = decoder_of(list[Reloaded]).decode(answer)
        except HttpRefused as refused:
            failed.append(f"broker {node_id}: {refused}")
            continue
        rows += [(str(node_id), one.what, one.outcome, one.says) for one in found]
    if arguments.json:
        for node, what, outcome, says in rows:
            print(json_line({"node": int(node), "what": what, "outcome": outcome, "says": says}))
    elif rows:
        print(table(("broker", "what", "outcome", ""), rows))
    if failed:
        raise CommandFailed("; ".join(failed))
    if any(outcome == "refused" for _, _, outcome, _ in rows):
        raise CommandFailed("the refused files above are not used: mend them, then reload again")
    return Exit.DONE


def new_authority(arguments: argparse.Namespace) -> int:
    import secrets
    from datetime import UTC, datetime
    from pathlib import Path

    from thermocline.cli.serve.secure.authority import Authority
    from thermocline.cli.serve.secure.directory import SecuredDirectory

    secured = SecuredDirectory(Path(arguments.data_dir))
    if not secured.is_new:
        raise CommandFailed(
            f"{secured.authority_file} exists, and brokers of other directories trust it; move {arguments.data_dir}"
            "/security away first, if it is really lost",
            Exit.USAGE,
        )
    secured.establish(Authority.new(datetime.now(UTC)), secrets.token_urlsafe(32))
    print(f"{secured.authority_file}: a new CA; {arguments.data_dir}/join.properties is for the other brokers")
    return Exit.DONE


def _directory(arguments: argparse.Namespace) -> SecuredDirectory:
    from pathlib import Path

    from thermocline.cli.serve.secure.directory import SecuredDirectory

    secured = SecuredDirectory(Path(arguments.data_dir))
    if secured.is_new:
        raise CommandFailed(f"{secured.authority_file} does not exist: no serve --secure ran there", Exit.USAGE)
    return secured
