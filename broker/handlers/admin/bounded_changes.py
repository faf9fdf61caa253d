"""What one request may change, and how long it waits: bounded in number, bounded in time, asked together.

Always true: too many changes are refused before the first is made; a request's time-out counts for all that it names
together, and ends the wait of each, never a change that began; what has not begun by then is not done, as in Kafka.
Changes of one request wait for the controller side by side, because it commits together what waits together. Must not
know what a change is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sized
from itertools import islice
from typing import Final, TypeVar

from broker.error_codes import ErrorCode
from broker.errors import ApiError
from seams.turns import next_turn

CHANGES_PER_REQUEST_MAX: Final = 1_000
_TOGETHER_MAX: Final = 100  # more than one commit takes; begun in one go, they hold the loop for 3 ms

R = TypeVar("R")


async def within(until_s: float, change: Callable[[], Awaitable[R]]) -> R:
    """Ask for an admin change and wait for it up to the loop's time `until_s`. Raises as `change`, and TimeoutError.

    The controller takes back what it has not begun when nobody waits any more, and finishes what it has.
    """
    if until_s <= asyncio.get_running_loop().time():
        raise TimeoutError("not begun: the request's time was over before its turn came")
    try:
        async with asyncio.timeout_at(until_s):
            return await change()
    except TimeoutError:
        raise TimeoutError("not done within the request's time; look whether it came true") from None


def refuse_flood(items: Sized) -> None:
    """Too many changes in one request: refused before the first is made."""
    if len(items) > CHANGES_PER_REQUEST_MAX:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION, f"{len(items)} changes in one request, at most {CHANGES_PER_REQUEST_MAX}"
        )


async def together(changes: Iterable[Awaitable[None]]) -> None:
    """Await all, some at a time, side by side. Each answers for itself: what one raises is a bug, and comes out."""
    left = iter(changes)
    while some := list(islice(left, _TOGETHER_MAX)):
        await asyncio.gather(*some)
        await next_turn()
