"""Backoff, budget and deadline of retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstore.object_store import ObjectMissing, StoreUnavailable
from coldstore.retry import RetryBudget, wait_s, with_retry
from logformat.errors import Retryable
from seams.rng import SeededRng


class FakeTime:
    """A clock that moves only when somebody sleeps on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.sleeps: list[float] = []

        async def sleep(seconds: float) -> None:
            self.sleeps.append(seconds)
            self.now_s += seconds

        monkeypatch.setattr(asyncio, "sleep", sleep)

    def wall_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return self.now_s

    def boottime_s(self) -> float:
        return self.now_s


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    return FakeTime(monkeypatch)


def failing(
    times: int, error: Callable[[], Exception] = lambda: StoreUnavailable("made up")
) -> tuple[list[int], Callable]:
    calls: list[int] = []

    async def attempt() -> str:
        calls.append(len(calls))
        if len(calls) <= times:
            raise error()
        return "done"

    return calls, attempt


@given(st.integers(1, 1000), st.floats(-1, 1))
def test_waits_double_from_half_a_second_to_thirty_with_a_fifth_of_jitter(failures: int, draw: float) -> None:
    """The figures are the contract with the store: never sooner, never later."""
    wait = wait_s(failures, draw)
    middle = min(0.5 * 2 ** (failures - 1), 30.0)
    assert 0.8 * middle <= wait <= 1.2 * middle + 1e-9


def test_it_tries_until_it_succeeds(fake_time: FakeTime) -> None:
    """Three failures cost three growing waits, and each was reported."""
    calls, attempt = failing(3)
    heard: list[Retryable] = []
    rng = SeededRng(1)
    result = asyncio.run(with_retry(attempt, clock=fake_time, rng=rng, deadline_s=60, failed=heard.append))
    assert result == "done" and len(calls) == 4 and len(heard) == 3
    assert [round(wait * 2) / 2 for wait in fake_time.sleeps] == [0.5, 1.0, 2.0]
    assert len(set(fake_time.sleeps)) == 3


def test_what_is_not_retryable_comes_out_at_once(fake_time: FakeTime) -> None:
    """404 is an answer."""
    calls, attempt = failing(9, lambda: ObjectMissing("gone"))
    with pytest.raises(ObjectMissing):
        asyncio.run(with_retry(attempt, clock=fake_time, rng=SeededRng(1), deadline_s=60))
    assert len(calls) == 1 and not fake_time.sleeps


def test_the_deadline_ends_it(fake_time: FakeTime) -> None:
    """It does not begin a wait that it could not finish, and raises the last failure."""
    calls, attempt = failing(1 << 30)
    with pytest.raises(StoreUnavailable):
        asyncio.run(with_retry(attempt, clock=fake_time, rng=SeededRng(1), deadline_s=100))
    assert 80 < sum(fake_time.sleeps) <= 100 and len(calls) == len(fake_time.sleeps) + 1


def test_a_store_that_refuses_everything_is_soon_left_alone(fake_time: FakeTime) -> None:
    """The budget: 1 000 callers of a dead store make little more than 1 000 requests; successes earn retries back."""
    budget = RetryBudget(capacity=50, cost=5)
    total = 0
    for _ in range(1000):
        calls, attempt = failing(1 << 30)
        with pytest.raises(StoreUnavailable):
            asyncio.run(with_retry(attempt, clock=fake_time, rng=SeededRng(1), deadline_s=1e9, budget=budget))
        total += len(calls)
    assert total == 1010
    for _ in range(5):
        asyncio.run(with_retry(failing(0)[1], clock=fake_time, rng=SeededRng(1), deadline_s=1, budget=budget))
    calls, attempt = failing(1)
    asyncio.run(with_retry(attempt, clock=fake_time, rng=SeededRng(1), deadline_s=1e9, budget=budget))
    assert len(calls) == 2
