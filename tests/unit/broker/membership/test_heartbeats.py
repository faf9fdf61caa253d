"""What the heartbeats of a broker show of the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.config.times import ClusterTimes
from broker.controller.decisions.fitness import FIT
from broker.error_codes import ErrorCode
from broker.membership.heartbeat import Heartbeats
from broker.membership.serving_gate import ServingGate
from broker.metadata.cluster_content import ControllerAt
from broker.metadata.cluster_root import ImageAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import Node
from broker.wire.messages import BrokerHeartbeatResponse
from coldstore.object_store import AccessRefused, StoreUnavailable
from logformat.errors import Corrupt
from seams.loop.beats import Beats
from tests.support.fast_loop import FastClock


class Controller:
    """Nobody listens there at first; then it knows no such session, or sends a root."""

    def __init__(self, root: bytes | None = None) -> None:
        self.listens = False
        self.root = root

    def to(self, node: Node, purpose: str) -> Controller:
        return self

    async def ask(self, request: Any, version: int, timeout_s: float) -> BrokerHeartbeatResponse:
        if not self.listens:
            raise ConnectionRefusedError("nobody listens")
        if self.root is not None:
            await asyncio.sleep(1.0)  # parked
            return BrokerHeartbeatResponse(controller_epoch=1, root=self.root)
        return BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)

    def now(self) -> Any:
        return FIT


async def nothing(*_: Any) -> None: ...


def image_at(epoch: int, controller: int) -> ImageAt:
    nodes = [Node(node_id, node_id, "d", "ours" if node_id == 1 else "its", "boot", ()) for node_id in (1, 2, 3)]
    return ImageAt(epoch, ClusterImage().with_records(nodes), ControllerAt(controller, "its", epoch))


def heartbeats_to(
    controller: Controller,
    observe: Callable[[bytes], Awaitable[None]] = nothing,
    at: Callable[[], ImageAt] = lambda: image_at(1, 2),
) -> Heartbeats:
    clock, seams = FastClock(), cast("Any", controller)
    return Heartbeats(
        seams,
        SimpleNamespace(clock=clock, beats=Beats()),  # type: ignore[arg-type]
        ServingGate(clock.boottime_s, 5.0),
        1,
        "ours",
        at,
        observe,
        nothing,
        seams,
        ClusterTimes(),
        lambda: None,
        lambda: 0.0,
    )


@pytest.mark.parametrize("failure", [AccessRefused("403 ExpiredToken"), StoreUnavailable("down"), Corrupt("a bit")])
async def test_a_root_that_cannot_be_read_yet_ends_no_heartbeats(failure: Exception) -> None:
    """It names a page, and the credentials for it expired just then: the session's service broke down with it, and came
    back after longer and longer waits, in the end too late for the session."""
    seen: list[bytes] = []

    async def observe(root: bytes) -> None:
        seen.append(root)
        if len(seen) < 3:
            raise failure

    controller = Controller(b"root")
    controller.listens = True
    heartbeats = heartbeats_to(controller, observe)
    keeping = asyncio.ensure_future(heartbeats.keep())
    await asyncio.sleep(5.0)
    assert len(seen) >= 3 and heartbeats.is_heard and not keeping.done()
    assert heartbeats.fresh_s > 0
    keeping.cancel()


async def test_a_controller_that_takes_no_heartbeat_is_there() -> None:
    """Its port refused, it listens again: whoever it answers, in whatever words, does not take it for gone (D64)."""
    controller = Controller()
    heartbeats = heartbeats_to(controller)
    keeping = asyncio.ensure_future(heartbeats.keep())
    await asyncio.sleep(3.0)
    assert heartbeats.is_refused
    controller.listens = True
    await asyncio.sleep(3.0)
    assert not heartbeats.is_refused and not heartbeats.is_heard
    keeping.cancel()


async def test_the_refusal_of_an_earlier_controller_is_none_of_the_next() -> None:
    """The port of broker 2 refused, and broker 3 claimed. Until broker 3 had answered once, it counted as gone too:
    two bumps that came late were enough to replace it, although it was alive (D64)."""
    controller, at = Controller(b"root"), image_at(1, 2)
    heartbeats = heartbeats_to(controller, at=lambda: at)
    keeping = asyncio.ensure_future(heartbeats.keep())
    await asyncio.sleep(3.0)
    assert heartbeats.is_refused
    at, controller.listens = image_at(2, 3), True
    assert not heartbeats.is_refused  # before the first answer, which is parked
    controller.listens = False
    await asyncio.sleep(3.0)
    assert heartbeats.is_refused  # its own port
    keeping.cancel()
