"""`thermocline log`: prints a local log file. It only reads, so a broker may append at the same time."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from thermocline.cli.terminal.arguments import add_json
from thermocline.cli.terminal.outcome import CommandFailed, Exit

if TYPE_CHECKING:
    from thermocline.cli.terminal.arguments import Parser, Subparsers


def register(nouns: Subparsers[Parser]) -> None:
    verbs = nouns.add_parser(
        "log", help="look into a local log file", example="thermocline log dump 00000000000000000000.log"
    ).add_subparsers(metavar="VERB", required=True)
    dump = verbs.add_parser(
        "dump",
        help="print the batches and records of a .log file",
        description="Print every batch and record of a .log file (Kafka's too), a line each, checking every CRC.",
        example="thermocline log dump /var/lib/thermocline/orders-0/00000000000000000000.log --batches",
    )
    dump.add_argument("file", metavar="FILE")
    dump.add_argument("--batches", action="store_true", help="batches only")
    add_json(dump)
    dump.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import mmap
    import os

    from logformat.record_batch import CorruptBatch
    from thermocline.cli.bucket.batch_lines import BatchLines

    if os.path.isdir(arguments.file):
        raise CommandFailed(f"{arguments.file} is a directory; name one of the .log files in it", Exit.USAGE)
    with open(arguments.file, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:  # an empty file cannot be mapped
            return Exit.DONE
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            try:
                for line in BatchLines(records=not arguments.batches, as_json=arguments.json).of(view):
                    print(line)
            except CorruptBatch as damaged:
                raise CommandFailed(f"{arguments.file}: {damaged}") from damaged
    return Exit.DONE
