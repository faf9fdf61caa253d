"""Work that runs once, and the slots it runs in: bounds, order, cancellation."""

from __future__ import annotations

import asyncio

import pytest

from logformat.errors import Retryable
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.support.fast_loop import FastClock, run_fast
from tiering.reading.limits import ReadLimits
from tiering.reading.single_flight import KEEP_FAILURE_S, ReadSlots, SingleFlight


def flights(tasks: Tasks) -> SingleFlight[int]:
    return SingleFlight(tasks, FastClock(), SeededRng(1), ReadLimits())  # type: ignore[arg-type]


async def test_one_job_for_all_who_want_it_and_a_failure_for_the_next_asker_only() -> None:
    """Joined, done without an error on the future, told once, then forgotten."""
    jobs = flights(Tasks())
    runs = []

    async def run() -> None:
        runs.append(1)
        await asyncio.sleep(1)
        raise Retryable("no")

    futures = [jobs.start(5, run, asked=True) for _ in range(3)]
    assert len(runs) <= 1 and 5 in jobs
    await asyncio.gather(*futures)
    assert len(runs) == 1 and 5 not in jobs and jobs.failed(5)
    assert str(jobs.take_failure(5)) == "no"
    assert jobs.take_failure(5) is None


async def test_an_old_failure_is_no_news() -> None:
    """Nobody came for half a minute: the next asker starts anew instead of hearing of the past."""
    jobs = flights(Tasks())

    async def run() -> None:
        raise Retryable("no")

    await jobs.start(1, run, asked=True)
    await asyncio.sleep(KEEP_FAILURE_S + 1)
    assert not jobs.failed(1) and jobs.take_failure(1) is None


async def test_the_failure_of_work_ahead_is_told_to_nobody() -> None:
    """It is remembered, so that it is not tried again and again; whoever asks starts anew and hears of today."""
    jobs = flights(Tasks())
    failures = [Retryable("no")]

    async def run() -> None:
        if failures:
            raise failures.pop()

    await jobs.start(1, run)
    assert jobs.failed(1) and jobs.take_failure(1) is None
    await jobs.finished(1, run)
    assert not jobs.failed(1)


async def test_a_bug_in_a_job_is_reported_and_its_waiters_are_told() -> None:
    """No unknown exception may leave a reader waiting, or asking in a circle."""
    reports: list[BaseException] = []
    jobs = flights(Tasks(lambda _name, failure: reports.append(failure)))

    async def run() -> None:
        raise MemoryError

    await jobs.start(1, run, asked=True)
    await asyncio.sleep(0)
    assert isinstance(reports[0], MemoryError)
    assert isinstance(jobs.take_failure(1), Retryable)


async def test_a_waiter_that_cancels_the_shared_future_takes_nobody_with_it() -> None:
    """The job goes on, and the next one to ask gets a future that becomes done."""
    jobs = flights(Tasks())
    ended = []

    async def run() -> None:
        await asyncio.sleep(1)
        ended.append(1)

    jobs.start(1, run).cancel()
    await jobs.start(1, run)
    assert ended == [1]


async def test_an_inner_wait_outlives_a_waiter_that_cancels() -> None:
    """Work that builds on other work waits for its end, not for a future that a client may cancel."""
    jobs = flights(Tasks())
    ended = []

    async def run() -> None:
        await asyncio.sleep(1)
        ended.append(1)

    inner = asyncio.get_running_loop().create_task(jobs.finished(1, run))
    await asyncio.sleep(0.5)
    jobs.start(1, run, asked=True).cancel()
    await inner
    assert ended == [1]


async def test_closing_ends_every_wait_and_starts_nothing() -> None:
    """A closed owner: futures are done, new work is refused with a retriable error."""
    tasks = Tasks()
    jobs = flights(tasks)

    async def run() -> None:
        await asyncio.sleep(1000)

    waiting = jobs.start(1, run)
    await asyncio.sleep(0)
    await tasks.close()
    assert waiting.done()
    with pytest.raises(Retryable):
        jobs.start(2, run)


async def test_slots_bound_how_many_and_how_many_bytes() -> None:
    """Never more than either, in the order asked; one that is larger than all runs alone."""
    slots = ReadSlots(slots_max=3, bytes_max=100)
    running: list[int] = []
    order: list[int] = []
    most = [0, 0]

    async def work(number: int, nbytes: int) -> None:
        await slots.take(nbytes)
        running.append(nbytes)
        order.append(number)
        most[0] = max(most[0], len(running))
        if len(running) > 1:
            most[1] = max(most[1], sum(running))
        await asyncio.sleep(1)
        running.remove(nbytes)
        slots.give_back(nbytes)

    async with asyncio.TaskGroup() as group:
        for number, nbytes in enumerate([10, 20, 30, 90, 250, 5, 5, 5]):
            group.create_task(work(number, nbytes))
    assert most[0] == 3 and most[1] <= 100
    assert order == sorted(order)
    assert slots.taken == 0 and slots.waiting == 0


def test_cancelling_in_the_queue_loses_no_slot() -> None:
    """Whatever moment a waiter gives up at, the slots are all free in the end and the others get their turn."""

    async def scenario(cancel_at: int) -> None:
        slots = ReadSlots(slots_max=1, bytes_max=100)
        done: list[int] = []

        async def work(number: int) -> None:
            await slots.take(10)
            try:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                done.append(number)
            finally:
                slots.give_back(10)

        tasks = [asyncio.get_running_loop().create_task(work(number)) for number in range(4)]
        for _ in range(cancel_at):
            await asyncio.sleep(0)
        tasks[1].cancel()
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert {0, 3} <= set(done)
        assert slots.taken == 0
        async with asyncio.timeout(1):
            await slots.take(100)

    for cancel_at in range(12):
        run_fast(scenario(cancel_at))


async def test_work_ahead_leaves_the_last_slot_to_a_demand() -> None:
    """What nobody waits for never fills the queue: it is not begun while somebody waits."""
    slots = ReadSlots(slots_max=3, bytes_max=100)
    assert slots.free_ahead() == 2
    await slots.take(1)
    await slots.take(1)
    assert slots.free_ahead() == 0
    slots.give_back(1)
    assert slots.free_ahead() == 1
