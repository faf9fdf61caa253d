"""`thermocline key`: make and change the key file of an encrypted bucket (docs/encryption.md).

No command prints a key. A change replaces the file atomically, with mode 0600. A removed key is first kept in FILE.old,
because a broker with an older key file may have written under it since the last look at the bucket.
"""

from __future__ import annotations

import argparse
from itertools import count
from typing import TYPE_CHECKING

from thermocline.cli.terminal.arguments import add_json
from thermocline.cli.terminal.confirm import confirm, require_terminal
from thermocline.cli.terminal.outcome import CommandFailed, Exit, plain_words
from thermocline.cli.terminal.output import json_line

if TYPE_CHECKING:
    from collections.abc import Collection

    from coldstore.encryption.key_file import KeyEntry, KeyFile
    from thermocline.cli.terminal.arguments import Parser, Subparsers


def register(nouns: Subparsers[Parser]) -> None:
    verbs = nouns.add_parser(
        "key", help="make and rotate the keys of an encrypted bucket", example="thermocline key create keys.json"
    ).add_subparsers(metavar="VERB", required=True)
    create = _verb(
        verbs,
        "create",
        about="make a key file with one key",
        example="thermocline key create /etc/thermocline/keys.json\n"
        "thermocline key create /etc/thermocline/keys.json --kms arn:aws:kms:eu-west-1:111122223333:key/1234abcd\n"
        "thermocline key create /etc/thermocline/keys.json --accept-plain --inactive",
    )
    _add_key(create)
    create.add_argument(
        "--accept-plain",
        action="store_true",
        help="also read objects that are not encrypted, for a bucket that has such objects",
    )
    create.add_argument(
        "--inactive",
        action="store_true",
        help="encrypt nothing until every broker has the file (then run key set --active)",
    )
    create.set_defaults(run=_create)
    rotate = _verb(
        verbs,
        "rotate",
        about="add a key that encrypts new objects; the old keys stay, to decrypt older objects",
        example="thermocline key rotate /etc/thermocline/keys.json",
    )
    _add_key(rotate)
    rotate.add_argument(
        "--inactive", action="store_true", help="only add the key; make it active when every broker has the file"
    )
    rotate.set_defaults(run=_rotate)
    change = _verb(
        verbs,
        "set",
        about="set the active key; accept or refuse plain objects",
        example="thermocline key set /etc/thermocline/keys.json --active 2026-11-28\n"
        "thermocline key set /etc/thermocline/keys.json --plain refuse",
    )
    change.add_argument("--active", metavar="ID", help="the key that encrypts new objects")
    change.add_argument("--plain", choices=("accept", "refuse"), help="accept or refuse objects that are not encrypted")
    change.set_defaults(run=_set)
    remove = _verb(
        verbs,
        "remove",
        about="remove a key that no object needs; it is kept in FILE.old",
        example="thermocline key remove /etc/thermocline/keys.json 2025-11-28 --bucket s3://my-bucket/log",
    )
    remove.add_argument("id", metavar="ID")
    remove.add_argument(
        "--bucket", metavar="URL", help="read the end of every object first, and refuse if one is under the key"
    )
    remove.add_argument("--yes", action="store_true", help="do not ask")
    remove.set_defaults(run=_remove)
    restore = _verb(
        verbs,
        "restore",
        about="put a removed key back from FILE.old, for objects that still need it",
        example="thermocline key restore /etc/thermocline/keys.json 2025-11-28",
    )
    restore.add_argument("id", metavar="ID")
    restore.set_defaults(run=_restore)
    show = _verb(
        verbs,
        "list",
        about="list the keys: id, place, and which one is active",
        example="thermocline key list /etc/thermocline/keys.json",
    )
    add_json(show)
    show.set_defaults(run=_list)


def _verb(verbs: Subparsers[Parser], name: str, *, about: str, example: str) -> Parser:
    parser = verbs.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".", example=example)
    parser.add_argument("file", metavar="FILE", help="the key file")
    return parser


def _add_key(parser: Parser) -> None:
    parser.add_argument("--id", metavar="ID", help="id of the new key (default: the date, or DATE-2 …)")
    parser.add_argument("--kms", metavar="KEY", help="id or ARN of an AWS KMS key that keeps the new key wrapped")
    parser.add_argument("--kms-region", metavar="REGION", help="region of the KMS key (default: that of its ARN)")
    parser.add_argument("--kms-endpoint", metavar="URL", help="endpoint of another service with the API of AWS KMS")


def _create(arguments: argparse.Namespace) -> int:
    from coldstore.encryption.key_file import FORMAT, KeyFile

    if arguments.inactive and not arguments.accept_plain:
        raise CommandFailed("--inactive leaves new objects plain, so it needs --accept-plain", Exit.USAGE)
    removed = _removed(arguments.file)
    key_id, entry = _new_key(arguments, taken=removed)
    _refuse_removed(arguments.file, removed, key_id)
    file = KeyFile(FORMAT, None if arguments.inactive else key_id, arguments.accept_plain, {key_id: entry})
    _write(arguments.file, file, replace=False)
    print(f"{arguments.file} has key {key_id}; keep a copy elsewhere: without it nobody can read the bucket")
    return Exit.DONE


def _rotate(arguments: argparse.Namespace) -> int:
    import msgspec

    file, removed = _read(arguments.file), _removed(arguments.file)
    key_id, entry = _new_key(arguments, taken={**removed, **file.keys})
    if key_id in file.keys:
        raise CommandFailed(f"{arguments.file} has a key {key_id} already: give another --id")
    _refuse_removed(arguments.file, removed, key_id)
    active = file.active if arguments.inactive else key_id
    _write(arguments.file, msgspec.structs.replace(file, active=active, keys={**file.keys, key_id: entry}))
    print(f"{arguments.file} has key {key_id}" + ("" if arguments.inactive else ", which is active"))
    return Exit.DONE


def _set(arguments: argparse.Namespace) -> int:
    import msgspec

    file = _read(arguments.file)
    if arguments.active is not None:
        file = msgspec.structs.replace(file, active=arguments.active)
    if arguments.plain is not None:
        file = msgspec.structs.replace(file, accept_plain=arguments.plain == "accept")
    _write(arguments.file, file)
    return _list(arguments)


def _remove(arguments: argparse.Namespace) -> int:
    import msgspec

    file = _read(arguments.file)
    if arguments.id not in file.keys:
        raise CommandFailed(f"{arguments.file} has no key {arguments.id}")
    if arguments.id == file.active:
        raise CommandFailed(f"key {arguments.id} is active: make another one active first")
    if arguments.bucket is not None:
        _refuse_in_use(arguments.bucket, arguments.id)
    if not arguments.yes:
        require_terminal()
        unchecked = "" if arguments.bucket is not None else " (give --bucket URL to look for such objects)"
        confirm(f"Objects under key {arguments.id} cannot be read without it{unchecked}.", arguments.id)
    kept = _keep(arguments.file, arguments.id, file.keys[arguments.id])
    left = {key: entry for key, entry in file.keys.items() if key != arguments.id}
    _write(arguments.file, msgspec.structs.replace(file, keys=left))
    print(f"removed key {arguments.id}; {kept} keeps it: delete that file when no backup of the bucket needs it")
    return _list(arguments)


def _restore(arguments: argparse.Namespace) -> int:
    """The key is readable again, not active. FILE.old keeps it."""
    import msgspec

    file, removed = _read(arguments.file), _removed(arguments.file)
    entry = removed.get(arguments.id)
    if entry is None:
        known = ", ".join(removed) or "none"
        raise CommandFailed(f"{_kept(arguments.file)} has no key {arguments.id}; it has {known}")
    if file.keys.get(arguments.id, entry) != entry:
        raise CommandFailed(f"{arguments.file} has another key {arguments.id}; nothing was changed")
    _write(arguments.file, msgspec.structs.replace(file, keys={**file.keys, arguments.id: entry}))
    print(f"{arguments.file} has key {arguments.id} again: run `thermocline certificate reload` on the brokers")
    return _list(arguments)


def _refuse_in_use(url: str, key_id: str) -> None:
    """Raises CommandFailed if objects of the bucket are under the key, or if the bucket has none: a URL with a typo
    proves nothing."""
    from thermocline.cli.bucket.rewrap import objects_under

    found = objects_under(url, key_id)
    if not found.objects:
        raise CommandFailed(f"{url} has no object of Thermocline: check the URL; nothing was changed", Exit.REFUSED)
    if found.under:
        raise CommandFailed(
            f"{found.under} objects of the bucket are under key {key_id}, such as {found.example}: bring them under "
            "the active key (`thermocline bucket rewrap`), then remove the key; nothing was changed",
            Exit.REFUSED,
        )


def _keep(path: str, key_id: str, entry: KeyEntry) -> str:
    """Add the key to the removed keys beside the key file; returns their file. Raises CommandFailed if the file has
    another key under that id."""
    from coldstore.encryption.key_file import FORMAT, KeyFile

    kept, keys = _kept(path), _removed(path)
    if keys.setdefault(key_id, entry) != entry:
        raise CommandFailed(f"{kept} has another key {key_id}: move that file elsewhere first; nothing was changed")
    _write(kept, KeyFile(FORMAT, key_id, False, keys))
    return kept


def _kept(path: str) -> str:
    """The file of the keys that were removed from the key file `path`."""
    return f"{path}.old"


def _removed(path: str) -> dict[str, KeyEntry]:
    import os

    return dict(_read(_kept(path)).keys) if os.path.exists(_kept(path)) else {}


def _refuse_removed(path: str, removed: Collection[str], key_id: str) -> None:
    """Raises CommandFailed if a removed key has the id, because objects of a backup name their key by its id only."""
    if key_id in removed:
        raise CommandFailed(f"{_kept(path)} has a removed key {key_id}: give another --id")


def _list(arguments: argparse.Namespace) -> int:
    file = _read(arguments.file)
    if getattr(arguments, "json", False):
        for key_id, entry in file.keys.items():
            kms = None if entry.aws_kms is None else entry.aws_kms.key_id
            print(
                json_line(
                    {"id": key_id, "active": key_id == file.active, "kms": kms, "accept_plain": file.accept_plain}
                )
            )
        return Exit.DONE
    for key_id, entry in file.keys.items():
        place = "in the file" if entry.aws_kms is None else f"wrapped by {entry.aws_kms.key_id}"
        print(f"{'active' if key_id == file.active else '':6} {key_id:32} {place}")
    if file.active is None:
        print("no key is active: new objects are not encrypted")
    print(f"objects that are not encrypted are {'read' if file.accept_plain else 'refused'}")
    return Exit.DONE


def _new_key(arguments: argparse.Namespace, taken: Collection[str]) -> tuple[str, KeyEntry]:
    """A new key: its id, by default one that is not in `taken`, and its entry in the key file. Raises InvalidRequest,
    AccessRefused, StoreUnavailable."""
    from datetime import UTC, datetime

    from coldstore.encryption.key_file import KeyEntry, plain_entry
    from coldstore.encryption.keys import KEY_BYTES, WrappingKey
    from seams.clock import SystemClock
    from seams.rng import SystemRng

    today = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC).strftime("%Y-%m-%d")
    key_id, secret = arguments.id or _free(today, taken), SystemRng().random_bytes(KEY_BYTES)
    WrappingKey(key_id, secret)
    if arguments.kms is None:
        return key_id, plain_entry(secret)
    from coldstore.encryption.kms import wrapped_by_aws

    wrapped = wrapped_by_aws(secret, key_id, arguments.kms, arguments.kms_region, arguments.kms_endpoint)
    return key_id, KeyEntry(aws_kms=wrapped)


def _free(day: str, taken: Collection[str]) -> str:
    """The day, or the day with the first number from 2 on that no key has."""
    return next(name for n in count(1) if (name := day if n == 1 else f"{day}-{n}") not in taken)


def _read(path: str) -> KeyFile:
    from coldstore.encryption.key_file import load_file

    return load_file(path)


def _write(path: str, file: KeyFile, *, replace: bool = True) -> None:
    """Raises KeyFileRefused for a file that contradicts itself; the old file is then unchanged."""
    from coldstore.encryption.key_file import check, encode
    from seams.files.private_file import write_private

    check(file, path)
    try:
        write_private(path, encode(file), replace=replace)
    except FileExistsError as there:
        raise CommandFailed(f"{path} exists: `thermocline key rotate` adds a key to it") from there
    except OSError as failed:
        raise CommandFailed(plain_words(failed)) from failed
