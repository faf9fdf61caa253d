"""How long work shares the loop: it is cut into turns.

Owns how many rows one turn has. Always true: between two turns every other connection is served. Must not know what a
row is. A row costs 1 to 10 µs, so that a turn stays around 5 ms; who has dearer or cheaper rows says how many.
"""

from __future__ import annotations

import asyncio
from typing import Final

ROWS_PER_TURN: Final = 1_000


class Turns:
    """Counts rows: `if turns.over(): await next_turn()` after each."""

    __slots__ = ("_left", "_rows")

    def __init__(self, rows: int = ROWS_PER_TURN) -> None:
        self._rows = rows
        self._left = rows

    def over(self, rows: int = 1) -> bool:
        """Count `rows` more; whether they ended the turn."""
        self._left -= rows
        if self._left > 0:
            return False
        self._left = self._rows
        return True


async def next_turn() -> None:
    """Let the loop serve everybody else once."""
    await asyncio.sleep(0)
