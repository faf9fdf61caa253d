"""Slots: given in turn, never more than there are, and none lost to a waiter that gave up."""

from __future__ import annotations

import asyncio

import pytest

from seams.loop.slots import Slots


async def test_they_are_given_in_the_order_asked_for() -> None:
    """A small wish does not overtake a large one, which would wait for ever otherwise."""
    slots, order = Slots(4), []

    async def one(name: str, count: int) -> None:
        await slots.take(count, 1e9)
        order.append(name)

    await slots.take(3, 1e9)
    tasks = [asyncio.create_task(one(name, count)) for name, count in (("large", 4), ("small", 1))]
    await asyncio.sleep(1)
    assert order == []
    slots.give_back(3)
    await asyncio.sleep(1)
    assert order == ["large"] and slots.taken == 4
    slots.give_back(4)
    await asyncio.gather(*tasks)
    assert order == ["large", "small"] and slots.taken == 1


async def test_who_gives_up_holds_none_and_stands_in_nobodys_way() -> None:
    slots = Slots(4)
    now_s = asyncio.get_running_loop().time()
    await slots.take(2, 1e9)
    large = asyncio.create_task(slots.take(4, now_s + 5))
    small = asyncio.create_task(slots.take(1, 1e9))
    cancelled = asyncio.create_task(slots.take(2, 1e9))
    await asyncio.sleep(1)
    assert not small.done()
    cancelled.cancel()
    with pytest.raises(TimeoutError):
        await large
    await small
    assert slots.taken == 3
    slots.give_back(3)
    assert slots.taken == 0


async def test_one_that_is_cancelled_as_it_is_given_its_slots_returns_them() -> None:
    slots = Slots(1)
    await slots.take(1, 1e9)
    waiting = asyncio.create_task(slots.take(1, 1e9))
    await asyncio.sleep(0)
    slots.give_back(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert slots.taken == 0


async def test_slots_that_are_free_as_a_waiter_is_cancelled_go_to_the_next() -> None:
    """Regression: they were given to the cancelled waiter, and `give_back` raised InvalidStateError and lost them."""
    slots = Slots(1)
    await slots.take(1, 1e9)
    cancelled, waiting = (asyncio.create_task(slots.take(1, 1e9)) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    slots.give_back(1)
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await waiting
    slots.give_back(1)
    assert slots.taken == 0


async def test_the_last_waiter_may_be_cancelled_as_slots_are_free() -> None:
    slots = Slots(1)
    await slots.take(1, 1e9)
    cancelled = asyncio.create_task(slots.take(1, 1e9))
    await asyncio.sleep(0)
    cancelled.cancel()
    slots.give_back(1)
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert slots.taken == 0


async def test_owners_are_given_slots_in_turn() -> None:
    """An owner with many callers does not delay the others. One that comes again waits behind the others."""
    slots, order = Slots(1), []

    async def one(name: str) -> None:
        await slots.take(1, 1e9, owner=name[0])
        order.append(name)
        await asyncio.sleep(1)
        slots.give_back(1, name[0])

    tasks = [asyncio.create_task(one(name)) for name in ("a1", "a2", "a3", "a4", "b1", "c1")]
    await asyncio.sleep(1.5)
    tasks.append(asyncio.create_task(one("b2")))
    await asyncio.gather(*tasks)
    assert order == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]
    assert slots.taken == 0 and not slots._waiting


async def test_an_owner_whose_caller_gave_up_keeps_its_turn() -> None:
    slots, order = Slots(1), []

    async def one(name: str) -> None:
        await slots.take(1, 1e9, owner=name[0])
        order.append(name)
        slots.give_back(1, name[0])

    await slots.take(1, 1e9)
    tasks = {name: asyncio.create_task(one(name)) for name in ("a1", "a2", "b1", "c1")}
    await asyncio.sleep(0)
    tasks["a1"].cancel()
    tasks["c1"].cancel()
    await asyncio.sleep(1)
    slots.give_back(1)
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert order == ["a2", "b1"]
    assert slots.taken == 0 and not slots._waiting


async def test_one_owner_never_holds_all() -> None:
    """Regression: four requests of one user that waited closed another user's connection after a minute."""
    slots, order = Slots(4, 3), []

    async def one(name: str) -> None:
        await slots.take(1, 1e9, owner=name[0])
        order.append(name)

    tasks = [asyncio.create_task(one(name)) for name in ("a1", "a2", "a3", "a4", "b1", "c1")]
    await asyncio.sleep(1)
    assert order == ["a1", "a2", "a3", "b1"] and slots.taken == 4
    slots.give_back(1, "b")
    await asyncio.sleep(1)
    assert order[4:] == ["c1"]
    slots.give_back(1, "a")
    await asyncio.gather(*tasks)
    assert order[5:] == ["a4"]
    for owner in "aaac":
        slots.give_back(1, owner)
    assert slots.taken == 0 and not slots._held and not slots._waiting
