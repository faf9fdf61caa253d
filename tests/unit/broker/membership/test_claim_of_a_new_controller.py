"""A broker that waits before its claim does not replace the controller that claimed meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from broker.config.times import ClusterTimes
from broker.controller.broker_rpc import SessionRequest
from broker.membership.controller_term import ControllerTerm
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
