"""This process in its cluster: its session, following `cluster.json`, being the controller, and three fences (R1).

Owns the shell around `joining`, `heartbeat`, `campaign` and `gate`. Always true: being the controller is an effect of
the image, as leading is, so a claim whose answer was lost comes true when its author reads it (D12); whoever loses the
controller epoch decides nothing more and goes on serving what it leads; whoever reads another incarnation under its
node id answers nothing more and ends; who loses the leader epoch of a partition is the partition's business
(`broker.partition`), not this room's. A session that ended is begun anew when the image shows its end. The lease is
released as the last act; a store that is away stops nothing but decisions. Must not know topics or partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from broker.controller.brokers import RegistrationAsked
from broker.controller.fitness import FIT, Fitness
from broker.controller.registrations import claim_records, end_records
from broker.controller.remote_brokers import RemoteBrokers
from broker.errors import ApiError
from broker.following.image_feed import ImageFeed
from broker.membership.campaign import Campaign
from broker.membership.fitness import CUT_OFF_S, OwnFitness
from broker.membership.gate import Gate
from broker.membership.heartbeat import Heartbeats
from broker.membership.identity import DirectoryIdentity
from broker.membership.joining import FREE, Joined, Joining, Refused
from broker.membership.lease_watch import LeaseSight
from broker.membership.registration import Standing, standing
from broker.metadata.cluster_content import Controller
from broker.metadata.cluster_root import ClusterRoot, ImageAt, Loaded
from broker.metadata.image import ClusterImage
from broker.metadata.records import Listener
from broker.outage import Outage
from broker.peers.links import Links
from coldstore.object_store import AccessRefused, ObjectStore
from coldstore.root import RootVanished
from logformat.errors import Corrupt, Fenced, Retryable, ThermoclineError
from logformat.values import NewerFormat
from seams.world import World

__all__ = ["Joined", "Refused", "Ruling", "Session"]

log = logging.getLogger(__name__)

_TICK_S: Final = 1.0  # how often the gate's clock is looked at when no request does it
_POLL_HEARD_S: Final = 5.0  # between polls of who hears the controller
_FIRST_S: Final = 0.3  # candidates wait up to so long, so that they do not claim at one moment (D11)
_PAUSE_S: Final = 10.0  # after giving the lease away: for whoever sees more to take it; doubled each time (R27)
_PAUSE_MAX_S: Final = 160.0
_LEAVE_S: Final = 5.0


class Ruling(Protocol):
    """What being the controller means: `broker.controller.attendance.Attendance`."""

    def begin(self, at: ImageAt, *, is_sure: bool) -> None: ...
    def end(self) -> None: ...
    def obey(self, at: ImageAt) -> None: ...
    def beaten(self, counter: int) -> None: ...
    @property
    def asked_s(self) -> float: ...
    def told(self, node_id: int, broker_epoch: int, fitness: Fitness) -> bool: ...
    async def settled(self) -> None: ...


class Session:
    """One process's life in one cluster. `lease_s` / `interval_s`: a lease, and how often it is bumped and polled;
    `waits_for` is told what joining waits for, and how long that may still take."""

    def __init__(
        self,
        store: ObjectStore,
        cluster: ClusterRoot,
        world: World,
        links: Links,
        *,
        lease_s: float,
        interval_s: float,
        waits_for: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._world = world
        self._links = links
        self._lease_s = lease_s
        self._interval_s = interval_s
        self._waits_for = waits_for
        self._node_id = -1
        self._asked: RegistrationAsked | None = None
        self._feed: ImageFeed | None = None
        self._ruling: Ruling | None = None
        self._heartbeats: Heartbeats | None = None
        self._fitness: OwnFitness | None = None
        self._told = FIT
        self._polled_s = float("-inf")
        self._followed = asyncio.Event()
        self._at = ImageAt(-1, ClusterImage())
        self._is_sure = False  # the next claim follows a step back that nobody answered
        self._stepped_back_until_s = 0.0
        self._pause_s = _PAUSE_S
        self.incarnation = world.rng.uuid().hex
        self._campaign = Campaign(store, world, self.incarnation, lease_s=lease_s, interval_s=interval_s)
        # Others count a lease from our last beat, which may lie two intervals back (one that failed) when we are
        # stopped: a shorter pause than a lease may be enough for them to take over.
        self.gate = Gate(world.clock.boottime_s, max(lease_s - 2 * interval_s, lease_s / 3))
        self.outage = Outage(world.clock)  # why the last polls failed, for /readyz, /metrics and `tier status`
        self.is_controller = False
        self._rules: int | None = None  # the controller epoch that `ruling` was begun in

    async def join(
        self,
        directory: DirectoryIdentity,
        node_id: int,
        listeners: tuple[Listener, ...],
        *,
        rack: str | None = None,
        take_over: bool = False,
    ) -> Joined:
        """Wait until this broker has a session as `node_id`. Raises Refused.

        A store that does not answer is waited for, saying why; the caller decides how long. `take_over`: the operator's
        word that the broker that served from another directory is dead.
        """
        boot_id = self._world.clock.boot_id()
        who = RegistrationAsked(node_id, "", self.incarnation, "", boot_id, listeners, rack, take_over=take_over)
        joining = Joining(
            self._cluster,
            self._campaign,
            self._links,
            self._world,
            self.gate,
            self.outage,
            pause_s=min(self._interval_s, self._lease_s / 4),
            waits_for=self._waits_for,
        )
        joined = await joining.join(directory, who)
        self._node_id, self._asked = node_id, replace(joined.asked, take_over=False, lost_logs=())
        self.is_controller = joined.at.controller is not None and joined.at.controller.incarnation == self.incarnation
        return joined

    # ── staying ──────────────────────────────────────────────────────────────────────────────────────────────────
    def follow(self, feed: ImageFeed, ruling: Ruling, joined: Joined, fitness: OwnFitness) -> None:
        """From now on `feed` gets each image that is found, `ruling` hears whether this process is the controller, and
        whoever is hears of `fitness`; feed and ruling know `joined`."""
        self._feed, self._ruling, self._fitness = feed, ruling, fitness
        fitness.watch(self._look_at_fitness)
        self._heartbeats = Heartbeats(
            self._links,
            self._world.clock,
            self.gate,
            self._node_id,
            self.incarnation,
            lambda: self._at,
            self._observe,
            self._register_again,
            fitness,
        )
        self._followed.set()
        feed.watch(self._obeyed)
        self._obeyed(joined.at)

    async def keep(self) -> None:
        """Beat and poll `cluster.json`; returns when another process serves as this node."""
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch_clock())
            beating = group.create_task(self._keep_heartbeats())
            await self._poll_until_replaced()
            watching.cancel()
            beating.cancel()

    async def _keep_heartbeats(self) -> None:
        await self._followed.wait()
        assert self._heartbeats is not None
        await asyncio.gather(self._heartbeats.keep(), self._heartbeats.keep_telling())

    async def _watch_clock(self) -> None:
        """Until cancelled. Beside the polls: one that hangs is no pause of ours, and must not pass for one."""
        while True:
            self.gate.is_open()
            self._look_at_fitness()
            await asyncio.sleep(min(_TICK_S, self._interval_s))

    def _look_at_fitness(self) -> None:
        """What is new about it is said at once."""
        fitness, heartbeats, ruling = self._fitness, self._heartbeats, self._ruling
        if fitness is None or heartbeats is None or ruling is None:
            return
        fitness.is_cut_off = min(self.outage.seconds, heartbeats.heard_for_s) >= CUT_OFF_S
        now = fitness.now()
        if self.is_controller:
            ruling.told(self._node_id, self._at.image.nodes[self._node_id].broker_epoch, now)
        elif now != self._told:
            heartbeats.tell()
        self._told = now

    # ── how fresh it is ──────────────────────────────────────────────────────────────────────────────────────────
    @property
    def confirmed_s(self) -> float:
        """When the last question was *sent* whose answer showed what this broker obeys to be the newest: a poll of
        `cluster.json`, or a heartbeat to a controller that beats its lease (R23). Seconds of the boot clock; −inf:
        none was answered yet."""
        heard_s = float("-inf") if self._heartbeats is None else self._heartbeats.fresh_s
        return max(self._polled_s, heard_s)

    @property
    def answered_s(self) -> float:
        """The same for whoever needs no more than to be in session (R25): "store away" from the controller that the
        image names counts too. The controller itself is in session while others take it for that, and alone always."""
        if self.is_controller and self._ruling is not None:
            is_alone = self._at.image.nodes.keys() == {self._node_id}
            asked_s = self._world.clock.boottime_s() if is_alone else self._ruling.asked_s
            return max(self.confirmed_s, asked_s)
        heard_s = float("-inf") if self._heartbeats is None else self._heartbeats.answered_s
        return max(self.confirmed_s, heard_s)

    @property
    def heartbeat_s(self) -> float:
        """When the last heartbeat was sent that the controller answered, "store away" too; −inf: none was."""
        return float("-inf") if self._heartbeats is None else self._heartbeats.answered_s

    @property
    def unfit_because(self) -> str:
        """Why this broker is to lead only what no other can; empty while it may lead all."""
        return "" if self._fitness is None else self._fitness.why

    async def _poll_until_replaced(self) -> None:
        polled_s = -self._interval_s - _POLL_HEARD_S
        while self.gate.superseded_by is None:
            paused = not self.gate.is_open()
            now = self._world.clock.monotonic_s()
            if paused or now >= polled_s + self._between_polls_s:
                polled_s = now
                await self._poll(paused=paused)
            await asyncio.sleep(min(_TICK_S, self._interval_s))

    @property
    def _between_polls_s(self) -> float:
        heard = not self.is_controller and self._heartbeats is not None and self._heartbeats.is_heard
        return max(self._interval_s, _POLL_HEARD_S) if heard else self._interval_s

    async def _poll(self, *, paused: bool) -> None:
        pauses, sent_s = self.gate.paused_count, self._world.clock.boottime_s()
        try:
            async with asyncio.timeout(self._interval_s * 2):
                seen = await self._cluster.poll()
                self._take(seen.at)
                self._polled_s = sent_s
                if paused and self.gate.superseded_by is None:
                    log.warning("the clock jumped by more than a lease; still in session, serving again")
                    self.gate.reopen(pauses)
                await self._beat()
            await self._run_for_office(seen)
            self._answered()
        except NewerFormat as newer:
            self.gate.shut(f"a newer program: {newer}")
        except (Retryable, AccessRefused, Corrupt, TimeoutError, RootVanished) as failure:
            self._unreachable(failure)

    # ── images, and what they say of this process ────────────────────────────────────────────────────────────────
    def _take(self, at: ImageAt) -> None:
        """Obey an image that was read: the second fence first, for what another process leads it leads."""
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

    def _obeyed(self, at: ImageAt) -> None:
        """The first fence, and its other side: who the image names decides."""
        self._at = at
        ruling, controller = self._ruling, at.controller
        assert ruling is not None
        if controller is None or controller.incarnation != self.incarnation:
            if self.is_controller and controller is not None:
                log.warning(
                    "controller epoch %d is over, %d decides now: serving on", self._cluster.epoch, controller.epoch
                )
            self.is_controller, self._rules, self._stepped_back_until_s = False, None, 0.0
            ruling.end()
        elif self._rules != controller.epoch:
            self.is_controller, self._rules, self._cluster.epoch = True, controller.epoch, controller.epoch
            ruling.begin(at, is_sure=self._is_sure)
            self._is_sure = False
        ruling.obey(at)

    async def _register_again(self) -> None:
        """The image shows that our session ended: by silence, or because another took us for dead."""
        asked, controller = self._asked, self._at.controller
        assert asked is not None
        if controller is None or controller.node_id == self._node_id:
            return
        nodes = self._at.image.nodes
        node, last = nodes[controller.node_id], nodes[self._node_id].broker_epoch
        log.warning("the session of broker epoch %d ended: registering again", last)
        try:
            await RemoteBrokers(partial(self._links.to, node)).register(replace(asked, previous_broker_epoch=last))
            self._take((await self._cluster.poll()).at)
        except (ConnectionError, TimeoutError, ApiError, Retryable, AccessRefused, Corrupt, RootVanished) as refused:
            log.warning("not registered again yet: %s", refused)

    # ── deciding ─────────────────────────────────────────────────────────────────────────────────────────────────
    async def _beat(self) -> None:
        if not self.is_controller or self.gate.superseded_by is not None:
            return
        try:
            if self._is_stepping_back:
                await self._campaign.release(self._cluster.epoch)
                return
            counter = await self._campaign.beat(self._cluster.epoch)
        except RootVanished:
            raise
        except Fenced as fenced:
            # The lease says when, cluster.json says who: ask it before giving up.
            log.warning("lease.json: %s", fenced)
            self._take((await self._cluster.poll()).at)
        else:
            if self._ruling is not None:
                self._ruling.beaten(counter)

    async def _run_for_office(self, seen: Loaded) -> None:
        """Claim the controller epoch, where the lease lets one and nobody is heard who has it."""
        if self._heartbeats is None or self.gate.superseded_by is not None or seen.controller is None:
            return
        if self.is_controller:
            if self._stepped_back_until_s and not self._is_stepping_back:
                await self._claim_again()
            return
        if self._heartbeats.is_heard:
            return
        sight = await self._campaign.look(seen.epoch)
        is_gone = self._heartbeats.is_refused and self._campaign.stood_s >= 2 * self._interval_s
        if sight in FREE or is_gone:
            await asyncio.sleep(self._world.rng.uniform(0, min(_FIRST_S, self._interval_s)))
            await self._claim(None if sight is LeaseSight.RELEASED else seen.controller.node_id)

    async def _claim(self, replaced: int | None) -> None:
        asked = self._asked
        assert asked is not None
        try:
            at = await self._cluster.claim(
                asked.cluster_id,
                Controller(self._node_id, self.incarnation),
                lambda image: claim_records(image, asked, replaced),
            )
        except Fenced as fenced:
            log.info("another broker claimed first: %s", fenced)
            return
        log.warning("controller epoch %d is ours", self._cluster.epoch)
        self._take(at)

    # ── stepping back (R27) ──────────────────────────────────────────────────────────────────────────────────────
    def step_back(self) -> None:
        """Give the lease to whoever sees more of the cluster; where nobody takes it in a while, claim it again."""
        if self._is_stepping_back or not self.is_controller:
            return
        self._stepped_back_until_s = self._world.clock.monotonic_s() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)
        assert self._ruling is not None
        self._ruling.end()

    @property
    def _is_stepping_back(self) -> bool:
        return self._world.clock.monotonic_s() < self._stepped_back_until_s

    async def _claim_again(self) -> None:
        self._stepped_back_until_s = 0.0
        self._is_sure = True
        await self._claim(None)

    # ── the bucket, and the end ──────────────────────────────────────────────────────────────────────────────────
    def _unreachable(self, failure: Exception) -> None:
        # A root that is gone is an outage too, a directory that was unmounted perhaps; so are credentials that expired
        # (fault O8), and a root that rotted: nobody took our place in it.
        if self.outage.failed(failure):
            log.warning(
                "the bucket does not answer (cluster.json, lease.json: %s); produce and hot reads go on, nothing is "
                "copied; check the network and the bucket's service",
                self.outage,
            )

    def _answered(self) -> None:
        if lasted := self.outage.answered():
            log.info("the bucket answers again, after %s", lasted)

    async def hand_over(self) -> None:
        """The first act of a clean stop: others lead what they can (R9). What fails costs them the wait for our end."""
        if self._heartbeats is None or self._fitness is None or len(self._at.image.nodes) == 1:
            return
        self._fitness.is_stopping = True
        try:
            async with asyncio.timeout(_LEAVE_S):
                if self.is_controller and self._ruling is not None:
                    self._look_at_fitness()
                    await self._ruling.settled()
                else:
                    await self._heartbeats.hand_over()
        except (ThermoclineError, OSError) as failure:  # TimeoutError and ConnectionError are OSErrors
            log.warning("leaderships not handed over: %s; others lead when this broker left", failure)

    async def release(self) -> None:
        """The last acts of a clean stop: end the session where others are, and let nobody wait for the lease. A failure
        only costs them that wait."""
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._leave()
        except (ThermoclineError, OSError) as failure:  # TimeoutError and ConnectionError are OSErrors
            log.warning("left without a word: %s; others wait until this broker's session or lease is over", failure)

    async def _leave(self) -> None:
        if not self.is_controller:
            if self._heartbeats is not None:
                await self._heartbeats.leave()
            return
        nodes = self._at.image.nodes
        if len(nodes) > 1:
            own = nodes[self._node_id]
            await self._cluster.commit(end_records(self._at.image, [(own.node_id, own.broker_epoch)]))
        await self._campaign.release(self._cluster.epoch)
