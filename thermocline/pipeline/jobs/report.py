"""What a job says when it is done: rows of a summary, for people and for programs.

Owns the layout. Always true: a number of things has commas at the thousands. Must not know what any job does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Cell = str | int | float | bool | None


class Reported(Protocol):
    """A job's outcome that can be shown."""

    def lines(self) -> Sequence[tuple[str, Cell]]:
        """Label and value, in the order to be read."""
        ...


def summary_table(outcome: Reported) -> str:
    """Two columns; lines without anything to say (None) are left out."""
    shown = [(label, _plain(cell)) for label, cell in outcome.lines() if cell is not None]
    width = max((len(label) for label, _ in shown), default=0)
    return "\n".join(f"{label:<{width}}  {cell}".rstrip() for label, cell in shown)


def _plain(cell: Cell) -> str:
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
