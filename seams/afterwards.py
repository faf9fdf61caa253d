"""What a chain of callbacks leads to, done once at its end, in the same turn of the loop.

Owns the chain that runs: whoever answers many at once opens one, whoever hears of it several times on the way and has
to act only once asks here. Always true: what is asked for is done once the outermost chain is over, in the order asked,
or, where none runs, in the loop's next turn; never while it is asked for, so that nobody is called back in the middle
of something; one that raises keeps no other from its turn, and the loop's exception handler hears of it. For one loop.
Must not know what is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Afterwards:
    """`with afterwards:` is a chain; it may lie within another."""

    __slots__ = ("_calls", "_depth")

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []
        self._depth = 0

    def do(self, call: Callable[[], object]) -> None:
        """Have `call` done when the chain that runs is over."""
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
