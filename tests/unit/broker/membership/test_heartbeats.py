"""What the heartbeats of a broker show of the controller."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from broker.config.times import ClusterTimes
from broker.controller.fitness import FIT
from broker.error_codes import ErrorCode
from broker.membership.gate import Gate
from broker.membership.heartbeat import Heartbeats
from broker.metadata.cluster_content import ControllerAt
from broker.metadata.cluster_root import ImageAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import Node
from broker.wire.messages import BrokerHeartbeatResponse
from seams.beats import Beats
from tests.support.fast_loop import FastClock, run_fast


class Controller:
    """Nobody listens there at first; then it knows no such session."""

    def __init__(self) -> None:
        self.listens = False

    def to(self, node: Node, purpose: str) -> Controller:
        return self

    async def ask(self, request: Any, version: int, timeout_s: float) -> BrokerHeartbeatResponse:
        if not self.listens:
            raise ConnectionRefusedError("nobody listens")
        return BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)

    def now(self) -> Any:
        return FIT


def test_a_controller_that_takes_no_heartbeat_is_there() -> None:
    """Its port refused, it listens again: whoever it answers, in whatever words, does not take it for gone (D64)."""

    async def scenario() -> None:
        clock, controller = FastClock(), Controller()
        nodes = [Node(node_id, node_id, "d", "ours" if node_id == 1 else "its", "boot", ()) for node_id in (1, 2)]
        at = ImageAt(2, ClusterImage().with_records(nodes), ControllerAt(2, "its", 1))
        seams: Any = controller

        async def nothing(*_: Any) -> None: ...

        heartbeats = Heartbeats(
            seams,
            SimpleNamespace(clock=clock, beats=Beats()),  # type: ignore[arg-type]
            Gate(clock.boottime_s, 5.0),
            1,
            "ours",
            lambda: at,
            nothing,
            nothing,
            seams,
            ClusterTimes(),
            lambda: None,
            lambda: 0.0,
        )
        keeping = asyncio.ensure_future(heartbeats.keep())
        await asyncio.sleep(3.0)
        assert heartbeats.is_refused
        controller.listens = True
        await asyncio.sleep(3.0)
        assert not heartbeats.is_refused and not heartbeats.is_heard
        keeping.cancel()

    run_fast(scenario())
