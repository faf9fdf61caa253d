"""A claim of cluster.json that lands late, while its sender hears the controller again: no heartbeat promises a lease
without a claim (R25)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coldstore.keys import CLUSTER_KEY
from tests.sim.world.links import both_ways
from tests.support.brokers.house import QUICK_LEASE, house
from tests.support.waiting import until


@pytest.mark.parametrize("settings", [QUICK_LEASE, ()])
@pytest.mark.parametrize("is_answered", [True, False])
async def test_the_old_controller_is_out_of_session_when_a_late_claim_lands(
    is_answered: bool, settings: tuple[str, ...]
) -> None:
    """It takes 20 s; or its answer is lost, and it lands 60 s later while the bucket is away from its sender."""
    async with house(1, *settings) as it:
        await asyncio.sleep(8)
        assert it.controllers == [1]
        began, landing = asyncio.Event(), list[asyncio.Task[Any]]()
        store: Any = it.stores[2]
        put_root = store.put_root

        async def late(key: str, *more: Any) -> Any:
            if key != CLUSTER_KEY or began.is_set():
                return await put_root(key, *more)
            began.set()
            store.down = not is_answered

            async def land() -> Any:
                await asyncio.sleep(20 if is_answered else 60)
                found = await it.place.memory.put_root(key, *more)
                store.down = False
                return found

            landing.append(asyncio.ensure_future(land()))
            return await (landing[0] if is_answered else put_root(key, *more))

        store.put_root = late
        it.stores[1].down = it.stores[3].down = True
        it.place.net.links.cut(both_ways([("1", "2"), ("2", "3")]))
        await asyncio.wait_for(began.wait(), 60)
        await asyncio.sleep(12 if is_answered else 40)
        it.heal()  # 2 hears 1 again, its claim is still on its way
        await until(lambda: it.session(2).is_controller, 60)
        assert not it.session(1).fresh.is_in_session, "2 decides by now, and 1 answers for groups"
