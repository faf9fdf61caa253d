"""A broker that comes back while its last process's session stands: how long it waits before it gives up (exit 3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.config.times import ClusterTimes
from broker.controller.broker_rpc import SessionRequest
from broker.error_codes import ErrorCode
from broker.membership.identity import DirectoryIdentity
from broker.membership.lease_watch import LeaseSight
from broker.membership.serving_gate import ServingGate
from broker.membership.session_start import Refused, SessionStart
from broker.metadata.cluster_content import ControllerAt
from broker.metadata.cluster_root import Loaded
from broker.metadata.image import ClusterImage
from broker.metadata.records import Node
from broker.metrics.outage_log import OutageLog
from broker.wire.messages import BrokerRegistrationResponse
from logformat.values import uuid_text
from seams.rng import SeededRng
from seams.world import World
from tests.support.fast_loop import FastClock, run_fast

CLUSTER, DIRECTORY = uuid_text(bytes(16)), uuid_text(b"d" * 16)
TIMES = ClusterTimes()
SESSION_S = TIMES.session_s
OURS = DirectoryIdentity(CLUSTER, 1, DIRECTORY, has_logs=True)


class Cluster:
    """Every controller, of node `decides`, says that node 1 lives; the next one decides after `reign_s`."""

    stood_s = 0.0
    counter, has_moved = 7, True

    def __init__(self, reign_s: float, decides: int = 2) -> None:
        self.reign_s = reign_s
        self.decides = decides
        nodes = [Node(node_id, node_id, DIRECTORY, "before", "boot", ()) for node_id in (1, 2)]
        self.image = ClusterImage().with_records(nodes)

    async def load(self) -> Loaded:
        epoch = 1 + int(asyncio.get_running_loop().time() / self.reign_s)
        return Loaded(CLUSTER, self.image, 2, epoch, ControllerAt(self.decides, "the controller", epoch))

    async def poll(self, controller_epoch: int) -> LeaseSight:
        return LeaseSight.MOVING

    def to(self, node: Node, purpose: str) -> Cluster:
        return self

    async def ask(self, request: Any, version: int, timeout_s: float) -> BrokerRegistrationResponse:
        return BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)


class Restarting(Cluster):
    """Nobody listens at the controller's port when it is asked first; then it answers with `code`, and its lease
    stands."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(1_000.0)
        self.code = code
        self.asked = 0

    async def ask(self, request: Any, version: int, timeout_s: float) -> BrokerRegistrationResponse:
        self.asked += 1
        if self.asked == 1:
            raise ConnectionRefusedError("nobody listens")
        self.stood_s = 3 * TIMES.interval_s
        return BrokerRegistrationResponse(error_code=self.code)

    async def claim(self, *_: Any) -> None:
        raise AssertionError(f"claimed after {self.asked} questions")


async def join(cluster: Any) -> None:
    clock: Any = FastClock()
    nothing: Any = None
    world = World(nothing, nothing, nothing, clock, SeededRng(1), nothing)
    gate, outage = ServingGate(clock.boottime_s, 5.0), OutageLog(clock)
    joining = SessionStart(cluster, cluster, cluster, world, gate, outage, TIMES, waits_for=lambda _: None)
    await joining.join(OURS, SessionRequest(1, "", "0" * 32, "", "boot", ()), nothing)


async def refused_after_s(reign_s: float, most_s: float, decides: int = 2) -> float | None:
    began_s = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(most_s):
            await join(Cluster(reign_s, decides))
    except TimeoutError:
        return None
    except Refused:
        return asyncio.get_running_loop().time() - began_s
    raise AssertionError("nobody let it in")


async def test_one_controller_that_goes_on_hearing_the_other_process_is_believed() -> None:
    after_s = await refused_after_s(1_000.0, 100.0)
    assert after_s == pytest.approx(TIMES.duplicate_s, abs=2.0)


async def test_a_new_controller_s_patience_with_the_last_session_is_no_proof_that_its_process_lives() -> None:
    """Each one gives every session its full time anew (D8): what several said together ended the process for good."""
    assert await refused_after_s(SESSION_S + 3.0, 100.0) is None


def test_cluster_d40_a_copied_directory_of_the_living_controller_does_not_claim() -> None:
    """The lock on a copy proves nothing of the process that serves from the original: its lease still moves."""
    refused_s = run_fast(refused_after_s(1000.0, 60.0, decides=1))
    assert refused_s is not None and refused_s < 1.0


@pytest.mark.parametrize("code", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.STALE_BROKER_EPOCH])
async def test_a_controller_that_answers_again_is_there(code: ErrorCode) -> None:
    """Its port refused once, it listens again and does not reach the bucket: its lease is to stand still for its whole
    length before anybody takes over, not for two bumps (D64)."""
    cluster = Restarting(code)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30.0):
            await join(cluster)
    assert cluster.asked > 2
