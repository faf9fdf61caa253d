"""Late work of the simulation: what may overtake what, who stays in time, and the calm that ends it."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from seams.loop.workers import Lane
from seams.rng import SeededRng
from tests.sim.world.late import LaneLate, Late
from tests.sim.world.loop import SimLoop
from tests.sim.world.workers import SimWorkers


def late_workers(chance: float) -> tuple[Late, SimWorkers]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    late = Late(loop, SeededRng(1), chance)
    return late, SimWorkers(loop, SeededRng(2), LaneLate(late))


async def test_a_late_call_goes_on_without_its_caller_and_the_next_one_overtakes_it() -> None:
    """One thread of two is never late."""
    late, workers = late_workers(1.0)
    done: list[str] = []
    first = asyncio.ensure_future(workers.run(done.append, "first"))
    await asyncio.sleep(0)
    first.cancel()
    for name in ("second", "third"):
        await workers.run(done.append, name)
    assert done == ["second", "third"] and not workers.is_idle
    late.calm()
    while not workers.is_idle:
        await asyncio.sleep(0.001)
    assert done == ["second", "third", "first"]
    assert late.hits["late, files begins"] == 1


async def test_nothing_overtakes_in_a_lane_of_one_thread_and_it_is_in_time_after_it_was_late() -> None:
    """A sync that is late delays those behind it; then as long a time without lateness follows."""
    late, workers = late_workers(1.0)
    done: list[int] = []
    await asyncio.gather(*(workers.run(done.append, number, lane=Lane.FLUSH) for number in range(20)))
    assert done == list(range(20))
    assert 1 <= sum(late.hits.values()) < 20


async def test_a_call_that_waited_for_a_thread_runs_in_the_context_of_who_asked_for_it() -> None:
    """And not of the call whose end made room: the simulated disk asks whose a call is."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    workers, whose, said = SimWorkers(loop, SeededRng(2)), ContextVar[int]("whose"), list[int]()

    async def ask(number: int) -> None:
        whose.set(number)
        await workers.run(lambda: said.append(whose.get()), lane=Lane.FLUSH)

    await asyncio.gather(*map(ask, range(8)))
    assert said == list(range(8))


async def test_calm_ends_all_lateness_in_the_order_in_which_it_would_have_ended() -> None:
    """What is late by half a minute need not be waited for when a run is to be judged."""
    loop = asyncio.get_running_loop()
    late, _ = late_workers(1.0)
    done: list[float] = []
    for delay_s in (30.0, 2.0, 8.0):
        late.after(delay_s, lambda delay_s=delay_s: done.append(delay_s))  # type: ignore[misc]
    late.calm()
    await asyncio.sleep(0.001)
    assert done == [2.0, 8.0, 30.0]
    before_s = loop.time()
    await late.pause("store begins")
    assert loop.time() == before_s
