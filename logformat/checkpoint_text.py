"""The frame of Kafka's text checkpoints: a version line `0`, a line with the count, then one line per entry.

Parsed entries have exactly the expected columns and count. Numbers are plain decimal ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from logformat.errors import Corrupt
from logformat.record_batch import Buffer
from logformat.values import NewerFormat

VERSION: Final = 0
_INTEGER: Final = re.compile(r"[0-9]{1,19}")


class Line(NamedTuple):
    """One entry of a checkpoint, split at white space. `file` names the file in messages."""

    file: str
    columns: tuple[str, ...]

    def integer(self, column: int, maximum: int) -> int:
        """The column as a number in 0..maximum; raises Corrupt otherwise."""
        return parse_integer(self.file, self.columns[column], maximum)


def parse_integer(file: str, text: str, maximum: int) -> int:
    """Decimal digits only, 0..maximum; raises Corrupt otherwise."""
    if _INTEGER.fullmatch(text) is None or int(text) > maximum:
        raise Corrupt(f"{file}: {text[:40]!r} is not a number in 0..{maximum}")
    return int(text)


def format_checkpoint(entries: Iterable[str]) -> bytes:
    lines = list(entries)
    return "".join(f"{line}\n" for line in (str(VERSION), str(len(lines)), *lines)).encode("ascii")


def parse_checkpoint(data: Buffer, file: str, columns: int) -> list[Line]:
    """Entries of a checkpoint file. An empty file, which Kafka leaves before its first write, has none.

    Raises Corrupt for malformed text, NewerFormat for another version."""
    try:
        text = bytes(data).decode("ascii")
    except UnicodeDecodeError as error:
        raise Corrupt(f"{file}: byte {error.start} is not ASCII") from None
    if not text:
        return []
    *lines, rest = text.split("\n")
    if rest or len(lines) < 2:
        raise Corrupt(f"{file}: cut short")
    version = parse_integer(file, lines[0], 2**31 - 1)
    if version != VERSION:
        raise NewerFormat(f"{file}: version {version}, but this program knows {VERSION}")
    count = parse_integer(file, lines[1], 2**31 - 1)
    if count != len(lines) - 2:
        raise Corrupt(f"{file}: claims {count} entries and has {len(lines) - 2}")
    entries = [Line(file, tuple(line.split())) for line in lines[2:]]
    for entry in entries:
        if len(entry.columns) != columns:
            raise Corrupt(f"{file}: {' '.join(entry.columns)[:80]!r} does not have {columns} columns")
    return entries
