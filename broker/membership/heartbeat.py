"""This broker's heartbeats to the controller.

A heartbeat is sent when the previous heartbeat was answered. An urgent report (`report_fitness`) is a second heartbeat
beside the parked heartbeat. Responses of a controller that is older than the known controller are ignored. A "store
away" response does not prove freshness. While no controller answers, this broker may claim.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from broker.config.times import ClusterTimes
from broker.controller.broker_rpc import (
    NEVER_ANSWERED,
    AnsweredAt,
    SessionHeartbeat,
    SessionHeartbeatResponse,
)
from broker.controller.remote_controller import RemoteController
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.membership.broker_fitness import BrokerFitness
from broker.membership.serving_gate import ServingGate
from broker.metadata.cluster_content import ControllerAt
from broker.metadata.cluster_root import ImageAt
from broker.metadata.records import Node
from broker.peers.links import Links
from coldstore.object_store import AccessRefused
from logformat.errors import Corrupt, Retryable
from seams.world import World

log = logging.getLogger(__name__)

_AGAIN_S: Final = 0.3  # pause after a failed heartbeat


class Heartbeats:
    """Heartbeats of node `node_id`, process `incarnation`. `at`: the applied image. `observe` takes a root's bytes.
    `ended` is called while the image shows no session, and registers again. `lost` is called when the controller does
    not answer. `no_claim_s` as in `SessionHeartbeat`."""

    def __init__(
        self,
        links: Links,
        world: World,
        gate: ServingGate,
        node_id: int,
        incarnation: str,
        at: Callable[[], ImageAt],
        observe: Callable[[bytes], Awaitable[None]],
        ended: Callable[[], Awaitable[None]],
        fitness: BrokerFitness,
        times: ClusterTimes,
        lost: Callable[[], None],
        no_claim_s: Callable[[], float],
    ) -> None:
        self._links = links
        self._clock = world.clock
        self._beats = world.beats
        self._gate = gate
        self._node_id = node_id
        self._incarnation = incarnation
        self._at = at
        self._observe = observe
        self._ended = ended
        self._fitness = fitness
        self._times = times
        self._lost = lost
        self._no_claim_s = no_claim_s
        self._to_report = asyncio.Event()
        self._heard_s: float | None = None
        self._heard_since_s: float | None = None
        self.fresh_s = float("-inf")
        """Time of sending of the last heartbeat whose response proved that this broker's image is fresh; boot clock."""
        self.answered_s = float("-inf")
        """Time of sending of the last answered heartbeat, even if the answer was "store away"; boot clock."""
        self._refused: ControllerAt | None = None  # the controller whose port refused the last heartbeat
        self._answered = NEVER_ANSWERED
        self._after_pause: tuple[int, int] | None = None  # count of pauses; first lease counter after the last

    @property
    def is_heard(self) -> bool:
        return self._heard_s is not None and self._clock.monotonic_s() - self._heard_s <= self._times.heard_s

    @property
    def is_refused(self) -> bool:
        """Whether the port of the controller, not of an earlier one, refuses connections (D64)."""
        return self._refused is not None and self._refused == self._at().controller

    @property
    def heard_for_s(self) -> float:
        """Seconds for which the controller has answered and bumped its lease without a pause."""
        return 0.0 if self._heard_since_s is None else self._clock.monotonic_s() - self._heard_since_s

    async def keep(self) -> None:
        while True:
            at = self._at()
            node = self._controller(at)
            own = at.image.nodes.get(self._node_id)
            if node is None or own is None or own.incarnation != self._incarnation:
                await self._beats.wait()
                continue
            if not own.active:
                await self._ended()
                await asyncio.sleep(_AGAIN_S)
                continue
            if not await self._beat(node, own, at):
                await asyncio.sleep(_AGAIN_S)

    def report_fitness(self) -> None:
        """Report this broker's fitness now, without waiting for the parked heartbeat."""
        self._to_report.set()

    async def keep_reporting(self) -> None:
        """Send heartbeats until cancelled. The next heartbeat repeats a failed report."""
        while True:
            await self._to_report.wait()
            self._to_report.clear()
            try:
                await self._report()
            except (ConnectionError, TimeoutError, ApiError, Retryable) as unheard:
                log.info("this broker's fitness is not reported to the controller yet: %s", unheard)

    async def _beat(self, node: Node, own: Node, at: ImageAt) -> bool:
        pauses, sent_s, sent_boot_s = self._gate.paused_count, self._clock.monotonic_s(), self._clock.boottime_s()
        try:
            answer = await self._ask(node, self._asked(own, at))
        except (ConnectionError, TimeoutError) as silent:
            self._refused = at.controller if isinstance(silent, ConnectionRefusedError) else None
            log.debug("the controller, broker %d, is silent: %s", node.node_id, silent)
            self._heard_s = self._heard_since_s = None
            self._lost()
            return False
        except (ApiError, Retryable) as refused:  # this image or the controller's is outdated; a poll shows which
            self._refused = None
            log.info("the controller, broker %d, refuses heartbeats: %s", node.node_id, refused)
            return False
        self._refused = None
        known = self._at().controller
        if known is not None and answer.controller_epoch < known.epoch:
            return False
        if known is not None and known.node_id == node.node_id:
            self.answered_s = sent_boot_s
        if answer.store_away:
            self._heard_s = self._heard_since_s = None
            return False
        self._heard_s = sent_s
        if self._heard_since_s is None:
            self._heard_since_s = sent_s
        if await self._take(answer, pauses):
            self.fresh_s = sent_boot_s
        return True

    async def _take(self, answer: SessionHeartbeatResponse, pauses: int) -> bool:
        """Apply the root of a response. Returns whether this broker applied it."""
        if answer.root is not None:
            try:
                await self._observe(answer.root)
            except (Corrupt, Retryable, AccessRefused, OSError) as unread:  # the next poll reads the root
                log.warning("a root that the controller sent could not be read: %s", unread)
                return False
        if not self._gate.paused:
            self._after_pause = None
        elif self._after_pause is None or self._after_pause[0] != pauses:
            self._after_pause = pauses, answer.lease_counter
        elif answer.lease_counter > self._after_pause[1]:
            # The controller bumped the lease after this process's pause, so the controller was not suspended together
            # with this process (R28).
            self._gate.reopen(pauses)
        return True

    async def hand_over(self) -> None:
        """Report that this broker stops, and apply the controller's decisions. Raises as `BrokerRpc.heartbeat`."""
        answer = await self._report()
        if answer is not None and answer.root is not None:
            await self._observe(answer.root)

    async def leave(self) -> None:
        """Ask the controller to end this session, as the last request. Raises as `BrokerRpc.heartbeat`."""
        await self._report(wants_shutdown=True)

    async def _report(self, *, wants_shutdown: bool = False) -> SessionHeartbeatResponse | None:
        at = self._at()
        node, own = self._controller(at), at.image.nodes.get(self._node_id)
        if node is None or own is None or not own.active or own.incarnation != self._incarnation:
            return None
        return await self._ask(node, self._asked(own, at, wants_shutdown=wants_shutdown))

    async def _ask(self, node: Node, asked: SessionHeartbeat) -> SessionHeartbeatResponse:
        answer = await self._remote(node).heartbeat(asked)
        self._answered = max(self._answered, AnsweredAt(answer.controller_epoch, answer.boottime_ms))
        if answer.is_disputed:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "another broker may be the controller by now")
        return answer

    def _asked(self, own: Node, at: ImageAt, *, wants_shutdown: bool = False) -> SessionHeartbeat:
        return SessionHeartbeat(
            self._node_id,
            own.broker_epoch,
            at.position,
            self._fitness.now(),
            wants_shutdown=wants_shutdown,
            no_claim_s=self._no_claim_s(),
            since=self._answered,
        )

    def _controller(self, at: ImageAt) -> Node | None:
        """The node of the controller, if it is another process."""
        controller = at.controller
        if controller is None or controller.node_id == self._node_id:
            return None
        return at.image.nodes.get(controller.node_id)

    def _remote(self, node: Node) -> RemoteController:
        return RemoteController(partial(self._links.to, node), self._times)
