"""Output of commands: tables for people, JSON lines for programs, progress for a terminal.

Results go to stdout, everything else to stderr; progress only if stderr is a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

Cell = str | int | float | bool | None | Sequence[object]


def visible(text: str) -> str:
    """The text with control characters as escapes (`\\x1b`). Clients choose names of groups, transactions and clients,
    and a terminal would obey an escape sequence in them."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def json_line(row: Mapping[str, Cell]) -> str:
    """One JSON object, keys in the given order, printable non-ASCII text unescaped."""
    line = json.dumps(row, ensure_ascii=False, separators=(", ", ": "))
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """Columns as wide as their widest cell; those in `right` are right-aligned. Control characters are escaped."""
    rows = [[*map(visible, row)] for row in rows]
    widths = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = (
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(header, row, widths, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def plain(cell: Cell) -> str:
    """A table cell: `-` for None."""
    return "-" if cell is None else str(cell)


class ProgressLine:
    """One line on stderr that is overwritten; silent unless stderr is a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty()
        self._width = 0

    def show(self, text: str) -> None:
        if self._shown:
            self._stream.write("\r" + text.ljust(self._width))
            self._stream.flush()
            self._width = len(text)

    def done(self) -> None:
        if self._shown and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0


def note(text: str) -> None:
    """A line on stderr, terminal or not."""
    print(text, file=sys.stderr, flush=True)
