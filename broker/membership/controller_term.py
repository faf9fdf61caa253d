"""Controller role of this process: lease bumps, claims, and resignation (R27).

- The image decides which broker is the controller, as it does for leaders. A claim whose response was lost thus takes
  effect when its author reads it (D12).
- A broker does not claim while a controller answers it.
- A controller that resigned stops bumping, and claims again if no other broker claimed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.config.times import ClusterTimes
from broker.controller.broker_rpc import SessionRequest
from broker.controller.decisions.registrations import claim_records
from broker.membership.controller_lease import ControllerLease
from broker.membership.heartbeat import Heartbeats
from broker.membership.lease_watch import LeaseSight
from broker.membership.session_start import FREE
from broker.metadata.cluster_content import Controller
from broker.metadata.cluster_root import ClusterRoot, ImageAt, Loaded
from coldstore.roots.root import RootVanished
from logformat.errors import Fenced
from seams.world import World

if TYPE_CHECKING:
    from broker.controller.cluster_control import ClusterControl

log = logging.getLogger(__name__)

_FIRST_S: Final = 0.3  # longest random wait of candidates, so that they do not claim at the same time (D11)
PAUSE_S: Final = 10.0
"""Pause after a resignation, in which a better connected broker may claim: at least two polls. It doubles with each
resignation.
"""
PAUSE_MAX_S: Final = 160.0


class ControllerTerm:
    """The controller role of the process that `asked` for its session. `take` applies an image that was read."""

    def __init__(
        self,
        cluster: ClusterRoot,
        controller_lease: ControllerLease,
        world: World,
        asked: SessionRequest,
        times: ClusterTimes,
        take: Callable[[ImageAt], None],
        *,
        is_controller: bool,
    ) -> None:
        self._cluster = cluster
        self._controller_lease = controller_lease
        self._world = world
        self._asked = asked
        self._times = times
        self._take = take
        self.is_controller = is_controller
        self._is_claiming = False  # true from the poll that allows a claim to the outcome of the claim
        self.listener: ClusterControl | None = None  # None before this broker follows its images
        self._rules: int | None = None  # the controller epoch in which `listener` began
        self._is_sure = False  # the next claim follows a resignation, without another broker's claim in between
        self._stepped_back_s = self._stepped_back_until_s = 0.0  # time of the last resignation, and end of its pause
        self._first_pause_s = self._pause_s = max(PAUSE_S, 2 * times.interval_s)
        self._pause_max_s = max(PAUSE_MAX_S, self._first_pause_s)

    def image_applied(self, at: ImageAt) -> None:
        """Apply an image to the controller role. This is the first fence: the process that the image names is the
        controller."""
        listener, controller = self.listener, at.controller
        assert listener is not None
        if controller is None or controller.incarnation != self._asked.incarnation:
            if self.is_controller and controller is not None:
                log.warning(
                    "controller epoch %d is over, epoch %d began: still serving", self._cluster.epoch, controller.epoch
                )
            if controller is not None:
                self._pause_s, self._is_sure = self._first_pause_s, False  # another broker took over
            self.is_controller, self._rules, self._stepped_back_until_s = False, None, 0.0
            listener.end()
        elif self._rules != controller.epoch:
            self.is_controller, self._rules, self._cluster.epoch = True, controller.epoch, controller.epoch
            self._stepped_back_until_s = 0.0
            listener.begin(at, is_sure=self._is_sure, claimed_s=self._cluster.claimed_s)
            self._is_sure = False
        listener.apply_image(at)

    # ── the lease ────────────────────────────────────────────────────────────────────────────────────────────────
    async def beat(self) -> None:
        """Bump the lease if this process is the controller. Errors as `ControllerLease.beat`, except Fenced."""
        if not self.is_controller:
            return
        try:
            if self._stepped_back_until_s:  # it resigned and has not claimed again
                await self._controller_lease.release(self._cluster.epoch)
                return
            sent_s = self._world.clock.boottime_s()
            counter = await self._controller_lease.beat(self._cluster.epoch)
        except RootVanished:
            raise
        except Fenced as fenced:
            # A fenced lease alone does not end the role: cluster.json names the controller, so it is read first.
            log.warning("lease.json: %s", fenced)
            self._take((await self._cluster.poll()).at)
        else:
            if self.listener is not None:
                self.listener.lease_bumped(counter, sent_s)

    async def claim_controller(self, seen: Loaded, sight: Heartbeats) -> None:
        """Claim the controller epoch if the lease is free and no controller answers."""
        if seen.controller is None:
            return
        if self.is_controller:
            if self._stepped_back_until_s and not self._is_stepping_back:
                self._is_sure = True
                await self._claim(None)
            return
        if sight.is_heard:
            return
        lease = await self._controller_lease.poll(seen.epoch)
        is_gone = sight.is_refused and self._controller_lease.stood_s >= 2 * self._times.interval_s
        if lease in FREE or is_gone:
            self._is_claiming = True
            try:
                await asyncio.sleep(self._world.rng.uniform(0, min(_FIRST_S, self._times.interval_s)))
                known = self._cluster.known
                if known is not None and known.epoch == seen.epoch:  # otherwise another broker claimed meanwhile
                    await self._claim(None if lease is LeaseSight.RELEASED else seen.controller.node_id)
            finally:
                self._is_claiming = False

    @property
    def no_claim_s(self) -> float:
        """Seconds from now in which this process does not send a claim, and no claim of this process takes effect. 0
        while a claim is about to be sent, is in flight, or has an unknown outcome.
        """
        if self._is_claiming or not self._cluster.is_settled:
            return 0.0
        return self._controller_lease.no_claim_s

    async def _claim(self, replaced: int | None) -> None:
        asked = self._asked
        try:
            at = await self._cluster.claim(
                asked.cluster_id,
                Controller(asked.node_id, asked.incarnation),
                lambda image: claim_records(image, asked, replaced),
            )
        except Fenced as fenced:
            log.info("another broker claimed first: %s", fenced)
            return
        log.warning("this broker is the controller: controller epoch %d", self._cluster.epoch)
        self._take(at)

    # ── stepping back (R27) ──────────────────────────────────────────────────────────────────────────────────────
    def step_back(self) -> None:
        """Resign, so that a better connected broker can claim the lease. If no broker claims the lease, this process
        claims it again after a pause."""
        if self._is_stepping_back or not self.is_controller:
            return
        now = self._world.clock.monotonic_s()
        if self._stepped_back_s and now - self._stepped_back_s > 2 * self._pause_max_s:
            self._pause_s = self._first_pause_s  # enough heartbeats arrived for a long time: reset the doubling
        self._stepped_back_s = now
        self._stepped_back_until_s = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._pause_max_s)
        assert self.listener is not None
        self.listener.end()

    @property
    def _is_stepping_back(self) -> bool:
        return self._world.clock.monotonic_s() < self._stepped_back_until_s
