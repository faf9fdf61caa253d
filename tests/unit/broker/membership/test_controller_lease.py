"""The lease names the controller epoch in which it was bumped or released, because watchers ignore a lease of an older
epoch."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from broker.membership.controller_lease import ControllerLease
from broker.membership.lease_watch import LeaseSight
from seams.rng import SeededRng
from tests.support.fast_loop import FastClock
from tests.support.store.memory_store import MemoryStore


def lease_of(store: MemoryStore, incarnation: str) -> ControllerLease:
    world: Any = SimpleNamespace(rng=SeededRng(incarnation), clock=FastClock())
    return ControllerLease(store, world, incarnation, lease_s=10.0, interval_s=3.0)


async def test_the_bumps_of_a_controller_that_claimed_again_are_seen() -> None:
    """Regression: the lease kept the epoch of its first bump by that process. Others saw none, and a new broker that
    waits for a bump never joined."""
    store = MemoryStore()
    holder, watcher = lease_of(store, "holder"), lease_of(store, "watcher")
    await holder.beat(5)
    await holder.release(5)
    for _ in range(10):
        await holder.beat(6)
        assert await watcher.poll(6) is not LeaseSight.STILL
        await asyncio.sleep(3.0)
    assert watcher.has_moved


async def test_a_controller_that_stops_before_its_first_bump_releases_the_lease() -> None:
    """Regression: it released the lease of the controller before, which counts for nobody."""
    store = MemoryStore()
    before, holder, watcher = (lease_of(store, who) for who in ("before", "holder", "watcher"))
    await before.beat(5)
    await holder.release(6)
    assert await watcher.poll(6) is LeaseSight.RELEASED
