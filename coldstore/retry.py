"""Retries with backoff and jitter, a deadline, and a budget.

Only `Retryable` failures are retried. Waits grow from 0.5 s to 30 s, ± 20 %. A retry costs a token and successes earn
them back slowly, so a store that refuses every call gets little more than its normal load (as in the AWS SDKs). A
repeated write must use a new object's name; a root's outcome is read back, never retried here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from logformat.errors import Retryable
from seams.clock import Clock
from seams.rng import Rng

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Seconds between attempts: `first_s`, doubled up to `longest_s`, times 1 ± `jitter`."""

    first_s: float = 0.5
    longest_s: float = 30.0
    jitter: float = 0.2

    def wait_s(self, failures: int, draw: float) -> float:
        """The wait after `failures` consecutive failures (from 1); `draw` in [-1, 1] places it within the jitter."""
        doubled = self.first_s * 2.0 ** min(failures - 1, 32)
        return min(doubled, self.longest_s) * (1 + self.jitter * draw)


class RetryBudget:
    """Tokens shared by the callers of one store: a retry takes `cost`, a success returns one, up to `capacity`."""

    def __init__(self, capacity: float = 500.0, cost: float = 5.0) -> None:
        self._capacity = self._tokens = capacity
        self._cost = cost

    def take(self) -> bool:
        """Pay for one retry; False if the budget is spent."""
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
    policy: RetryPolicy = RetryPolicy(),
    budget: RetryBudget | None = None,
    failed: Callable[[Retryable], None] | None = None,
) -> T:
    """Run `attempt()` until it succeeds, `deadline_s` passed, or the budget is spent.

    Raises the last failure, or at once any that is not Retryable. `failed` gets each failure that is retried. The
    deadline bounds waiting, not a running attempt, which has its own."""
    end_s = clock.monotonic_s() + deadline_s
    failures = 0
    while True:
        try:
            result = await attempt()
        except Retryable as failure:
            failures += 1
            wait_s = policy.wait_s(failures, rng.uniform(-1.0, 1.0))
            if clock.monotonic_s() + wait_s >= end_s or (budget is not None and not budget.take()):
                raise
            if failed is not None:
                failed(failure)
            await asyncio.sleep(wait_s)
        else:
            if budget is not None:
                budget.success()
            return result
