"""Membership of this process: its session, its polls of `cluster.json`, and the fences between processes (R1).

- A process that loses the controller epoch makes no more decisions, but keeps serving its partitions.
- A process that reads another incarnation under its node id stops answering and exits. Leader epochs fence partitions
  (`broker.partition`).
- When the image shows the end of the session, the process registers again. The lease is released last. While the store
  does not answer, only decisions stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec.structs import replace

from broker.config.times import ClusterTimes
from broker.controller.broker_rpc import SessionRequest
from broker.controller.cluster_control import ClusterControl
from broker.controller.remote_controller import RemoteController
from broker.errors import ApiError
from broker.following.image_feed import ImageFeed
from broker.membership import controlled_shutdown
from broker.membership.broker_fitness import BrokerFitness
from broker.membership.controller_lease import ControllerLease
from broker.membership.controller_term import ControllerTerm
from broker.membership.fitness_reporter import FitnessReporter
from broker.membership.heartbeat import Heartbeats
from broker.membership.identity import DirectoryIdentity, Standing, standing
from broker.membership.image_freshness import ImageFreshness
from broker.membership.serving_gate import ServingGate
from broker.membership.session_start import (
    Doubt,
    FirstRecords,
    Refused,
    SessionStart,
    StartedSession,
    Whose,
    no_records,
)
from broker.metadata.cluster_root import ClusterRoot, ImageAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import Endpoint
from broker.metrics.outage_log import OutageLog
from broker.peers.links import Links
from coldstore.object_store import AccessRefused, ObjectStore
from coldstore.roots.root import RootVanished
from logformat.errors import Corrupt, Retryable, ThermoclineError
from logformat.values import NewerFormat
from seams.world import World

__all__ = ["Refused", "Session", "StartedSession"]

log = logging.getLogger(__name__)

_TICK_S: Final = 1.0  # time between checks of the gate's clock while there are no requests
_POLL_HEARD_S: Final = 5.0  # time between polls while the controller is heard
_POLL_LEAST_S: Final = 4.0  # least time-out of a poll, because a slow store is not an outage


class Session:
    """One process in one cluster. `waits_for` gets the reason of each wait during the start, and its possible
    length."""

    def __init__(
        self,
        store: ObjectStore,
        cluster: ClusterRoot,
        world: World,
        links: Links,
        times: ClusterTimes,
        *,
        waits_for: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._world = world
        self._links = links
        self._times = times
        self._waits_for = waits_for
        self._node_id = -1
        self._asked: SessionRequest | None = None
        self._feed: ImageFeed | None = None
        self._controller_term: ControllerTerm | None = None
        self._heartbeats: Heartbeats | None = None
        self._fitness_reporter: FitnessReporter | None = None
        self._followed = asyncio.Event()
        self._at = ImageAt(-1, ClusterImage())
        self._look_again = asyncio.Event()
        self._polls_soon = False
        self.incarnation = world.rng.uuid().hex
        lease_s, interval_s = times.lease_s, times.interval_s
        self._controller_lease = ControllerLease(store, world, self.incarnation, lease_s=lease_s, interval_s=interval_s)
        # Other brokers count the lease from this broker's last bump. When this process is suspended, that bump may be
        # two intervals old (if one failed). The other brokers may thus take over after a pause that is shorter than a
        # lease.
        self.gate = ServingGate(world.clock.boottime_s, max(lease_s - 2 * interval_s, lease_s / 3))
        self.fresh = ImageFreshness(world.clock, times.session_s)
        self.outage = OutageLog(world.clock)  # why the last polls failed, for /readyz, /metrics and `tier status`

    @property
    def is_controller(self) -> bool:
        return self._controller_term is not None and self._controller_term.is_controller

    async def join(
        self,
        directory: DirectoryIdentity,
        node_id: int,
        listeners: tuple[Endpoint, ...],
        whose: Whose,
        doubt: Doubt,
        *,
        rack: str | None = None,
        take_over: bool = False,
        first_records: FirstRecords = no_records,
    ) -> StartedSession:
        """Wait until this broker has a session as `node_id`. Raises Refused. Waits for a store that does not answer,
        and logs the reason; the caller bounds the wait. `whose` and `doubt`: see `SessionStart`. `take_over`: an
        operator vouches that the broker that served from another directory is dead."""
        boot_id = self._world.clock.boot_id()
        who = SessionRequest(node_id, "", self.incarnation, "", boot_id, listeners, rack, take_over=take_over)
        joining = SessionStart(
            self._cluster,
            self._controller_lease,
            self._links,
            self._world,
            self.gate,
            self.outage,
            self._times,
            waits_for=self._waits_for,
            first_records=first_records,
        )
        joined = await joining.join(directory, who, whose, doubt)
        self._node_id = node_id
        self._asked = asked = replace(joined.asked, take_over=False, lost_logs=(), held_logs=())
        controller = joined.at.controller
        is_controller = controller is not None and controller.incarnation == self.incarnation
        self._controller_term = ControllerTerm(
            self._cluster,
            self._controller_lease,
            self._world,
            asked,
            self._times,
            self._take,
            is_controller=is_controller,
        )
        return joined

    # ── polls ────────────────────────────────────────────────────────────────────────────────────────────────────
    def follow(self, feed: ImageFeed, listener: ClusterControl, joined: StartedSession, fitness: BrokerFitness) -> None:
        """From now on `feed` gets each new image, `listener` gets changes of the controller role, and the controller
        gets `fitness`. Feed and listener already have the image of `joined`."""
        controller_term = self._controller_term
        assert controller_term is not None
        self._feed, controller_term.listener = feed, listener
        self._heartbeats = heartbeats = Heartbeats(
            self._links,
            self._world,
            self.gate,
            self._node_id,
            self.incarnation,
            lambda: self._at,
            self._observe,
            self._register_again,
            fitness,
            self._times,
            self._look_again.set,
            lambda: controller_term.no_claim_s,
        )
        self._fitness_reporter = FitnessReporter(
            self._node_id, fitness, heartbeats, controller_term, self.outage, lambda: self._at
        )
        self.fresh.follow(controller_term, heartbeats)
        self._followed.set()
        feed.watch(self._image_applied)
        self._image_applied(joined.at)

    async def keep(self) -> None:
        """Bump the lease and poll `cluster.json`; returns when another process serves as this node."""
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch_clock())
            beating = group.create_task(self._keep_heartbeats())
            await self._poll_until_replaced()
            watching.cancel()
            beating.cancel()

    async def _keep_heartbeats(self) -> None:
        await self._followed.wait()
        assert self._heartbeats is not None
        await asyncio.gather(self._heartbeats.keep(), self._heartbeats.keep_reporting())

    async def _watch_clock(self) -> None:
        """Check the gate's clock until cancelled. This is a separate task, because a hanging poll is not a pause of
        this process."""
        while True:
            self.gate.is_open()
            if self._fitness_reporter is not None:
                self._fitness_reporter.report()
            await self._world.beats.wait(min(_TICK_S, self._times.interval_s))

    @property
    def unfit_because(self) -> str:
        """See `FitnessReporter`; empty before this broker follows its images."""
        return "" if self._fitness_reporter is None else self._fitness_reporter.unfit_because

    # ── following `cluster.json` ─────────────────────────────────────────────────────────────────────────────────
    async def _poll_until_replaced(self) -> None:
        interval_s = self._times.interval_s
        polled_s = -interval_s - _POLL_HEARD_S
        while self.gate.superseded_by is None:
            paused = not self.gate.is_open()
            now = self._world.clock.monotonic_s()
            if paused or self._polls_soon or now >= polled_s + self._between_polls_s:
                polled_s, self._polls_soon = now, False
                await self._poll(paused=paused)
            self._look_again.clear()
            with suppress(TimeoutError):
                now_s = asyncio.get_running_loop().time()
                async with asyncio.timeout_at(self._world.beats.after(now_s, min(_TICK_S, interval_s))):
                    await self._look_again.wait()

    @property
    def _between_polls_s(self) -> float:
        heard = not self.is_controller and self._heartbeats is not None and self._heartbeats.is_heard
        return max(self._times.interval_s, _POLL_HEARD_S) if heard else self._times.interval_s

    async def _poll(self, *, paused: bool) -> None:
        pauses, sent_s = self.gate.paused_count, self._world.clock.boottime_s()
        try:
            async with asyncio.timeout(max(2 * self._times.interval_s, _POLL_LEAST_S)):
                seen = await self._cluster.poll()
                self._take(seen.at)
                self.fresh.polled_s = sent_s
                if paused and self.gate.superseded_by is None:
                    log.warning("the clock jumped by more than a lease; still in session, serving again")
                    self.gate.reopen(pauses)
                if self._controller_term is not None and self.gate.superseded_by is None:
                    await self._controller_term.beat()
            if self._controller_term is not None and self._heartbeats is not None and self.gate.superseded_by is None:
                await self._controller_term.claim_controller(seen, self._heartbeats)
            self._answered()
        except NewerFormat as newer:
            self.gate.shut(f"a newer program wrote cluster.json or lease.json: {newer}")
        except (RootVanished, Corrupt) as failure:
            self._unreachable(failure)
            await self._show_that_it_lives()
        except (Retryable, AccessRefused, TimeoutError) as failure:
            self._unreachable(failure)

    async def _show_that_it_lives(self) -> None:
        """Bump the lease although the root is missing or damaged, so that a rebuild of the root sees that brokers run
        (R29). The bump does not prove freshness.
        """
        if self.is_controller and self.gate.superseded_by is None:
            with suppress(ThermoclineError, TimeoutError):
                async with asyncio.timeout(self._times.interval_s):
                    await self._controller_lease.beat(self._cluster.epoch)

    def _unreachable(self, failure: Exception) -> None:
        # A missing root (perhaps an unmounted directory), expired credentials (fault O8) and a damaged root also count
        # as outages: no other controller took over.
        if self.outage.failed(failure):
            log.warning(
                "the bucket does not answer (cluster.json, lease.json: %s); produce and hot reads continue, "
                "but nothing is copied; check the network and the bucket's service",
                self.outage,
            )

    def _answered(self) -> None:
        if lasted := self.outage.answered():
            log.info("the bucket answers again, after %s", lasted)

    # ── images ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _take(self, at: ImageAt) -> None:
        """Apply an image that was read. The second fence comes first: if another process is registered as this node,
        that process leads the partitions.
        """
        if standing(at.image, self._node_id, self.incarnation) is Standing.REPLACED:
            other = at.image.nodes[self._node_id]
            epoch = "?" if at.controller is None else at.controller.epoch
            self.gate.shut(
                f"another process: incarnation {other.incarnation} of node {other.node_id}, broker epoch "
                f"{other.broker_epoch}, controller epoch {epoch}"
            )
        elif self._feed is not None:
            self._feed.take(at)

    async def _observe(self, data: bytes) -> None:
        self._take((await self._cluster.observe(data)).at)

    def _image_applied(self, at: ImageAt) -> None:
        assert self._controller_term is not None
        self._at = at
        self.fresh.is_alone = at.image.nodes.keys() == {self._node_id}
        self._controller_term.image_applied(at)

    def poll_soon(self) -> None:
        """Poll and bump the lease now."""
        self._polls_soon = True
        self._look_again.set()

    def step_back(self) -> None:
        assert self._controller_term is not None
        self._controller_term.step_back()

    async def _register_again(self) -> None:
        """The image shows the end of this session: it expired, or the controller took this process for dead."""
        asked, controller = self._asked, self._at.controller
        assert asked is not None
        if controller is None or controller.node_id == self._node_id:
            return
        nodes = self._at.image.nodes
        node, last = nodes[controller.node_id], nodes[self._node_id].broker_epoch
        log.warning("the session of broker epoch %d ended: registering again", last)
        try:
            brokers = RemoteController(partial(self._links.to, node), self._times)
            await brokers.register(replace(asked, previous_broker_epoch=last))
            self._take((await self._cluster.poll()).at)
        except (ConnectionError, TimeoutError, ApiError, Retryable, AccessRefused, Corrupt, RootVanished) as refused:
            log.warning("not registered again yet: %s", refused)

    # ── stop ─────────────────────────────────────────────────────────────────────────────────────────────────────
    async def hand_over(self) -> None:
        """The first step of a clean stop: other brokers take over leaderships (R9)."""
        if self._fitness_reporter is not None and len(self._at.image.nodes) > 1:
            await self._fitness_reporter.hand_over()

    def stop_serving(self) -> None:
        """The listeners close now. Call this before, because other brokers cannot reach this broker afterwards."""
        if self._controller_term is not None and self._controller_term.listener is not None:
            self._controller_term.listener.is_stopping = True

    async def release(self) -> None:
        await controlled_shutdown.leave(
            self._cluster,
            self._controller_lease,
            self._heartbeats,
            self._at.image,
            self._node_id,
            is_controller=self.is_controller,
        )
