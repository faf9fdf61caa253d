"""Who is there, as the controller keeps it: registrations and heartbeats taken, silences turned into commits.

Owns `Brokers` of this broker, and whether it is the one who may answer. Always true: a heartbeat is noted before
anything is done about it (D9); what leaves with an answer was seen committed before; a controller that cannot beat its
lease says so and ends nobody's session; one that hears fewer than half of the cluster gives its lease away before it
ends a session (R27). Must not know requests' bytes, what follows from how fit brokers are (unfit_brokers), nor who may
be the controller (membership).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from broker.config.times import ClusterTimes
from broker.controller.broker_rpc import (
    NOT_READ,
    ProposalsRequest,
    SessionHeartbeat,
    SessionHeartbeatResponse,
    SessionRequest,
)
from broker.controller.commit_queue import CommitQueue
from broker.controller.decisions import alter_partition, registrations
from broker.controller.decisions.decision import Decision, not_controller
from broker.controller.decisions.fitness import Fitness
from broker.controller.decisions.registrations import SessionId
from broker.controller.rival_controllers import RivalControllers
from broker.controller.sessions import ExpiredSessions, Sessions
from broker.controller.unfit_brokers import UnfitBrokers
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.cluster_root import ImageAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import Node
from logformat.errors import ThermoclineError
from seams.world import World

log = logging.getLogger(__name__)

_REFUSED_S: Final = 1.0  # after a commit that failed, before the next try
_BUMPS_BEHIND_MAX: Final = 2  # between the read of the lease and the question


class RootBytes(Protocol):
    """`broker.metadata.cluster_root.ClusterRoot`."""

    @property
    def encoded(self) -> tuple[int, bytes] | None: ...


class ClusterControl:
    """Of one broker; it answers only while it is the controller. `refuses`: whether nobody listens at a node's port.
    `step_back` gives the lease away, `bump` has it bumped at once."""

    def __init__(
        self,
        commit_queue: CommitQueue,
        root: RootBytes,
        world: World,
        node_id: int,
        cluster_id: str,
        times: ClusterTimes,
        *,
        refuses: Callable[[Node], Awaitable[bool]],
        step_back: Callable[[], None],
        bump: Callable[[], None],
    ) -> None:
        self._commit_queue = commit_queue
        self._root = root
        self._clock = world.clock
        self._beats = world.beats
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._times = times
        self._refuses = refuses
        self._step_back = step_back
        self._bump = bump
        self._sessions: Sessions | None = None
        self._at: ImageAt | None = None
        self._lease_counter = -1
        self._beaten_s = 0.0
        self._news = asyncio.Event()
        self._wake = asyncio.Event()
        self._unfit_brokers = UnfitBrokers(commit_queue, self._wake.set)
        self._rival_controllers = RivalControllers(float("-inf"), times)

    # ── what membership tells ────────────────────────────────────────────────────────────────────────────────────
    def begin(self, at: ImageAt, *, is_sure: bool, claimed_s: float) -> None:
        """This process is the controller from `at` on: every session there has its full time. `is_sure`: nobody took
        the lease that it gave away (R27). `claimed_s`: when this was claimed, or before, of the boot clock."""
        now = self._beaten_s = self._clock.monotonic_s()
        self._rival_controllers = RivalControllers(claimed_s, self._times)
        self._sessions = Sessions(self._node_id, now, self._times, is_sure=is_sure)
        self._wake.set()
        self._commit_queue.activate(lambda: self.is_disputed)
        self.obey(at)

    def end(self) -> None:
        """Another one decides."""
        self._sessions = None
        self._unfit_brokers.clear()
        self._commit_queue.renounce()
        self._tell()

    def obey(self, at: ImageAt) -> None:
        """This broker obeys `at`."""
        self._at = at
        self._unfit_brokers.obey(at.image)
        if self._sessions is not None:
            self._sessions.follow(at.image, self._clock.monotonic_s())
        self._tell()

    @property
    def beaten_s(self) -> float:
        """When this controller bumped the lease last; monotonic clock."""
        return self._beaten_s

    def beaten(self, counter: int, sent_s: float) -> None:
        """The lease was bumped to this, by what was sent at that time of the boot clock."""
        self._lease_counter, self._beaten_s = counter, self._clock.monotonic_s()
        self._rival_controllers.bumped(sent_s, self._others, self._clock.boottime_s())

    @property
    def is_disputed(self) -> bool:
        """Whether another broker may have claimed by now what this one decides."""
        return self._rival_controllers.may_have_claimed(self._others, self._clock.boottime_s())

    @property
    def _others(self) -> list[int]:
        assert self._at is not None
        nodes = self._at.image.nodes.values()
        return [node.node_id for node in nodes if node.active and node.node_id != self._node_id]

    # ── what brokers ask ─────────────────────────────────────────────────────────────────────────────────────────
    async def register(self, asked: SessionRequest) -> int:
        """See `Brokers`."""
        self._there()
        if asked.node_id == self._node_id:
            raise ApiError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"broker {self._node_id} is the controller and lives: give this one another --node-id",
            )
        self._refuse_copies(asked)
        epoch = await self._commit_queue.decide(partial(self._register, asked=asked))
        log.info("broker %d has a session: broker epoch %d", asked.node_id, epoch)
        return epoch

    def _register(self, image: ClusterImage, asked: SessionRequest) -> Decision[int]:
        """By who is heard when it is decided: it may have waited long."""
        sessions, now_s = self._there(), self._clock.monotonic_s()
        is_live, is_silent = sessions.is_live(asked.node_id, now_s), sessions.is_silent(asked.node_id, now_s)
        found = registrations.register(image, asked, self._cluster_id, is_live=is_live, is_silent=is_silent)
        if found.records:
            sessions.replaced(asked.node_id)
        return found

    def _refuse_copies(self, asked: SessionRequest) -> None:
        """Of who reads a copy of this bucket: the ids of cluster, nodes and sessions are the same there, but nobody
        bumps the lease. What we do not know ourselves yet, right after a claim, refuses nobody."""
        if asked.wants_bump:
            self._bump()
            raise ApiError(
                ErrorCode.NOT_CONTROLLER, f"its lease is bumped: where broker {asked.node_id} reads that, it may join"
            )
        ours, read = self._lease_counter, asked.lease_counter
        if read != NOT_READ and read < ours - _BUMPS_BEHIND_MAX:
            raise ApiError(
                ErrorCode.NOT_CONTROLLER,
                f"broker {asked.node_id} read counter {read} in lease.json, and this controller is at {ours}: its "
                "bucket is a copy of this cluster's, or answers late",
            )

    async def heartbeat(self, asked: SessionHeartbeat) -> SessionHeartbeatResponse:
        """See `Brokers`."""
        sessions = self._there()
        if not sessions.heard(asked.node_id, asked.broker_epoch, self._clock.monotonic_s()):
            assert self._at is not None
            known = asked.node_id in self._at.image.nodes
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH if known else ErrorCode.BROKER_ID_NOT_REGISTERED,
                f"broker {asked.node_id} has no session of broker epoch {asked.broker_epoch}",
            )
        self._rival_controllers.heard(asked.node_id, asked.no_claim_s, self._clock.boottime_s())
        if asked.wants_shutdown:
            await self._end(((asked.node_id, asked.broker_epoch),))
            log.info("broker %d left", asked.node_id)
            return SessionHeartbeatResponse(self._commit_queue.epoch, may_stop=True)
        is_new = self.told(asked.node_id, asked.broker_epoch, asked.fitness)
        await self._news_for(asked.position, until_settled=is_new)
        if self._sessions is None:
            raise not_controller()
        if self._is_away():
            if self.is_disputed:  # the asker is to rest nothing on this: it may be in session with another
                raise not_controller()
            return SessionHeartbeatResponse(self._commit_queue.epoch, store_away=True)
        newest = self._root.encoded
        root = None if newest is None or newest[0] <= asked.position else newest[1]
        return SessionHeartbeatResponse(self._commit_queue.epoch, root, lease_counter=self._lease_counter)

    # ── who is fit to lead ───────────────────────────────────────────────────────────────────────────────────────
    def told(self, node_id: int, broker_epoch: int, fitness: Fitness) -> bool:
        """This session says how fit it is to lead; whether that is new. What follows is decided at once (`settled`)."""
        return self._unfit_brokers.hear((node_id, broker_epoch), fitness)

    async def settled(self) -> None:
        """Wait until nobody unfit leads what somebody fitter could. The caller bounds the wait."""
        while self._sessions is not None and not self._unfit_brokers.is_settled:
            await self._news.wait()

    def unfit(self, image: ClusterImage) -> dict[int, Fitness]:
        """See `Told`."""
        return self._unfit_brokers.told.unfit(image)

    def said(self, image: ClusterImage) -> dict[int, Fitness]:
        """See `Told`."""
        return self._unfit_brokers.told.said(image)

    async def alter_partition(self, asked: ProposalsRequest) -> tuple[ErrorCode, ...]:
        """See `Brokers`."""
        self._there()
        return await self._commit_queue.decide(lambda image: alter_partition.decide(image, asked, self.said(image)))

    def closed(self, node_id: int, broker_epoch: int) -> None:
        """See `Brokers`."""
        if self._sessions is not None:
            self._sessions.closed(node_id, broker_epoch, self._clock.monotonic_s())
            self._wake.set()

    # ── silence ──────────────────────────────────────────────────────────────────────────────────────────────────
    async def keep(self) -> None:
        """Until cancelled: end the sessions of those that are silent, and see to those that are unfit."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._look_s()):
                    await self._wake.wait()
            self._wake.clear()
            sessions = self._sessions
            if sessions is None:
                continue
            due = sessions.look(self._clock.monotonic_s())
            if not self._is_away():
                await self._see_to(due)
            await asyncio.gather(*map(self._knock, due.knocks))  # due once, whether the store is away or not

    async def _see_to(self, due: ExpiredSessions) -> None:
        if due.steps_back:
            log.error("fewer than half of the brokers are heard here: giving the lease to whoever sees more")
            self._step_back()
        elif due.ended:
            await self._end_silent(due.ended)
        elif not self._unfit_brokers.is_settled and await self._unfit_brokers.settle():
            self._tell()

    async def _knock(self, session: SessionId) -> None:
        """A process that is gone is missed at once."""
        assert self._at is not None
        node = self._at.image.nodes.get(session[0])
        if node is not None and await self._refuses(node) and self._sessions is not None:
            self._sessions.refused(*session, self._clock.monotonic_s())
            self._wake.set()

    def _look_s(self) -> float | None:
        """When to look again, of the loop's time: at the next beat, or when the first session's time is over; None:
        when this broker decides."""
        if self._sessions is None:
            return None
        now_s = asyncio.get_running_loop().time()
        over_s = self._sessions.soonest_s(self._clock.monotonic_s())
        return min(self._beats.after(now_s), now_s + over_s)

    async def _end_silent(self, due: tuple[SessionId, ...]) -> None:
        def decide(image: ClusterImage) -> Decision[tuple[SessionId, ...]]:
            # Who was heard while this waited stays: it rests on that answer that nobody leads what it leads (R25).
            over = self._there().end(due, self._clock.monotonic_s())
            return Decision(registrations.end(image, over).records, over)

        try:
            ended = await self._commit_queue.decide(decide)
        except (ThermoclineError, OSError) as refused:
            log.warning("the sessions of brokers %s are over and cannot be ended: %s", _nodes(due), refused)
            await asyncio.sleep(_REFUSED_S)
        else:
            if ended:
                log.warning("silent, so the session ended and others lead what it led: broker %s", _nodes(ended))

    async def _end(self, sessions: tuple[SessionId, ...]) -> None:
        await self._commit_queue.decide(lambda image: registrations.end(image, sessions))

    # ── parked heartbeats ────────────────────────────────────────────────────────────────────────────────────────
    async def _news_for(self, position: int, *, until_settled: bool) -> None:
        """Until there is a newer image than that of `position`, or for as long as a heartbeat waits. `until_settled`:
        the asker wants to know what became of what it said, no more."""
        with suppress(TimeoutError):
            now_s = asyncio.get_running_loop().time()
            async with asyncio.timeout_at(self._beats.until(now_s + self._times.parked_s, now_s)):
                while self._sessions is not None and (self._at is None or self._at.position <= position):
                    if until_settled and self._unfit_brokers.is_settled:
                        return
                    await self._news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _is_away(self) -> bool:
        return self._clock.monotonic_s() - self._beaten_s > self._times.away_s

    def _there(self) -> Sessions:
        if self._sessions is None:
            raise not_controller()
        return self._sessions


def _nodes(sessions: tuple[SessionId, ...]) -> str:
    return ", ".join(str(node_id) for node_id, _ in sessions)
