"""Limits of one request: how many changes it may make, and how long it waits.

Too many changes are refused before the first change is made. A request's time-out counts for all its changes together.
The time-out ends the wait for a change that has begun, and cancels the other changes, as in Kafka. Changes of one
request wait for the controller concurrently, because it commits them together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sized
from itertools import islice
from typing import Final, TypeVar

from broker.error_codes import ErrorCode
from broker.errors import ApiError
from seams.loop.turns import next_turn

CHANGES_PER_REQUEST_MAX: Final = 1_000
_TOGETHER_MAX: Final = 100  # more changes than one commit takes; their start takes 3 ms of the loop
_TIMEOUT_MAX_S: Final = 120.0

R = TypeVar("R")


def deadline_s(timeout_ms: int) -> float:
    """The event loop's time at which a request with this time-out is answered, at most 120 s from now."""
    return asyncio.get_running_loop().time() + min(max(timeout_ms, 0) / 1000, _TIMEOUT_MAX_S)


async def within(until_s: float, change: Callable[[], Awaitable[R]]) -> R:
    """Make a change and wait for it up to the loop's time `until_s`. Raises as `change`, and TimeoutError.

    When the wait ends, the controller drops a change that it has not begun.
    """
    if until_s <= asyncio.get_running_loop().time():
        raise TimeoutError("the request timed out before it was begun; nothing was changed")
    try:
        async with asyncio.timeout_at(until_s):
            return await change()
    except TimeoutError:
        raise TimeoutError("the request timed out while it was carried out; check whether it took effect") from None


def refuse_flood(items: Sized) -> None:
    """Raise ApiError when there are too many changes."""
    if len(items) > CHANGES_PER_REQUEST_MAX:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"the request makes {len(items)} changes; at most {CHANGES_PER_REQUEST_MAX} are allowed",
        )


async def together(changes: Iterable[Awaitable[None]]) -> None:
    """Await all changes, up to 100 concurrently. Each change handles its own errors; an exception is a bug and is
    raised."""
    left = iter(changes)
    while some := list(islice(left, _TOGETHER_MAX)):
        await asyncio.gather(*some)
        await next_turn()
