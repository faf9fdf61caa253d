"""A controller that hears fewer than half of the cluster gives its lease away before it ends a session (R27)."""

from __future__ import annotations

import asyncio

import pytest

from broker.config.times import ClusterTimes
from broker.controller.sessions import UNTIMED_S
from broker.membership.controller_term import PAUSE_MAX_S, PAUSE_S
from coldstore.keys import cluster_key
from coldstore.stores.operations import Operation
from tests.sim.world.links import both_ways
from tests.support.brokers.house import QUICK_LEASE, house
from tests.support.store.faulty_store import Fault
from tests.support.waiting import until


async def test_cluster_d10_a_controller_cut_off_from_all_others_ends_no_session_of_theirs() -> None:
    """It reaches the bucket, so it could. Somebody who sees more decides then, and ends the session of the one that is
    cut off; healed, it registers again."""
    async with house(3, *QUICK_LEASE) as it:
        await asyncio.sleep(10)
        before = it.sessions
        assert it.controllers == [1]
        it.cut_off(1)
        await until(lambda: it.controllers in ([2], [3]), 20)
        await until(lambda: 1 not in it.sessions, 20)
        assert it.sessions == {2: before[2], 3: before[3]}
        await until(lambda: all(it.serves(i) and it.row(i).leader != 1 for i in range(1)), 10)
        it.heal()
        await until(lambda: set(it.sessions) == {1, 2, 3}, 30)
        assert {n: e for n, e in it.sessions.items() if n != 1} == {2: before[2], 3: before[3]}


async def test_cluster_d82_the_survivor_of_three_decides_after_one_pause() -> None:
    """Nobody sees more than it does: it claims again, and ends the sessions of the silent. When it steps back again
    soon it waits twice as long, after a quiet time as at first."""
    async with house(3, *QUICK_LEASE) as it:
        it.watched = 1
        session_s = ClusterTimes().session_s
        for quiet_s, pause_s in (10, PAUSE_S), (UNTIMED_S, 2 * PAUSE_S), (2 * PAUSE_MAX_S + 10, PAUSE_S):
            await asyncio.sleep(quiet_s)
            it.stop(2, 3)
            took_s = await until(lambda: set(it.sessions) == {1}, 120)
            assert 2 * session_s + pause_s - 2 < took_s < 2 * session_s + pause_s + 3
            assert it.session(1).is_controller
            it.go_on(2, 3)
            await until(lambda: set(it.sessions) == {1, 2, 3} and it.controllers == [1], 60)


async def test_nobody_claims_over_a_controller_that_claimed_again_and_renews_its_lease() -> None:
    """Regression: it renewed the lease under its earlier controller epoch, so others saw no lease of its present one. A
    broker that was cut off from it alone claimed after a lease, and ended its session at once (R25)."""
    async with house(3, *QUICK_LEASE) as it:
        it.watched = 1
        await asyncio.sleep(10)
        it.stop(2, 3)
        await until(lambda: set(it.sessions) == {1}, 120)
        it.go_on(2, 3)
        await until(lambda: set(it.sessions) == {1, 2, 3} and it.controllers == [1], 60)
        it.place.net.links.cut(both_ways([("1", "2")]))
        await asyncio.sleep(60)
        assert it.controllers == [1] and set(it.sessions) == {1, 3}
        it.heal()
        await until(lambda: set(it.sessions) == {1, 2, 3}, 30)
        assert it.controllers == [1]


@pytest.mark.parametrize("phase_s", [0.0, 0.4, 0.8, 1.2])
async def test_who_hears_farewells_is_not_cut_off(phase_s: float) -> None:
    """Two of three are killed: their kernels say so, wherever between two heartbeats it happens. The survivor ends both
    sessions at once, without a pause."""
    async with house(3, *QUICK_LEASE) as it:
        it.watched = 1
        await asyncio.sleep(30 + phase_s)
        await it.kill(2, 3)
        assert await until(lambda: set(it.sessions) == {1}, 60) < ClusterTimes().closed_s + 1
        assert it.session(1).is_controller


async def test_a_claim_after_stepping_back_that_the_bucket_refuses_is_made_again() -> None:
    """Given up, it would leave a controller that decides nothing and lets nobody else. Twenty refusals: the root itself
    asks again for 30 s, which are more than three."""
    async with house(3, *QUICK_LEASE) as it:
        it.watched = 1
        await asyncio.sleep(10)
        it.stop(2, 3)
        await asyncio.sleep(ClusterTimes().session_s + PAUSE_S / 2)
        it.stores[1].script(Operation.PUT_ROOT, Fault.BEFORE, match=cluster_key(), times=20)
        await until(lambda: set(it.sessions) == {1}, 60)
        assert it.session(1).is_controller


async def test_who_steps_back_gives_others_two_looks() -> None:
    """They look once an interval: where that was 8 s, the first pause of 10 s could be over before anybody had looked
    twice."""
    settings = "thermocline.lease.interval.ms=8000", "thermocline.lease.ms=30000"
    async with house(1, *settings) as it:
        session = it.session(1)
        assert it.controllers == [1] and session._controller_term is not None
        session.step_back()
        assert session._controller_term._stepped_back_until_s - session._world.clock.monotonic_s() == pytest.approx(16)
