"""Start of a process's session: it claims the controller epoch, or registers with the controller that the image names.

- The broker serves only after it read its committed session in `cluster.json`.
- A process claims if it is alone in the image, or the lease was released or expired. If the controller's port refuses
  connections, or if the controller served from this directory, two missed bumps are enough.
- Any other process registers with the controller and names the lease counter that it read, because its bucket may be a
  copy of the controller's. A new directory first waits for a bump of that lease.
- The start waits for a store that does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

import msgspec
from msgspec.structs import replace

from broker.config.times import ClusterTimes
from broker.controller.broker_rpc import SessionRequest
from broker.controller.decisions.registrations import claim_records
from broker.controller.remote_controller import RemoteController
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.membership.controller_lease import ControllerLease
from broker.membership.identity import Admittance, BucketIdentity, DirectoryIdentity, Verdict, admit
from broker.membership.lease_watch import LeaseSight
from broker.membership.lost_logs import held_logs, is_older_copy, lost_logs
from broker.membership.serving_gate import ServingGate
from broker.metadata.cluster_content import Controller
from broker.metadata.cluster_root import ClusterRoot, ImageAt, Loaded
from broker.metadata.rebuilt import is_rebuilt
from broker.metadata.records import NO_EPOCH, LogPlace, MetadataRecord
from broker.metrics.outage_log import WHAT_TO_DO, OutageLog
from broker.peers.links import Links
from logformat.errors import Fenced, InvalidRequest, Retryable
from logformat.values import TopicPartition, uuid_text
from seams.world import World

log = logging.getLogger(__name__)

Whose: TypeAlias = Callable[[], Awaitable[Mapping[TopicPartition, UUID]]]
Doubt: TypeAlias = Callable[[], Awaitable[None]]

FREE: Final = (LeaseSight.STILL, LeaseSight.RELEASED)
_RETRY_MAX_S: Final = 10.0
_SOON_S: Final = 0.25
_TELL_S: Final = 3.0  # time between two log lines about one wait


FirstRecords = Callable[[], Awaitable[tuple[MetadataRecord, ...]]]
"""Records of a new cluster's first commit, beside its first session."""


async def no_records() -> tuple[MetadataRecord, ...]:
    return ()


async def _no_doubt() -> None:
    """The default: every log here is trusted."""


class Refused(InvalidRequest):
    """This broker may not serve this bucket: exit 3 with the reason."""


class StartedSession(msgspec.Struct, frozen=True):
    """The result of joining. `identity`: the content for `meta.properties`. `at`: the image with the session. `asked`:
    the registration."""

    identity: DirectoryIdentity
    at: ImageAt
    broker_epoch: int
    verdict: Verdict
    asked: SessionRequest


class SessionStart:
    def __init__(
        self,
        cluster: ClusterRoot,
        controller_lease: ControllerLease,
        links: Links,
        world: World,
        gate: ServingGate,
        outage: OutageLog,
        times: ClusterTimes,
        *,
        waits_for: Callable[[str], None],
        first_records: FirstRecords = no_records,
    ) -> None:
        self._cluster = cluster
        self._first_records = first_records
        self._controller_lease = controller_lease
        self._links = links
        self._world = world
        self._gate = gate
        self._outage = outage
        self._times = times
        self._pause_s = min(times.interval_s, times.lease_s / 4)  # time between attempts without a result
        self._polls_soon = False  # whether the result is expected within a bump
        self._waits_for = waits_for
        # All attempts use one id: an earlier attempt whose response was lost may have succeeded.
        self._new_directory_id = uuid_text(world.rng.uuid().bytes)
        self._duplicate: tuple[int, float] | None = None  # controller epoch and time of the first duplicate error
        self._told = "", 0.0  # the last logged wait without its numbers, and its time
        self._doubt: Doubt = _no_doubt
        self._not_there: int | None = None  # epoch of the controller whose port refused the last attempt

    async def join(
        self, directory: DirectoryIdentity, who: SessionRequest, whose: Whose, doubt: Doubt = _no_doubt
    ) -> StartedSession:
        """Wait until this broker has a session. Raises Refused. The ids of cluster and directory are not yet set in
        `who`. `whose` reads the topic ids of the directory's logs. It is used after a rebuild of the cluster. `doubt`
        marks the end of every log here as unknown. It is used if this is an older copy of the directory."""
        wait_s, self._doubt = 0.2, doubt
        while True:
            try:
                joined = await self._try_join(directory, who, whose)
            except Retryable as failure:
                if self._outage.failed(failure):
                    log.warning("not ready: the bucket does not answer (%s); %s", self._outage, WHAT_TO_DO)
                await asyncio.sleep(wait_s * self._world.rng.uniform(0.8, 1.2))
                wait_s = min(wait_s * 2, _RETRY_MAX_S)
                continue
            except Fenced:
                log.info("another broker committed to cluster.json at the same moment; reading again")
                continue
            if lasted := self._outage.answered():
                log.info("the bucket answers again, after %s", lasted)
            if joined is not None:
                return joined
            wait_s = 0.2
            await asyncio.sleep(min(self._pause_s, _SOON_S) if self._polls_soon else self._pause_s)

    async def _try_join(self, directory: DirectoryIdentity, who: SessionRequest, whose: Whose) -> StartedSession | None:
        self._polls_soon = False
        found = await self._cluster.load()
        bucket = None
        sight = LeaseSight.STILL
        if found is not None:
            directories = {node.node_id: node.directory_id for node in found.image.nodes.values()}
            bucket = BucketIdentity(found.cluster_id, directories, is_rebuilt(found.image))
            sight = await self._controller_lease.poll(found.epoch)
        admission = admit(directory, bucket, who.node_id, sight, take_over=who.take_over)
        match admission.verdict:
            case Verdict.REFUSE:
                raise Refused(admission.reason)
            case Verdict.WAIT:
                still_s, moving_s = self._controller_lease.left_s()
                self._wait(
                    f"{admission.reason}: this broker takes over in {still_s:.0f} s if the lease is not "
                    f"renewed, and refuses to start in {moving_s:.0f} s if it is"
                )
                return None
        rng = self._world.rng
        cluster_id = found.cluster_id if found is not None else directory.cluster_id or uuid_text(rng.uuid().bytes)
        lost: tuple[LogPlace, ...] = ()
        held: tuple[LogPlace, ...] = ()
        if found is not None and admission.verdict is Verdict.RESUME:
            if is_older_copy(found.image, who.node_id, directory):
                await self._doubt()  # decided before the session, because afterwards the directory records this process
            lost = lost_logs(found.image, who.node_id, who.boot_id, directory)
            held = held_logs(found.image, await whose()) if bucket is not None and bucket.is_rebuilt else ()
        directory_id = directory.directory_id or self._new_directory_id
        asked = replace(who, cluster_id=cluster_id, directory_id=directory_id, lost_logs=lost, held_logs=held)
        if found is None or self._may_claim(found, asked, admission, sight):
            return await self._claim(asked, directory, admission, found, sight)
        return await self._ask(asked, directory, admission, found, sight)

    def _may_claim(self, found: Loaded, asked: SessionRequest, admission: Admittance, sight: LeaseSight) -> bool:
        if sight in FREE or found.controller is None or found.image.nodes.keys() <= {asked.node_id}:
            return True
        if self._controller_lease.stood_s < 2 * self._times.interval_s:
            return False
        # The lease does not change. The controller is dead if its port refuses too (D64), or if it served from this
        # directory, because this process holds the directory's lock. The lock alone proves nothing, because this may be
        # a copy of the controller's directory (D40).
        was_here = admission.verdict is Verdict.RESUME and found.controller.node_id == asked.node_id
        return was_here or self._not_there == found.epoch

    async def _claim(
        self,
        asked: SessionRequest,
        directory: DirectoryIdentity,
        admission: Admittance,
        found: Loaded | None,
        sight: LeaseSight,
    ) -> StartedSession:
        """Register without a controller. No controller is active, so this commit also claims the controller epoch."""
        replaced = None
        if found is not None and found.controller is not None and sight is not LeaseSight.RELEASED:
            replaced = found.controller.node_id
        self._gate.begin()  # before the claim, because other brokers measure this lease from the claim on
        controller = Controller(asked.node_id, asked.incarnation)
        first = await self._first_records() if found is None else ()
        at = await self._cluster.claim(
            asked.cluster_id, controller, lambda image: (*claim_records(image, asked, replaced), *first)
        )
        log.info("controller epoch %d: %s", self._cluster.epoch, admission.reason)
        return self._joined(asked, directory, admission, at)

    async def _ask(
        self,
        asked: SessionRequest,
        directory: DirectoryIdentity,
        admission: Admittance,
        found: Loaded,
        sight: LeaseSight,
    ) -> StartedSession | None:
        """Register with the controller. The session counts once it is read in the image."""
        mine = found.image.nodes.get(asked.node_id)
        if mine is not None and mine.active and mine.incarnation == asked.incarnation:
            return self._joined(asked, directory, admission, found.at)
        assert found.controller is not None
        node = found.image.nodes.get(found.controller.node_id)
        if node is None or node.node_id == asked.node_id:
            if sight is LeaseSight.MOVING:
                raise Refused(
                    f"node {asked.node_id} runs already and is the controller: it still renews its lease. Give this "
                    "broker another --node-id, or stop that process first; --take-over only if you know that it is dead"
                )
            still_s, moving_s = self._controller_lease.left_s()
            self._wait(
                "the end of the lease of this node's last process, which was the controller: this process takes over "
                f"in {still_s:.0f} s if the lease is not renewed, and refuses to start in {moving_s:.0f} s if it is"
            )
            return None
        self._gate.begin()
        last = NO_EPOCH if mine is None else mine.broker_epoch
        self._not_there = None
        # All ids are the same in a copy of a bucket, and lead to the original's controller.
        self._polls_soon = admission.verdict is not Verdict.RESUME and not self._controller_lease.has_moved
        question = replace(
            asked,
            previous_broker_epoch=last,
            lease_counter=self._controller_lease.counter,
            wants_bump=self._polls_soon,
        )
        try:
            controller = RemoteController(partial(self._links.to, node), self._times)
            await controller.register(question)
        except (ConnectionError, TimeoutError) as silent:
            if isinstance(silent, ConnectionRefusedError):
                self._not_there = found.epoch
            self._wait(f"the controller, broker {node.node_id}, to answer, or the end of its lease: {silent}")
            return None
        except ApiError as refused:
            self._refused(refused, found.epoch)
            return None
        at = (await self._cluster.poll()).at
        registered = at.image.nodes.get(asked.node_id)
        if registered is None or registered.incarnation != asked.incarnation or not registered.active:
            return None  # the session ended again, or the poll was older: try again
        return self._joined(asked, directory, admission, at)

    def _refused(self, refused: ApiError, controller_epoch: int) -> None:
        """Wait if the reason is temporary."""
        if refused.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            now = self._world.clock.monotonic_s()
            if self._duplicate is None or self._duplicate[0] != controller_epoch:
                self._duplicate = controller_epoch, now
            if now - self._duplicate[1] < self._times.duplicate_s:
                self._wait(f"the session of this node's other process to end: {refused}")
                return
            raise Refused(
                f"{refused} Stop that process, or give this broker another --node-id; --take-over only if you know "
                "that it is dead"
            ) from refused
        if refused.code in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REQUEST):
            raise Refused(str(refused)) from refused
        self._wait(f"the controller: {refused}")

    def _joined(
        self, asked: SessionRequest, directory: DirectoryIdentity, admission: Admittance, at: ImageAt
    ) -> StartedSession:
        session = at.image.nodes[asked.node_id]
        self._controller_lease.cluster_id = asked.cluster_id
        log.info("session of broker epoch %d: %s", session.broker_epoch, admission.reason)
        if asked.lost_logs:
            log.warning(
                "%d replicas here are gone, or may lack the last acknowledged records: they are copied from other "
                "brokers",
                len(asked.lost_logs),
            )
        identity = DirectoryIdentity(asked.cluster_id, asked.node_id, asked.directory_id, directory.has_logs)
        return StartedSession(identity, at, session.broker_epoch, admission.verdict, asked)

    def _wait(self, what: str) -> None:
        shown = f"waiting for {what}" if not what.startswith("watching") else what
        self._waits_for(shown)
        kind, now = re.sub(r"\d+", "", what), self._world.clock.monotonic_s()
        if kind != self._told[0] or now - self._told[1] >= _TELL_S:  # changed numbers alone are not logged
            self._told = kind, now
            log.info("not ready: %s", shown)
