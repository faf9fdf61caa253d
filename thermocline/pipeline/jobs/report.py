"""The summary table of a job. Whole numbers have commas at the thousands."""

from __future__ import annotations

from collections.abc import Sequence

Cell = str | int | float | bool | None


def summary_table(lines: Sequence[tuple[str, Cell]]) -> str:
    """Labels and values in two columns; lines with the value None are left out."""
    shown = [(label, _plain(cell)) for label, cell in lines if cell is not None]
    width = max((len(label) for label, _ in shown), default=0)
    return "\n".join(f"{label:<{width}}  {cell}".rstrip() for label, cell in shown)


def _plain(cell: Cell) -> str:
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
