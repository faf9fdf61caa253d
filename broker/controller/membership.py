"""Joining a bucket, keeping the lease, and noticing that somebody else serves it now.

Owns this process's place in the cluster: the shell around `admission`, `lease_watch` and `gate`. Always true: nothing
is served before the epoch is committed to `cluster.json`; the lease is written only by compare-and-set and released
as the last act; a store that is away stops nothing but decisions (design 1). Must not know topics or partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from broker.controller.admission import Admission, BucketIdentity, DirectoryIdentity, LeaseSight, Verdict, admit
from broker.controller.gate import Gate
from broker.controller.lease_watch import Lease, LeaseWatch
from broker.metadata.cluster_root import ClusterRoot, Controller
from broker.metadata.image import ClusterImage
from broker.metadata.records import Listener, MetadataRecord, Node
from broker.metadata.rows import registered
from broker.outage import WHAT_TO_DO, Outage
from coldstore.keys import lease_key
from coldstore.object_store import AccessRefused, ObjectStore
from coldstore.root import RootStore, RootVanished
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
    """What joining settled. `identity` is what `meta.properties` must say; `position` that of `image`; `verdict` how it
    came about."""

    identity: DirectoryIdentity
    position: int
    image: ClusterImage
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Station:
    """Who we are to the cluster: node id, advertised address, and the operator's word about a dead predecessor."""

    node_id: int
    listeners: tuple[Listener, ...]
    rack: str | None
    take_over: bool


class Membership:
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
        self._lease: RootStore[Lease] = RootStore(
            store, lease_key(), Lease, world.rng, world.clock, deadline_s=interval_s
        )
        self.incarnation = world.rng.uuid().hex
        # One for every attempt to enter: the image counts an incarnation once, with the directory it first named, and
        # an attempt whose answer was lost may have been that first one.
        self._new_directory_id = uuid_text(world.rng.uuid().bytes)
        # Others count a lease from our last beat, which may lie two intervals back (one that failed) when we are
        # stopped: a shorter pause than a lease may be enough for them to take over.
        self.gate = Gate(world.clock.boottime_s, max(lease_s - 2 * interval_s, lease_s / 3))
        self.outage = Outage(world.clock)  # why the last polls failed, for /readyz, /metrics and `tier status`

    async def join(self, directory: DirectoryIdentity, station: Station) -> Joined:
        """Wait until this broker may serve the bucket, then commit its epoch. Raises Refused.

        A store that does not answer is waited for, saying why; the caller decides how long.
        """
        watch = LeaseWatch(self._lease_s)
        wait_s = 0.2
        while True:
            try:
                joined = await self._try_join(directory, station, watch)
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

    async def _try_join(self, directory: DirectoryIdentity, station: Station, watch: LeaseWatch) -> Joined | None:
        found = await self._cluster.load()
        bucket = None
        sight = LeaseSight.STILL
        if found is not None:
            bucket = BucketIdentity(found[0], {node.node_id: node.directory_id for node in found[1].nodes.values()})
            before_read = self._world.clock.monotonic_s()
            lease = await self._lease.load()
            known = self._cluster.known
            if lease is not None and known is not None and lease.content.controller_epoch < known.epoch:
                lease = None  # an older controller's: neither its counter nor its release says anything (C19)
            sight = watch.polled(None if lease is None else lease.content, before_read)
        admission = admit(directory, bucket, station.node_id, sight, take_over=station.take_over)
        match admission.verdict:
            case Verdict.REFUSE:
                raise Refused(admission.reason)
            case Verdict.WAIT:
                still_s, moving_s = watch.left_s()
                what = (
                    f"{admission.reason}: taken over in {still_s:.0f} s if it stands still, refused in "
                    f"{moving_s:.0f} s if it goes on to move"
                )
                self._waits_for(what)
                log.info("not ready: %s", what)
                return None
            case _:
                return await self._enter(directory, bucket, station, admission)

    async def _enter(
        self, directory: DirectoryIdentity, bucket: BucketIdentity | None, station: Station, admission: Admission
    ) -> Joined:
        rng = self._world.rng
        cluster_id = bucket.cluster_id if bucket is not None else directory.cluster_id or uuid_text(rng.uuid().bytes)
        directory_id = directory.directory_id or self._new_directory_id
        self.gate.begin()  # before the claim: from its landing on somebody may count our lease
        position, image = await self._cluster.claim(
            cluster_id,
            Controller(station.node_id, self.incarnation),
            lambda image: self._registration(image, station, directory_id),
        )
        log.info("controller epoch %d: %s", self._cluster.epoch, admission.reason)
        identity = DirectoryIdentity(cluster_id, station.node_id, directory_id, directory.has_logs)
        return Joined(identity, position, image, admission.verdict)

    def _registration(self, image: ClusterImage, station: Station, directory_id: str) -> list[MetadataRecord]:
        """This session begins, and with it another leader epoch of everything the node leads."""
        before = image.nodes.get(station.node_id)
        session = Node(
            station.node_id,
            image.next_broker_epoch,
            directory_id,
            self.incarnation,
            self._world.clock.boot_id(),
            station.listeners,
            station.rack,
        )
        is_other = before is not None and before.directory_id != directory_id
        return [session, *registered(image, station.node_id, is_other_directory=is_other)]

    async def keep(self) -> None:
        """Bump the lease and poll `cluster.json` every interval; returns when this broker was superseded."""
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch_clock())
            await self._poll_until_superseded()
            watching.cancel()

    async def _watch_clock(self) -> None:
        """Until cancelled. Beside the polls: one that hangs is no pause of ours, and must not pass for one."""
        while True:
            self.gate.is_open()
            await asyncio.sleep(min(_TICK_S, self._interval_s))

    async def _poll_until_superseded(self) -> None:
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
                by = await self._cluster.superseded_by()
                if by is None:
                    if paused:
                        log.warning("the clock jumped by more than a lease; still in charge, serving again")
                        self.gate.reopen(pauses)
                    await self._bump()
            self._answered()
        except NewerFormat:
            raise  # a newer program wrote it, so somebody else does serve here
        except (Retryable, AccessRefused, Corrupt, TimeoutError, RootVanished) as failure:
            self._unreachable(failure)
            return
        except Fenced as fenced:
            # The lease says when, cluster.json says who: ask it before giving up.
            log.warning("lease.json: %s", fenced)
            try:
                by = await self._cluster.superseded_by()
            except NewerFormat:
                raise
            except (Retryable, AccessRefused, Corrupt, RootVanished) as failure:
                self._unreachable(failure)
                return
        if by is not None:
            self.gate.shut(f"the broker of controller epoch {by}")

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

    async def _bump(self) -> None:
        epoch = self._cluster.epoch

        def bump(lease: Lease) -> Lease:
            if lease.incarnation != self.incarnation:
                return Lease(epoch, self.incarnation, lease.counter + 1, lease_ms=self._lease_ms)
            return replace(lease, counter=lease.counter + 1, released=False)

        await self._lease.commit(bump, epoch=epoch, claim=True, initial=self._first_lease)

    @property
    def _lease_ms(self) -> int:
        return int(self._lease_s * 1000)

    @property
    def _first_lease(self) -> Lease:
        return Lease(self._cluster.epoch, self.incarnation, 0, lease_ms=self._lease_ms)

    async def release(self) -> None:
        """The last act of a clean stop: the next broker need not wait. A failure only costs it that wait."""
        try:
            await self._lease.commit(
                lambda lease: replace(lease, released=True),
                epoch=self._cluster.epoch,
                claim=True,
                initial=self._first_lease,
            )
        except (Retryable, AccessRefused, Corrupt, Fenced) as failure:
            log.warning("lease not released: %s; a replacement will wait %.0f s", failure, self._lease_s)
