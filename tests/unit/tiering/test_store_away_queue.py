"""The work queue while the store is away: a fixed number of looks however many jobs wait; all go on when it is back.

Found by test_sim_store_away: after ten hours each job waited out its own backoff, so writes resumed after 38 s, and
thousands of partitions each asked a store that refused everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from logformat.errors import Retryable
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.support.fast_loop import run_fast
from tests.support.scenario import by
from tiering.work_queue import AWAY_AFTER, PROBE_S, Backoff, StoreRecovery, WorkQueue

HOUR_S = 3600.0
JOBS = 1000


class Store:
    """Away until it is not; `asked` are the times somebody asked."""

    def __init__(self) -> None:
        self.away = True
        self.asked: list[float] = []

    async def ask(self) -> None:
        self.asked.append(asyncio.get_running_loop().time())
        if self.away:
            raise Retryable("away")


def played(scenario: Callable[[WorkQueue, Store], Awaitable[None]]) -> None:
    async def of_the_first(queues: list[WorkQueue], store: Store) -> None:
        await scenario(queues[0], store)

    played_with_many(of_the_first, 1)


def played_with_many(scenario: Callable[[list[WorkQueue], Store], Awaitable[None]], count: int) -> None:
    async def body() -> None:
        tasks, looks = Tasks(), StoreRecovery(SeededRng(2))
        queues = [WorkQueue(10, Backoff(0.5, 30.0, 0.2), SeededRng(1), tasks, looks) for _ in range(count)]
        await scenario(queues, Store())
        for queue in queues:
            queue.close()
        await tasks.close()

    run_fast(body())


@by(played)
async def test_an_outage_costs_the_same_however_many_wait(queue: WorkQueue, store: Store, /) -> None:
    """A thousand jobs, ten hours: one look every four seconds, where each job's own backoff would be 33 a second."""
    for number in range(JOBS):
        queue.wake(queue.add(f"{number}", store.ask))  # type: ignore[arg-type]
    await asyncio.sleep(60)
    before = len(store.asked)
    await asyncio.sleep(10 * HOUR_S)
    assert queue.is_away
    assert 10 * HOUR_S / (PROBE_S * 1.3) <= len(store.asked) - before <= 10 * HOUR_S / (PROBE_S * 0.7)


@by(played)
async def test_all_go_on_when_one_finds_the_store_back(queue: WorkQueue, store: Store, /) -> None:
    """Within one look of the end of the outage, every job has run."""
    done: set[int] = set()

    async def work(number: int) -> None:
        await store.ask()
        done.add(number)

    for number in range(JOBS):
        queue.wake(queue.add(f"{number}", lambda n=number: work(n)))  # type: ignore[misc,arg-type]
    await asyncio.sleep(10 * HOUR_S)
    assert not done
    store.away = False
    await asyncio.sleep(PROBE_S * 1.2 + 0.1)
    # Those that failed before the queue knew wait out what they began to wait then.
    assert len(done) == JOBS and not queue.is_away


@by(played_with_many, 3)
async def test_an_outage_costs_the_same_however_many_queues_wait(queues: list[WorkQueue], store: Store, /) -> None:
    """Commits and copies had a look each: with the poll of a second that was more than is promised (1.5 a second)."""
    asked = [0] * len(queues)

    async def work(at: int) -> None:
        asked[at] += 1
        await store.ask()

    for at, queue in enumerate(queues):
        queue.wake(queue.add(f"{at}", lambda at=at: work(at)))  # type: ignore[misc,arg-type]
    await asyncio.sleep(60)
    before = len(store.asked)
    await asyncio.sleep(HOUR_S)
    assert HOUR_S / (PROBE_S * 1.3) <= len(store.asked) - before <= HOUR_S / (PROBE_S * 0.7)
    assert max(asked) - min(asked) < 10, "each has its turn"


@by(played_with_many, 4)
async def test_all_queues_look_at_once_when_one_finds_the_store_back(queues: list[WorkQueue], store: Store, /) -> None:
    """Turns cost none of them time: within one look of the end of the outage, every job of each has run."""
    done: set[tuple[int, int]] = set()

    async def work(at: int, number: int) -> None:
        await store.ask()
        done.add((at, number))

    for at, queue in enumerate(queues):
        for number in range(JOBS):
            queue.wake(queue.add("job", lambda at=at, number=number: work(at, number)))  # type: ignore[misc,arg-type]
    await asyncio.sleep(HOUR_S)
    assert not done
    store.away = False
    await asyncio.sleep(PROBE_S * 1.2 + 0.1)
    assert len(done) == JOBS * len(queues) and not any(queue.is_away for queue in queues)


@by(played)
async def test_one_job_that_is_refused_for_its_own_reasons_stops_nobody(queue: WorkQueue, store: Store, /) -> None:
    """While others succeed the store is there: the one that fails backs off alone, to half a minute."""
    ran: list[float] = []

    async def well() -> float:
        ran.append(asyncio.get_running_loop().time())
        return 1.0

    queue.wake(queue.add("refused", store.ask))  # type: ignore[arg-type]
    queue.wake(queue.add("well", well))
    await asyncio.sleep(HOUR_S)
    assert len(ran) > HOUR_S * 0.95
    assert len(store.asked) <= HOUR_S / (30.0 * 0.8) + 10
    assert not queue.is_away


@by(played)
async def test_a_removed_job_is_looked_for_no_more(queue: WorkQueue, store: Store, /) -> None:
    """A partition that is closed while the store is away leaves the line."""
    job = queue.add("closed", store.ask)  # type: ignore[arg-type]
    queue.wake(job)
    await asyncio.sleep(60)
    assert queue.is_away and len(store.asked) > AWAY_AFTER
    await queue.remove(job)
    before = len(store.asked)
    await asyncio.sleep(60)
    assert len(store.asked) == before and queue.waiting == 0


@by(played)
async def test_a_deadline_given_while_the_job_runs_is_kept(queue: WorkQueue, _: Store, /) -> None:
    """A copy asks for an expiry at once, a snapshot for one after its grace: a run that had looked already and slept
    until woken never came again, now that idle partitions have no tick."""
    loop = asyncio.get_running_loop()
    began: list[float] = []

    async def look() -> None:
        began.append(loop.time())
        await asyncio.sleep(1.0)

    job = queue.add("look", look)  # type: ignore[arg-type]
    queue.wake(job)
    await asyncio.sleep(0.5)
    queue.wake_in(job, 0.0)  # due while it runs: once more as soon as it ends
    queue.wake_in(job, 60.0)
    await asyncio.sleep(1.0)
    assert len(began) == 2
    queue.wake_in(job, 60.0)
    await asyncio.sleep(100.0)
    assert len(began) == 3 and 59.0 < began[2] - began[1] < 62.0
