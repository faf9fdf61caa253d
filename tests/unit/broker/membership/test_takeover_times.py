"""How long others wait when a broker is killed or stopped, with the times that a broker on a directory bucket has by
itself: in virtual time, so without what processes and disks take."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.world.loop import PROCESS
from tests.support.brokers.house import QUICK_LEASE, House, house
from tests.support.waiting import until


def led_elsewhere(it: House, gone: int) -> bool:
    return all(it.serves(index) and it.row(index).leader != gone for index in range(3))


async def watching_another(it: House, gone: int) -> None:
    """Each leads one, the first controller is 1; what is watched is none of those that go."""
    await asyncio.sleep(8)
    assert sorted(it.row(index).leader for index in range(3)) == [1, 2, 3]
    it.watched = 2 if gone != 2 else 3


@pytest.mark.parametrize(("victim", "least_s", "most_s"), [(3, 0.5, 0.9), (1, 1.0, 4.0)])
async def test_a_broker_that_is_killed_is_replaced_as_leader_and_as_controller(
    victim: int, least_s: float, most_s: float
) -> None:
    """Half a second after its connection was closed, as its port refuses (two seconds were 3.5 s for a stock producer,
    which asks once a second); the controller after two bumps that did not come. With it ends its session, and others
    lead what it led."""
    async with house(3, *QUICK_LEASE) as it:
        await watching_another(it, victim)
        await it.kill(victim)
        took_s = await until(lambda: led_elsewhere(it, victim), 30)
        assert least_s <= took_s < most_s
        assert len(it.controllers) == 1


async def test_a_broker_whose_connections_broke_keeps_its_session() -> None:
    """It connects anew, and its port accepts."""
    async with house(3, *QUICK_LEASE) as it:
        await watching_another(it, 3)
        before, net = it.sessions, it.place.net
        broken = [one for one in net.open if one.context.get(PROCESS) is it.processes[3]]
        assert len(broken) > 2
        for transport in broken:
            net.cut(transport)
        await asyncio.sleep(5)
        assert it.sessions == before


async def test_a_broker_that_is_not_heard_and_accepts_has_two_seconds() -> None:
    """Its port is asked; what it says is not waited for longer than it takes."""
    async with house(3, *QUICK_LEASE) as it:
        await watching_another(it, 3)
        it.stop(3)
        net = it.place.net
        for transport in [one for one in net.open if one.context.get(PROCESS) is it.processes[3]]:
            net.cut(transport)
        took_s = await until(lambda: led_elsewhere(it, 3), 30)
        assert 2.0 <= took_s < 2.6
        it.go_on(3)
        await until(lambda: set(it.sessions) == {1, 2, 3}, 20)


@pytest.mark.parametrize("victim", [3, 1])
async def test_a_broker_that_is_stopped_is_replaced_after_its_session(victim: int) -> None:
    """Its kernel holds the connections. A controller's lease is over sooner; its heartbeats stay without answers."""
    async with house(3, *QUICK_LEASE) as it:
        await watching_another(it, victim)
        it.stop(victim)
        took_s = await until(lambda: led_elsewhere(it, victim), 30)
        assert 5.0 < took_s < 11.0
        it.go_on(victim)
        await until(lambda: set(it.sessions) == {1, 2, 3} and len(it.controllers) == 1, 20)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1)])
async def test_after_a_kill_of_all_each_returns_before_its_last_session_would_have_ended(
    order: tuple[int, ...],
) -> None:
    """The last controller comes first, and claims at once; or last: then two bumps of its lease have to be missed."""
    async with house(3, *QUICK_LEASE) as it:
        await watching_another(it, 1)
        await it.kill(1, 2, 3)
        began_s = asyncio.get_running_loop().time()
        for node_id in order[:2]:
            it.place.loop.create_task(it.start(node_id))
        if order[0] == 1:
            it.place.loop.create_task(it.start(3))
        await until(lambda: len(it.lives) == (3 if order[0] == 1 else 2), 30)
        await until(lambda: all(it.serves(index) for index in range(3)), 30)
        assert asyncio.get_running_loop().time() - began_s < 7.0
        if 1 not in it.lives:
            await it.start(1)
        await until(lambda: set(it.sessions) == {1, 2, 3}, 30)


async def test_a_controller_that_pauses_after_its_claim_keeps_its_lease() -> None:
    """The port that refuses is the one of the controller before it: the third broker took the new controller for gone
    too, and claimed after two bumps that did not come."""
    async with house(3, *QUICK_LEASE) as it:
        await watching_another(it, 1)
        await it.kill(1)
        await until(lambda: len(it.controllers) == 1 and it.controllers[0] != 1, 30)
        (second,) = it.controllers
        third = 5 - second
        it.watched = third
        it.stop(second)
        took_s = await until(lambda: third in it.controllers, 30)
        assert took_s > 4.0
        it.go_on(second)
