"""A broker that waits before its claim does not replace the controller that claimed meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.config.times import ClusterTimes
from broker.controller.broker_rpc import SessionRequest
from broker.membership.controller_term import PAUSE_S, ControllerTerm
from broker.membership.lease_watch import LeaseSight
from broker.metadata.cluster_root import ImageAt
from coldstore.object_store import StoreUnavailable
from coldstore.roots.root import Unsettled
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
    term = ControllerTerm(ours, lease, world, asked, ClusterTimes(), taken.append, is_controller=False)
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
        SimpleNamespace(),  # type: ignore[arg-type]
        world,
        asked,
        ClusterTimes(),
        lambda _: None,
        is_controller=True,
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


class Losing(MemoryStore):
    """Loses every root that is written, but keeps the bytes of the last one, for `land`."""

    def __init__(self) -> None:
        super().__init__()
        self.loses = False
        self.sent: tuple[str, bytes, str | None] | None = None

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        if not self.loses:
            return await super().put_root(key, data, if_match)
        self.sent = key, data, if_match
        raise StoreUnavailable("no answer")

    async def land(self) -> None:
        assert self.sent is not None
        self.loses = False
        await self.put_root(*self.sent)


async def test_a_late_claim_counts_from_the_time_at_which_it_was_sent_first() -> None:
    """Regression: the claim of before landed while the next one was about to be sent, and counted from then. Others
    count its lease from its landing, and may claim sooner than its author believed (R25)."""
    store, clock = Losing(), FastClock()
    await claim(cluster_root(store, 2), "other")
    ours = cluster_root(store, 1)
    seen = await ours.load()
    assert seen is not None
    begun: list[float] = []
    listener: Any = SimpleNamespace(
        begin=lambda *_, claimed_s, **__: begun.append(claimed_s), end=lambda: None, apply_image=lambda _: None
    )

    async def poll(_: int) -> LeaseSight:
        return LeaseSight.STILL

    lease: Any = SimpleNamespace(poll=poll, stood_s=10.0, no_claim_s=0.0)
    world: Any = SimpleNamespace(clock=clock, rng=SeededRng(1))
    asked = SessionRequest(2, CLUSTER, "ours", "d2", "boot", ())
    term = ControllerTerm(ours, lease, world, asked, ClusterTimes(), lambda _: None, is_controller=False)
    term.listener = listener
    heartbeats: Any = SimpleNamespace(is_heard=False, is_refused=False)
    store.loses = True
    with pytest.raises(Unsettled):
        await term.claim_controller(seen, heartbeats)
    await store.land()
    landed_s = clock.boottime_s()
    await asyncio.sleep(2.0)
    await term.claim_controller(seen, heartbeats)
    term.image_applied((await ours.poll()).at)
    assert len(begun) == 1 and begun[0] <= landed_s
