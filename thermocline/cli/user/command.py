"""`thermocline user`: add, list, delete users of SCRAM (`kafka-configs.sh --alter --add-config SCRAM-…`).

A password is never an argument, because other users of the machine would see it. It comes from a file or the terminal,
or it is generated and printed once. The client salts the password; the broker never gets it.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from broker.security_protocol import SCRAM, SCRAM_SHA_512
from thermocline.cli.terminal.arguments import add_bootstrap, add_json, filled
from thermocline.cli.terminal.confirm import confirm, require_terminal
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import json_line, table

if TYPE_CHECKING:
    from thermocline.cli.terminal.arguments import Parser, Subparsers

_PASSWORD_BYTES_MAX: Final = 1024
_GENERATED_BYTES: Final = 24  # 192 bits


def register(nouns: Subparsers[Parser]) -> None:
    verbs = nouns.add_parser(
        "user", help="add, list, delete users that log in by SCRAM", example="thermocline user list"
    ).add_subparsers(metavar="VERB", required=True)
    add = verbs.add_parser(
        "add",
        help="add a user, or give one another password",
        description="The command asks for the password on the terminal, unless a flag names its source.",
        example="thermocline user add alice\nthermocline user add etl --password-file /run/secrets/etl",
    )
    add.add_argument("user", type=filled, metavar="NAME")
    add.add_argument("--mechanism", choices=SCRAM, default=SCRAM_SHA_512, help=f"default {SCRAM_SHA_512}")
    source = add.add_mutually_exclusive_group()
    source.add_argument("--password-file", metavar="FILE", help="its first line is the password; - is stdin")
    source.add_argument("--generate", action="store_true", help="make a password, and print it once")
    listing = verbs.add_parser("list", help="users and their mechanisms", example="thermocline user list --json")
    delete = verbs.add_parser(
        "delete",
        help="delete a user's credentials",
        description="The user cannot log in any more. Connections that it has last until their sessions end "
        "(connections.max.reauth.ms).",
        example="thermocline user delete alice",
    )
    delete.add_argument("user", type=filled, metavar="NAME")
    delete.add_argument("--mechanism", choices=SCRAM, help="default: every mechanism that the user has")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    add_json(listing)
    for parser, run in ((add, add_user), (listing, list_users), (delete, delete_user)):
        add_bootstrap(parser)
        parser.set_defaults(run=run)


def add_user(arguments: argparse.Namespace) -> int:
    from broker.security.sasl.scram import ITERATIONS_MIN
    from thermocline.cli.user.credentials import mechanisms, upsert

    password, is_generated = _password(arguments)
    had = mechanisms(arguments.bootstrap_server, arguments.user)
    upsert(arguments.bootstrap_server, arguments.user, arguments.mechanism, ITERATIONS_MIN, password)
    done = f"changed the password of {arguments.user}" if arguments.mechanism in had else f"added {arguments.user}"
    print(f"{done}: {arguments.mechanism}")
    if is_generated:
        print(f"password: {password}")
    return Exit.DONE


def list_users(arguments: argparse.Namespace) -> int:
    from thermocline.cli.user.credentials import described

    found = described(arguments.bootstrap_server)
    if arguments.json:
        for user, infos in found.items():
            shown = [{"mechanism": mechanism, "iterations": iterations} for mechanism, iterations in infos]
            print(json_line({"user": user, "credentials": shown}))
        return Exit.DONE
    rows = [(user, mechanism, str(iterations)) for user, infos in found.items() for mechanism, iterations in infos]
    print(table(("user", "mechanism", "iterations"), rows, right=("iterations",)))
    return Exit.DONE


def delete_user(arguments: argparse.Namespace) -> int:
    from thermocline.cli.user.credentials import described, remove

    has = [mechanism for mechanism, _ in described(arguments.bootstrap_server, arguments.user)[arguments.user]]
    wanted = has if arguments.mechanism is None else [arguments.mechanism]
    if not arguments.yes:
        require_terminal()
        confirm(f"{arguments.user} will not be able to log in by {', '.join(wanted)} any more.", arguments.user)
    for mechanism in wanted:
        remove(arguments.bootstrap_server, arguments.user, mechanism)
    print(f"deleted {arguments.user}: {', '.join(wanted)}")
    return Exit.DONE


def _password(arguments: argparse.Namespace) -> tuple[str, bool]:
    """The password, and whether it was generated."""
    if arguments.generate:
        import secrets

        return secrets.token_urlsafe(_GENERATED_BYTES), True
    if arguments.password_file is not None:
        return _checked(_first_line(arguments.password_file), f"--password-file {arguments.password_file}"), False
    if not sys.stdin.isatty():
        raise CommandFailed("no terminal to ask for a password on: give --password-file or --generate", Exit.USAGE)
    from getpass import getpass

    password = getpass(f"password of {arguments.user}: ")
    if getpass("again: ") != password:
        raise CommandFailed("the two passwords differ; nothing was changed", Exit.USAGE)
    return _checked(password, "the password"), False


def _first_line(path: str) -> str:
    try:
        if path == "-":
            return sys.stdin.readline(_PASSWORD_BYTES_MAX + 2).rstrip("\r\n")
        with open(path, encoding="utf-8") as file:
            return file.readline(_PASSWORD_BYTES_MAX + 2).rstrip("\r\n")
    except OSError as unreadable:
        raise CommandFailed(f"--password-file {path}: {unreadable.strerror}", Exit.USAGE) from None
    except UnicodeDecodeError:  # its message has the bytes
        raise CommandFailed(f"--password-file {path}: its first line is not UTF-8 text", Exit.USAGE) from None


def _checked(password: str, where: str) -> str:
    if not password:
        raise CommandFailed(f"{where} is empty", Exit.USAGE)
    if len(password.encode()) > _PASSWORD_BYTES_MAX:
        raise CommandFailed(f"{where} is longer than {_PASSWORD_BYTES_MAX} bytes", Exit.USAGE)
    return password
