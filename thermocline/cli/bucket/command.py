"""`thermocline bucket`: flags of the sub-commands, with or without a running broker.

Only `gc --delete`, `rewrap` and the probe's scratch objects change a bucket.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from thermocline.cli.terminal.arguments import add_json, natural

if TYPE_CHECKING:
    from thermocline.cli.terminal.arguments import Parser, Subparsers

_URL = "file:///abs/dir or s3://bucket[/prefix][?endpoint=…&region=…&path_style=true]"


def register(nouns: Subparsers[Parser]) -> None:
    verbs = nouns.add_parser(
        "bucket", help="look into a bucket, with no broker", example="thermocline bucket ls s3://my-bucket/log"
    ).add_subparsers(metavar="VERB", required=True)
    _register_contents(verbs)
    _register_checks(verbs)
    _register_rewrap(verbs)


def _verb(verbs: Subparsers[Parser], name: str, *, about: str, example: str) -> Parser:
    parser = verbs.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".", example=example)
    parser.add_argument("url", metavar="URL", help=_URL)
    return parser


def _register_contents(verbs: Subparsers[Parser]) -> None:
    ls = _verb(
        verbs,
        "ls",
        about="list the segment objects that the manifests name",
        example="thermocline bucket ls file:///var/lib/thermocline-bucket --topic orders --json",
    )
    ls.add_argument("--topic", metavar="T", help="this topic only, by name or id")
    ls.add_argument("--partition", type=natural, metavar="P")
    add_json(ls)
    ls.set_defaults(run=_ls)
    dump = _verb(
        verbs,
        "dump",
        about="print what is in one object",
        example="thermocline bucket dump file:///var/lib/thermocline-bucket KEY --log > 00000000000000000000.log",
    )
    dump.add_argument("key", metavar="KEY", help="as `bucket ls` prints it")
    what = dump.add_mutually_exclusive_group()
    for name, about in (
        ("footer", "statistics, epochs, chunks (the default)"),
        ("batches", "a line for each batch"),
        ("records", "a line for each batch and record"),
        ("log", "the original log bytes, nothing else"),
    ):
        what.add_argument(f"--{name}", dest="what", action="store_const", const=name, help=about)
    dump.set_defaults(run=_dump, what="footer")
    manifest = _verb(
        verbs,
        "manifest",
        about="print the manifest of a partition",
        example="thermocline bucket manifest s3://my-bucket/log --topic orders --partition 0",
    )
    manifest.add_argument("--topic", metavar="T", required=True, help="name or id")
    manifest.add_argument("--partition", type=natural, metavar="P", required=True)
    add_json(manifest)
    manifest.set_defaults(run=_manifest)


def _register_checks(verbs: Subparsers[Parser]) -> None:
    probe = _verb(
        verbs,
        "probe",
        about="check that a store meets every condition that a log needs",
        example="thermocline bucket probe 's3://my-bucket?endpoint=http://127.0.0.1:9000' --race",
    )
    probe.add_argument(
        "--race", action="store_true", help="also test racing writers, as the first start on a bucket does"
    )
    probe.set_defaults(run=_probe)
    verify = _verb(
        verbs,
        "verify",
        about="check that all objects in the manifests exist, complete and without a gap; exit 5 otherwise",
        example="thermocline bucket verify s3://my-bucket/log --deep",
    )
    verify.add_argument("--topic", metavar="T", help="this topic only, by name or id")
    verify.add_argument("--deep", action="store_true", help="read every byte and check every batch")
    add_json(verify)
    verify.set_defaults(run=_verify)
    gc = _verb(
        verbs,
        "gc",
        about="list objects that no manifest names, and delete those that no manifest can name later",
        example="thermocline bucket gc s3://my-bucket/log --delete",
    )
    gc.add_argument("--delete", action="store_true", help="delete the deletable objects (without it: only list them)")
    gc.add_argument(
        "--delete-only-copies",
        action="store_true",
        help="with --delete: also kept objects, which may be the only copies of records",
    )
    add_json(gc)
    gc.set_defaults(run=_gc)


def _register_rewrap(verbs: Subparsers[Parser]) -> None:
    rewrap = _verb(
        verbs,
        "rewrap",
        about="encrypt the data key of every object with the key file's active key, also while brokers run",
        example="thermocline bucket rewrap 's3://my-bucket/log?key_file=/etc/thermocline/keys.json' --dry-run",
    )
    rewrap.add_argument("--dry-run", action="store_true", help="only count the objects under each key")
    add_json(rewrap)
    rewrap.set_defaults(run=_rewrap)


def _rewrap(arguments: argparse.Namespace) -> int:
    from thermocline.cli.bucket.rewrap import rewrap

    return rewrap(arguments.url, change=not arguments.dry_run, as_json=arguments.json)


def _ls(arguments: argparse.Namespace) -> int:
    from thermocline.cli.bucket.contents import ls

    return ls(arguments.url, arguments.topic, arguments.partition, as_json=arguments.json)


def _dump(arguments: argparse.Namespace) -> int:
    from thermocline.cli.bucket.contents import dump

    return dump(arguments.url, arguments.key, arguments.what)


def _manifest(arguments: argparse.Namespace) -> int:
    from thermocline.cli.bucket.contents import manifest

    return manifest(arguments.url, arguments.topic, arguments.partition, as_json=arguments.json)


def _probe(arguments: argparse.Namespace) -> int:
    from thermocline.cli.bucket.checks import probe_store

    return probe_store(arguments.url, with_race=arguments.race)


def _verify(arguments: argparse.Namespace) -> int:
    from thermocline.cli.bucket.checks import verify

    return verify(arguments.url, arguments.topic, deep=arguments.deep, as_json=arguments.json)


def _gc(arguments: argparse.Namespace) -> int:
    from thermocline.cli.bucket.checks import collect

    return collect(
        arguments.url, delete=arguments.delete, only_copies=arguments.delete_only_copies, as_json=arguments.json
    )
