"""Who may answer for groups while another claims: brokers in virtual time (R25)."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.world.links import both_ways
from tests.support.brokers.house import QUICK_LEASE, house
from tests.support.waiting import until


@pytest.mark.parametrize("settings", [QUICK_LEASE, ()])
async def test_cluster_seed_22558_who_lost_his_session_answers_for_no_group(settings: tuple[str, ...]) -> None:
    """The controller is cut off from the bucket, and so is a broker that goes on to hear it, not the third. That one
    claims. The first answered OffsetFetch with what it knew, a commit behind, because the second took it for the
    controller; and the second did so after its session had ended, because the first said that it had one."""
    async with house(1, *settings) as it:
        await asyncio.sleep(8)
        assert it.controllers == [1]
        fresh = {node_id: it.session(node_id).fresh for node_id in (1, 2, 3)}
        assert all(one.is_in_session for one in fresh.values())
        it.stores[1].down = it.stores[3].down = True
        it.place.net.links.cut(both_ways([("1", "2"), ("2", "3")]))
        took_s = await until(lambda: it.session(2).is_controller, 60)
        assert took_s < 25 and it.session(1).is_controller, "it does not know"
        assert not fresh[1].is_in_session and fresh[2].is_in_session
        await until(lambda: 3 not in it.sessions, 60)
        assert not fresh[3].is_in_session
        it.stores[1].down = it.stores[3].down = False
        it.heal()
        await until(lambda: all(one.is_in_session for one in fresh.values()), 30)
