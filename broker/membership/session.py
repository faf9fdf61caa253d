"""This process in its cluster: joining it, following `cluster.json`, and three fences (R1).

Owns the shell around `identity`, `registration`, `campaign` and `gate`. Always true: nothing is served before the
session is committed to `cluster.json`; whoever loses the controller epoch decides nothing more and goes on serving what
it leads; whoever reads another incarnation under its node id answers nothing more and ends; who loses the leader epoch
of a partition is the partition's business (`broker.partition`), not this room's. The lease is released as the last act;
a store that is away stops nothing but decisions (design 1). Must not know topics or partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from broker.controller.brokers import RegistrationAsked
from broker.controller.registrations import session_records
from broker.membership.campaign import Campaign
from broker.membership.gate import Gate
from broker.membership.identity import Admittance, BucketIdentity, DirectoryIdentity, Verdict, admit
from broker.membership.lease_watch import LeaseSight
from broker.membership.registration import Standing, standing
from broker.metadata.cluster_content import Controller
from broker.metadata.cluster_root import ClusterRoot, ImageAt
from broker.metadata.records import Listener
from broker.outage import WHAT_TO_DO, Outage
from coldstore.object_store import AccessRefused, ObjectStore
from coldstore.root import RootVanished
from logformat.errors import Corrupt, Fenced, InvalidRequest, Retryable
from logformat.values import NewerFormat, uuid_text
from seams.world import World

log = logging.getLogger(__name__)

_TICK_S: Final = 1.0  # how often the gate's clock is looked at when no request does it
_RETRY_MAX_S: Final = 10.0


class Refused(InvalidRequest):
    """This broker may not serve this bucket: exit 3 with the reason."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What joining settled. `identity` is what `meta.properties` must say; `at` holds the image it was settled in;
    `verdict` how it came about."""

    identity: DirectoryIdentity
    at: ImageAt
    broker_epoch: int
    verdict: Verdict


class Session:
    """One process's life in one cluster. `lease_s` / `interval_s`: a lease, and how often it is bumped and polled;
    `waits_for` is told what joining waits for, and how long that may still take."""

    def __init__(
        self,
        store: ObjectStore,
        cluster: ClusterRoot,
        world: World,
        *,
        lease_s: float,
        interval_s: float,
        waits_for: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._world = world
        self._lease_s = lease_s
        self._interval_s = interval_s
        self._waits_for = waits_for
        self._node_id = -1
        self._take: Callable[[ImageAt], object] = lambda _: None
        self._stand_down: Callable[[], None] = lambda: None
        self.incarnation = world.rng.uuid().hex
        self._campaign = Campaign(store, world, self.incarnation, lease_s=lease_s, interval_s=interval_s)
        # One for every attempt to enter: an attempt whose answer was lost may have been the first one.
        self._new_directory_id = uuid_text(world.rng.uuid().bytes)
        # Others count a lease from our last beat, which may lie two intervals back (one that failed) when we are
        # stopped: a shorter pause than a lease may be enough for them to take over.
        self.gate = Gate(world.clock.boottime_s, max(lease_s - 2 * interval_s, lease_s / 3))
        self.outage = Outage(world.clock)  # why the last polls failed, for /readyz, /metrics and `tier status`
        self.is_controller = False

    # ── joining ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def join(
        self,
        directory: DirectoryIdentity,
        node_id: int,
        listeners: tuple[Listener, ...],
        *,
        rack: str | None = None,
        take_over: bool = False,
    ) -> Joined:
        """Wait until this broker may serve the bucket as `node_id`, then register. Raises Refused.

        A store that does not answer is waited for, saying why; the caller decides how long. `take_over`: the operator's
        word that the broker that served from another directory is dead.
        """
        boot_id = self._world.clock.boot_id()
        who = RegistrationAsked(node_id, "", self.incarnation, "", boot_id, listeners, rack)
        wait_s = 0.2
        while True:
            try:
                joined = await self._try_join(directory, who, take_over=take_over)
            except Retryable as failure:
                if self.outage.failed(failure):
                    log.warning("not ready: the bucket does not answer (%s); %s", self.outage, WHAT_TO_DO)
                await asyncio.sleep(wait_s * self._world.rng.uniform(0.8, 1.2))
                wait_s = min(wait_s * 2, _RETRY_MAX_S)
                continue
            except Fenced:
                log.info("another broker committed to cluster.json at the same moment; looking again")
                continue
            self._answered()
            if joined is not None:
                return joined
            wait_s = 0.2
            await asyncio.sleep(min(self._interval_s, self._lease_s / 4))

    async def _try_join(
        self, directory: DirectoryIdentity, who: RegistrationAsked, *, take_over: bool
    ) -> Joined | None:
        found = await self._cluster.load()
        bucket = None
        sight = LeaseSight.STILL
        if found is not None:
            directories = {node.node_id: node.directory_id for node in found.image.nodes.values()}
            bucket = BucketIdentity(found.cluster_id, directories)
            sight = await self._campaign.look(found.epoch)
        admission = admit(directory, bucket, who.node_id, sight, take_over=take_over)
        match admission.verdict:
            case Verdict.REFUSE:
                raise Refused(admission.reason)
            case Verdict.WAIT:
                still_s, moving_s = self._campaign.left_s()
                what = (
                    f"{admission.reason}: taken over in {still_s:.0f} s if it stands still, refused in "
                    f"{moving_s:.0f} s if it goes on to move"
                )
                self._waits_for(what)
                log.info("not ready: %s", what)
                return None
            case _:
                return await self._register(directory, bucket, who, admission)

    async def _register(
        self, directory: DirectoryIdentity, bucket: BucketIdentity | None, who: RegistrationAsked, admission: Admittance
    ) -> Joined:
        """With ourselves: nobody holds the lease, so this commit takes the controller epoch too."""
        rng = self._world.rng
        cluster_id = bucket.cluster_id if bucket is not None else directory.cluster_id or uuid_text(rng.uuid().bytes)
        directory_id = directory.directory_id or self._new_directory_id
        asked = replace(who, cluster_id=cluster_id, directory_id=directory_id)
        self.gate.begin()  # before the claim: from its landing on somebody may count our lease
        at = await self._cluster.claim(
            cluster_id,
            Controller(who.node_id, who.incarnation),
            lambda image: session_records(image, asked),
        )
        self._node_id, self.is_controller = who.node_id, True
        session = at.image.nodes[who.node_id]
        log.info(
            "controller epoch %d, broker epoch %d: %s", self._cluster.epoch, session.broker_epoch, admission.reason
        )
        identity = DirectoryIdentity(cluster_id, who.node_id, directory_id, directory.has_logs)
        return Joined(identity, at, session.broker_epoch, admission.verdict)

    # ── staying ──────────────────────────────────────────────────────────────────────────────────────────────────

    def follow(self, take: Callable[[ImageAt], object], stand_down: Callable[[], None]) -> None:
        """From now on tell `take` each image that polls find, which may be known already, and
        `stand_down` when this process is the controller no more."""
        self._take, self._stand_down = take, stand_down
        if not self.is_controller:
            stand_down()

    async def keep(self) -> None:
        """Beat and poll `cluster.json` every interval; returns when another process serves as this node."""
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch_clock())
            await self._poll_until_replaced()
            watching.cancel()

    async def _watch_clock(self) -> None:
        """Until cancelled. Beside the polls: one that hangs is no pause of ours, and must not pass for one."""
        while True:
            self.gate.is_open()
            await asyncio.sleep(min(_TICK_S, self._interval_s))

    async def _poll_until_replaced(self) -> None:
        due = 0.0
        while self.gate.superseded_by is None:
            paused = not self.gate.is_open()
            now = self._world.clock.monotonic_s()
            if paused or now >= due:
                due = now + self._interval_s
                await self._poll(paused=paused)
            await asyncio.sleep(min(_TICK_S, self._interval_s))

    async def _poll(self, *, paused: bool) -> None:
        pauses = self.gate.paused_count
        try:
            async with asyncio.timeout(self._interval_s * 2):
                await self._look()
                if paused and self.gate.superseded_by is None:
                    log.warning("the clock jumped by more than a lease; still in session, serving again")
                    self.gate.reopen(pauses)
                await self._beat()
            self._answered()
        except NewerFormat as newer:
            self.gate.shut(f"a newer program: {newer}")
        except (Retryable, AccessRefused, Corrupt, TimeoutError, RootVanished) as failure:
            self._unreachable(failure)

    async def _look(self) -> None:
        """Obey what `cluster.json` says now: the first two fences."""
        seen = await self._cluster.poll()
        now = standing(seen.image, self._node_id, self.incarnation)
        if now is Standing.REPLACED:
            other = seen.image.nodes[self._node_id]
            self.gate.shut(
                f"another process: incarnation {other.incarnation} of node {other.node_id}, broker epoch "
                f"{other.broker_epoch}, controller epoch {seen.epoch}"
            )
            return
        if self.is_controller and seen.epoch > self._cluster.epoch:
            log.warning("controller epoch %d is over, %d decides now: serving on", self._cluster.epoch, seen.epoch)
            self.is_controller = False
            self._stand_down()
        self._take(seen.at)

    async def _beat(self) -> None:
        if not self.is_controller or self.gate.superseded_by is not None:
            return
        try:
            await self._campaign.beat(self._cluster.epoch)
        except RootVanished:
            raise
        except Fenced as fenced:
            # The lease says when, cluster.json says who: ask it before giving up.
            log.warning("lease.json: %s", fenced)
            await self._look()

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

    async def release(self) -> None:
        """The last act of a clean stop: the next broker need not wait. A failure only costs it that wait."""
        if not self.is_controller:
            return
        try:
            await self._campaign.release(self._cluster.epoch)
        except (Retryable, AccessRefused, Corrupt, Fenced) as failure:
            log.warning("lease not released: %s; a replacement will wait %.0f s", failure, self._lease_s)
