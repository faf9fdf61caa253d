"""Retries with backoff and jitter, a deadline, and a budget.

Only `Retryable` failures are retried. Waits grow from 0.5 s to 30 s, ± 20 %. As in the AWS SDKs, a retry costs tokens,
and a success returns one. So a store that refuses every call gets little more than its normal load. A repeated write
must use a new object's name. Writes of a root are not retried here: their outcome is read back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from logformat.errors import Retryable
from seams.clock import Clock
from seams.rng import Rng

T = TypeVar("T")


def wait_s(failures: int, draw: float) -> float:
    """The wait after `failures` consecutive failures (1 or more). `draw` in [-1, 1] selects its place within the
    jitter."""
    return min(0.5 * 2.0 ** min(failures - 1, 32), 30.0) * (1 + 0.2 * draw)


class RetryBudget:
    """Tokens that the callers of one store share. A retry takes `cost` tokens. A success returns one, up to
    `capacity`."""

    def __init__(self, capacity: float = 500.0, cost: float = 5.0) -> None:
        self._capacity = self._tokens = capacity
        self._cost = cost

    def take(self) -> bool:
        """Take the tokens of one retry. Returns False if there are not enough."""
        if self._tokens < self._cost:
            return False
        self._tokens -= self._cost
        return True

    def success(self) -> None:
        self._tokens = min(self._capacity, self._tokens + 1)


async def with_retry(
    attempt: Callable[[], Awaitable[T]],
    *,
    clock: Clock,
    rng: Rng,
    deadline_s: float,
    budget: RetryBudget | None = None,
    failed: Callable[[Retryable], None] | None = None,
) -> T:
    """Run `attempt()` until it succeeds, `deadline_s` has passed, or the budget is used up.

    Raises the last failure. A failure that is not Retryable is raised at once. `failed` gets each failure that is
    retried. The deadline bounds only the waits; an attempt has a deadline of its own."""
    end_s = clock.monotonic_s() + deadline_s
    failures = 0
    while True:
        try:
            result = await attempt()
        except Retryable as failure:
            failures += 1
            pause_s = wait_s(failures, rng.uniform(-1.0, 1.0))
            if clock.monotonic_s() + pause_s >= end_s or (budget is not None and not budget.take()):
                raise
            if failed is not None:
                failed(failure)
            await asyncio.sleep(pause_s)
        else:
            if budget is not None:
                budget.success()
            return result
