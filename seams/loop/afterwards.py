"""Calls deferred to the end of a chain of callbacks, in the same turn of the loop.

Code that answers many requests at once opens a chain. Code that is called several times within a chain but should act
once defers its action. Deferred calls run in order, after the outermost chain; without a chain they run in the loop's
next turn. `do` never runs a call itself, so no caller is re-entered. If a call raises, the loop's exception handler
gets the error, and the other calls still run. For one loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Afterwards:
    """`with afterwards:` is a chain; chains may nest."""

    __slots__ = ("_calls", "_depth")

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []
        self._depth = 0

    def do(self, call: Callable[[], object]) -> None:
        """Run `call` at the end of the current chain."""
        if self._depth:
            self._calls.append(call)
        else:
            asyncio.get_running_loop().call_soon(call)

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._calls:
            calls, self._calls = self._calls, []
            for call in calls:
                try:
                    call()
                except Exception as bug:  # noqa: BLE001 - as after a callback of the loop's own
                    asyncio.get_running_loop().call_exception_handler(
                        {"message": f"{call!r} failed at the end of a chain of callbacks", "exception": bug}
                    )
