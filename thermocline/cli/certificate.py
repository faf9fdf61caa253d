"""`thermocline certificate`: the certificates that `serve --secure` made, in its data directory. Works beside a running
broker, which loads a renewed certificate by itself."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from thermocline.cli.terminal.arguments import add_json
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import json_line, table

if TYPE_CHECKING:
    from thermocline.cli.serve.secure.directory import SecuredDirectory
    from thermocline.cli.terminal.arguments import Parser, Subparsers


def register(nouns: Subparsers[Parser]) -> None:
    verbs = nouns.add_parser(
        "certificate",
        help="list, renew the certificates of serve --secure",
        example="thermocline certificate list --data-dir /var/lib/thermocline",
    ).add_subparsers(metavar="VERB", required=True)
    listing = verbs.add_parser(
        "list", help="hosts and ends", example="thermocline certificate list --data-dir /var/lib/thermocline --json"
    )
    renew = verbs.add_parser(
        "renew",
        help="make new ones for the same hosts",
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
    add_json(listing)
    for parser, run in ((listing, list_certificates), (renew, renew_certificates), (authority, new_authority)):
        parser.add_argument("--data-dir", metavar="DIR", required=True, help="of serve --secure")
        parser.set_defaults(run=run)


def list_certificates(arguments: argparse.Namespace) -> int:
    found = list(_directory(arguments).certificates())
    if arguments.json:
        for file, hosts, expires in found:
            print(json_line({"file": str(file), "hosts": list(hosts), "expires": f"{expires:%Y-%m-%dT%H:%M:%SZ}"}))
        return Exit.DONE
    rows = [(file.name, f"{expires:%Y-%m-%d}", ", ".join(hosts)) for file, hosts, expires in found]
    print(table(("certificate", "expires", "hosts"), rows))
    return Exit.DONE


def renew_certificates(arguments: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    for file, hosts, expires in _directory(arguments).renew(datetime.now(UTC)):
        print(f"{file}: until {expires:%Y-%m-%d}, for {', '.join(hosts)}")
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
            f"{secured.authority_file} is there: brokers of other directories trust it; move {arguments.data_dir}"
            "/security away first, if it is really lost to you",
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
