"""Cuts long work on the loop into turns; between two turns every other connection is served.

A row usually costs 1 to 10 µs, so a turn takes about 5 ms. Work with cheaper or more expensive rows sets its own number
of rows per turn.
"""

from __future__ import annotations

import asyncio
from typing import Final

ROWS_PER_TURN: Final = 1_000


class Turns:
    """Counts rows: call `if turns.over(): await next_turn()` after each row."""

    __slots__ = ("_left", "_rows")

    def __init__(self, rows: int = ROWS_PER_TURN) -> None:
        self._rows = rows
        self._left = rows

    def over(self, rows: int = 1) -> bool:
        """Count `rows` more; returns whether they ended the turn."""
        self._left -= rows
        if self._left > 0:
            return False
        self._left = self._rows
        return True


async def next_turn() -> None:
    """Yield: let the loop run its other callbacks once."""
    await asyncio.sleep(0)


class OneATurn:
    """Lets one piece of work that takes a turn by itself begin in each turn of the loop."""

    __slots__ = ("_has_begun",)

    def __init__(self) -> None:
        self._has_begun = False

    def begin(self) -> bool:
        """Whether to begin now. False: such work began already in this turn; ask again in a later turn."""
        if self._has_begun:
            return False
        self._has_begun = True
        asyncio.get_running_loop().call_soon(self._end)
        return True

    def _end(self) -> None:
        self._has_begun = False
