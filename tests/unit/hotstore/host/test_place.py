"""A place of a data directory: calls that are counted until their threads are done, and turns that nobody cuts off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hotstore.host.place import CALLER, VACATED_S, Place, PlaceQuiesced
from logformat.errors import Retryable
from seams.loop.workers import Lane
from tests.support.disk.hotstore_kit import ORDERS


class HeldWorkers:
    """`Workers` whose calls are done when the test says so, in any order."""

    def __init__(self) -> None:
        self.under_way: list[tuple[Callable[..., Any], tuple[Any, ...], asyncio.Future[Any]]] = []

    async def run(self, function: Callable[..., Any], *args: Any, lane: Lane = Lane.FILES) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.under_way.append((function, args, future))
        return await asyncio.shield(future)

    async def finish(self) -> None:
        """The oldest call."""
        function, args, future = self.under_way.pop(0)
        try:
            future.set_result(function(*args))
        except OSError as failed:
            future.set_exception(failed)
        await asyncio.sleep(0.001)


def opened(topic_id: bytes) -> Any:
    return SimpleNamespace(log=SimpleNamespace(topic_id=topic_id))


async def turns() -> None:
    await asyncio.sleep(0.001)


async def test_a_call_is_counted_until_its_thread_is_done_though_its_caller_was_cut_off() -> None:
    """Whoever replaces files waits for it; no other call begins meanwhile."""
    workers = HeldWorkers()
    place = Place(ORDERS, workers)
    done: list[str] = []
    caller = asyncio.ensure_future(place.call(done.append, "late"))
    await turns()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller

    async def replace() -> None:
        await place.quiesce()
        await place.run_alone(done.append, "replaced")
        place.resume()

    replacing = asyncio.ensure_future(place.alone(replace))
    await turns()
    assert len(workers.under_way) == 1 and not replacing.done()
    with pytest.raises(PlaceQuiesced):
        await place.call(done.append, "too late")
    await workers.finish()
    assert done == ["late"] and len(workers.under_way) == 1
    await workers.finish()
    await replacing
    again = asyncio.ensure_future(place.call(done.append, "again"))
    await turns()
    await workers.finish()
    await again
    assert done == ["late", "replaced", "again"]


async def test_the_failure_of_a_call_that_nobody_waits_for_is_reported() -> None:
    workers, told = HeldWorkers(), []
    place = Place(ORDERS, workers, lambda name, failure: told.append((name, str(failure))))

    def fails() -> None:
        raise OSError("no such file")

    caller = asyncio.ensure_future(place.call(fails))
    await turns()
    caller.cancel()
    await asyncio.wait([caller])
    await workers.finish()
    assert told == [("late call in orders-0", "no such file")]


async def test_a_refusal_of_a_call_that_nobody_waits_for_is_not_reported() -> None:
    """Regression: a DeleteRecords was refused after its caller had gone, and the refusal was reported as a failure."""
    told: list[str] = []
    place, goes_on = Place(ORDERS, HeldWorkers(), lambda name, failure: told.append(name)), asyncio.Event()

    async def refuses() -> None:
        await goes_on.wait()
        raise Retryable("later")

    caller = asyncio.ensure_future(place.alone(refuses))
    await turns()
    caller.cancel()
    await asyncio.wait([caller])
    goes_on.set()
    await place.settled()
    await turns()
    assert told == []


async def test_turns_come_in_the_order_in_which_they_were_asked_for() -> None:
    """One at a time, whatever topic they are for."""
    workers = HeldWorkers()
    place, order = Place(ORDERS, workers), []

    def work(name: str) -> Callable[[], Any]:
        async def run() -> str:
            order.append(f"{name} begins")
            await place.run_alone(order.append, name)
            return name

        return run

    asked = [asyncio.ensure_future(place.alone(work(name))) for name in ("a", "b", "c")]
    await turns()
    assert order == ["a begins"]
    for _ in asked:
        await workers.finish()
    assert [await task for task in asked] == ["a", "b", "c"]
    assert order == ["a begins", "a", "b begins", "b", "c begins", "c"]


async def test_a_turn_that_was_cut_off_before_it_came_begins_nothing() -> None:
    workers = HeldWorkers()
    place, done = Place(ORDERS, workers), []

    async def first() -> None:
        await place.run_alone(done.append, "first")

    async def second() -> None:
        done.append("second")

    one, two = asyncio.ensure_future(place.alone(first)), asyncio.ensure_future(place.alone(second))
    await turns()
    two.cancel()
    await turns()
    await workers.finish()
    await one
    await place.settled()
    assert done == ["first"] and two.cancelled()


async def test_a_turn_that_began_goes_on_when_its_caller_is_cut_off_and_the_next_waits_for_it() -> None:
    """However often it is cut off."""
    workers = HeldWorkers()
    place, done = Place(ORDERS, workers), []

    async def first() -> None:
        await place.run_alone(done.append, "one")
        await place.run_alone(done.append, "two")

    async def second() -> None:
        done.append("second")

    one = asyncio.ensure_future(place.alone(first))
    await turns()
    for _ in range(2):
        one.cancel()
        await turns()
    two = asyncio.ensure_future(place.alone(second))
    await turns()
    assert one.cancelled() and done == []
    await workers.finish()
    assert done == ["one"] and not two.done()
    await workers.finish()
    await two
    assert done == ["one", "two", "second"]


async def test_files_are_replaced_in_the_turn_alone() -> None:
    workers = HeldWorkers()
    place = Place(ORDERS, workers)
    with pytest.raises(AssertionError):
        await place.run_alone(print)
    with pytest.raises(AssertionError):
        await place.quiesce()
    waiting = asyncio.ensure_future(place.call(print))
    await turns()

    async def beside() -> None:
        await place.run_alone(print)

    with pytest.raises(AssertionError):
        await place.alone(beside)
    place.occupy(opened(b"a"))

    async def not_quiesced() -> None:
        await place.run_alone(print)

    await workers.finish()
    await waiting
    with pytest.raises(AssertionError):
        await place.alone(not_quiesced)


async def test_the_next_topic_of_the_name_waits_until_the_log_before_is_closed() -> None:
    """And asks again where that takes long."""
    place = Place(ORDERS, HeldWorkers())
    await place.wait_vacated(b"a")
    place.occupy(opened(b"a"))
    await place.wait_vacated(b"a")
    waiting = asyncio.ensure_future(place.wait_vacated(b"b"))
    await asyncio.sleep(VACATED_S / 2)
    assert not waiting.done()
    place.vacate()
    await waiting
    place.occupy(opened(b"a"))
    with pytest.raises(Retryable):
        await place.wait_vacated(b"b")


async def test_a_call_says_for_which_topic_it_works() -> None:
    """What the simulated disk compares with the directory."""
    said: list[object] = []

    class Now:
        async def run(self, function: Callable[..., Any], *args: Any, lane: Lane = Lane.FILES) -> Any:
            return function(*args)

    place = Place(ORDERS, Now())
    place.occupy(opened(b"a"))
    await place.call(lambda: said.append(CALLER.get()))
    assert said == [(ORDERS, b"a")] and CALLER.get() is None
