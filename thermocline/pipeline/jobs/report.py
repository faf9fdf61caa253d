"""What a job says when it is done: rows of a summary, for people and for programs.

Owns the layout. Must not know what any job does.
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


def show_bytes(count: float) -> str:
    """`1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def show_rate(count: float, seconds: float) -> str:
    """`123.4 MB/s`, of 10^6 bytes."""
    return f"{count / 1e6 / seconds:.0f} MB/s" if seconds > 0 else "-"


def show_seconds(seconds: float) -> str:
    """`3.2 s`, `5 m 07 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} m {int(seconds) % 60:02d} s"


def _plain(cell: Cell) -> str:
    return f"{cell:,}".replace(",", " ") if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
