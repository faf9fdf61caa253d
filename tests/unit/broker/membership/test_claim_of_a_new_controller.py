"""A broker that waits before its claim does not replace the controller that claimed meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from broker.config.times import ClusterTimes
from broker.controller.broker_rpc import SessionRequest
from broker.membership.controller_term import PAUSE_S, ControllerTerm
from broker.membership.lease_watch import LeaseSight
from broker.metadata.cluster_root import ImageAt
from seams.rng import SeededRng
from tests.support.brokers.cluster_kit import CLUSTER, claim, cluster_root
from tests.support.fast_loop import FastClock
from tests.support.store.memory_store import MemoryStore


async def test_a_claim_is_not_made_over_a_controller_that_the_poll_before_did_not_show() -> None:
    """Regression: the lease of the controller before was over. While this broker waited, another one claimed, and this
    broker's registration read that. Its claim then replaced the new controller, whose lease had just begun."""
    store = MemoryStore()
    first, ours, other = (cluster_root(store, seed) for seed in (1, 2, 3))
    await claim(first)
    seen = await ours.load()
    assert seen is not None and seen.epoch == 1

    async def poll(_: int) -> LeaseSight:
        await other.load()
        await claim(other, "other")
        await ours.poll()  # as `Session._register_again` does
        return LeaseSight.STILL

    lease: Any = SimpleNamespace(poll=poll, stood_s=10.0, no_claim_s=0.0)
    world: Any = SimpleNamespace(clock=FastClock(), rng=SeededRng(1))
    asked = SessionRequest(2, CLUSTER, "ours", "d2", "boot", ())
    taken: list[ImageAt] = []
    term = ControllerTerm(
        ours, lease, world, asked, ClusterTimes(), taken.append, is_controller=False, claimed_s=float("-inf")
    )
    heartbeats: Any = SimpleNamespace(is_heard=False, is_refused=False)
    await term.claim_controller(seen, heartbeats)
    now = await first.load()
    assert now is not None and now.controller is not None
    assert (now.controller.incarnation, now.epoch) == ("other", 2) and not taken


async def test_a_claim_after_another_controller_is_not_that_of_a_resignation() -> None:
    """Regression: a broker that resigned lost the race for the next claim. Its next claim, at any later time, ended
    sessions without the rule of more than half (R27)."""
    store = MemoryStore()
    ours, other = cluster_root(store, 1), cluster_root(store, 2)
    at = await claim(ours, "ours")
    seen = await ours.poll()
    begun: list[bool] = []
    listener: Any = SimpleNamespace(
        begin=lambda *_, is_sure, **__: begun.append(is_sure), end=lambda: None, apply_image=lambda _: None
    )
    clock = FastClock()
    world: Any = SimpleNamespace(clock=clock, rng=SeededRng(1))
    asked = SessionRequest(1, CLUSTER, "ours", "d", "boot", ())
    term = ControllerTerm(
        ours,
        SimpleNamespace(),
        world,
        asked,
        ClusterTimes(),
        lambda _: None,
        is_controller=True,
        claimed_s=0.0,  # type: ignore[arg-type]
    )
    term.listener = listener
    term.image_applied(at)
    term.step_back()
    await other.load()
    of_other = await claim(other, "other")
    await asyncio.sleep(PAUSE_S)
    heartbeats: Any = SimpleNamespace(is_heard=False, is_refused=False)
    await term.claim_controller(seen, heartbeats)
    term.image_applied(of_other)
    await ours.poll()
    term.image_applied(await claim(ours, "ours"))
    assert begun == [False, False]
