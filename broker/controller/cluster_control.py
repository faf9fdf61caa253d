"""The controller's view of brokers: accepts registrations and heartbeats, and commits the end of silent sessions.

- A heartbeat is recorded first, before its other effects (D9). A response carries only committed state.
- A controller that cannot bump its lease does not end sessions. A controller that misses the heartbeats of more than
  half of the cluster releases its lease instead of ending sessions (R27). So does a controller that stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec.structs import replace

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
from broker.controller.sessions import ExpiredSessions, RivalControllers, Sessions
from broker.controller.unfit_brokers import UnfitBrokers
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.cluster_root import ClusterRoot, ImageAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import Node
from logformat.errors import ThermoclineError
from seams.world import World

log = logging.getLogger(__name__)

_REFUSED_S: Final = 1.0  # wait after a failed commit, before the next try
_BUMPS_BEHIND_MAX: Final = 2  # bumps between the broker's read of the lease and its request


class ClusterControl:
    """The requests of brokers, answered only while this broker is the controller. `refuses`: whether a node's port
    refuses connections. `step_back` releases the lease, `bump` bumps it at once."""

    def __init__(
        self,
        commit_queue: CommitQueue,
        root: ClusterRoot,
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
        self._lease_bumped_s = 0.0
        self._news = asyncio.Event()
        self._wake = asyncio.Event()
        self._unfit_brokers = UnfitBrokers(commit_queue, self._wake.set)
        self._rival_controllers = RivalControllers(float("-inf"), times)
        self.is_stopping = False
        """This broker stops: it has closed the connections of the heartbeats itself."""

    # ── calls of membership ──────────────────────────────────────────────────────────────────────────────────────
    def begin(self, at: ImageAt, *, is_sure: bool, claimed_s: float) -> None:
        """This process is the controller from `at` on. `is_sure`: this process released the lease and no other broker
        took it (R27). `claimed_s`: time of the claim or earlier, by the boot clock."""
        now = self._lease_bumped_s = self._clock.monotonic_s()
        self._rival_controllers = RivalControllers(claimed_s, self._times)
        self._sessions = Sessions(self._node_id, now, self._times, is_sure=is_sure)
        self._wake.set()
        self._commit_queue.activate(lambda: self.is_disputed)
        self.apply_image(at)

    def end(self) -> None:
        self._sessions = None
        self._unfit_brokers.clear()
        self._commit_queue.renounce()
        self._notify()

    def apply_image(self, at: ImageAt) -> None:
        self._at = at
        self._unfit_brokers.apply_image(at.image)
        if self._sessions is not None:
            self._sessions.follow(at.image, self._clock.monotonic_s())
        self._notify()

    @property
    def lease_bumped_s(self) -> float:
        """Time of this controller's last bump of the lease, by the monotonic clock."""
        return self._lease_bumped_s

    def lease_bumped(self, counter: int, sent_s: float) -> None:
        """The lease was bumped to `counter`, by a request sent at `sent_s` of the boot clock."""
        self._lease_counter, self._lease_bumped_s = counter, self._clock.monotonic_s()
        self._rival_controllers.bumped(sent_s, self._others, self._clock.boottime_s())

    @property
    def is_disputed(self) -> bool:
        return self._rival_controllers.may_have_claimed(self._others, self._clock.boottime_s())

    @property
    def _others(self) -> list[int]:
        assert self._at is not None
        nodes = self._at.image.nodes.values()
        return [node.node_id for node in nodes if node.active and node.node_id != self._node_id]

    # ── requests of brokers ──────────────────────────────────────────────────────────────────────────────────────
    async def register(self, asked: SessionRequest) -> int:
        self._there()
        if asked.node_id == self._node_id:
            raise ApiError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"broker {self._node_id} is the controller and is alive: give this broker another --node-id",
            )
        self._refuse_copies(asked)
        epoch = await self._commit_queue.decide(partial(self._register, asked=asked))
        log.info("broker %d has a session: broker epoch %d", asked.node_id, epoch)
        return epoch

    def _register(self, image: ClusterImage, asked: SessionRequest) -> Decision[int]:
        """Register the broker. The decision may wait long in the queue. It uses the heartbeats received up to the end
        of that wait."""
        sessions, now_s = self._there(), self._clock.monotonic_s()
        is_live, is_silent = sessions.is_live(asked.node_id, now_s), sessions.is_silent(asked.node_id, now_s)
        found = registrations.register(image, asked, self._cluster_id, is_live=is_live, is_silent=is_silent)
        if found.records:
            sessions.replaced(asked.node_id)
        return found

    def _refuse_copies(self, asked: SessionRequest) -> None:
        """Refuse a broker that reads a copy of this bucket: a copy has the same ids, but nobody bumps its lease. Right
        after a claim this controller does not know the counter. It then does not refuse a broker."""
        if asked.wants_bump:
            self._bump()
            raise ApiError(
                ErrorCode.NOT_CONTROLLER,
                f"the lease is being renewed; broker {asked.node_id} may join once it has read the new counter in "
                "lease.json",
            )
        ours, read = self._lease_counter, asked.lease_counter
        if read != NOT_READ and read < ours - _BUMPS_BEHIND_MAX:
            raise ApiError(
                ErrorCode.NOT_CONTROLLER,
                f"broker {asked.node_id} read counter {read} in lease.json, and this controller is at {ours}: broker "
                f"{asked.node_id} reads a copy of this cluster's bucket, or its bucket answers late; check its "
                "--bucket",
            )

    async def heartbeat(self, asked: SessionHeartbeat) -> SessionHeartbeatResponse:
        answer = await self._answer(asked)
        return replace(answer, boottime_ms=int(self._clock.boottime_s() * 1000))  # the time of sending (`AnsweredAt`)

    async def _answer(self, asked: SessionHeartbeat) -> SessionHeartbeatResponse:
        sessions = self._there()
        if not sessions.heartbeat(asked.node_id, asked.broker_epoch, self._clock.monotonic_s()):
            assert self._at is not None
            known = asked.node_id in self._at.image.nodes
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH if known else ErrorCode.BROKER_ID_NOT_REGISTERED,
                f"broker {asked.node_id} has no session of broker epoch {asked.broker_epoch}",
            )
        if asked.since.controller_epoch == self._commit_queue.epoch:
            self._rival_controllers.heartbeat(asked.node_id, asked.no_claim_s, asked.since.boottime_ms / 1000)
        if asked.wants_shutdown:
            await self._end(((asked.node_id, asked.broker_epoch),))
            log.info("broker %d left", asked.node_id)
            return SessionHeartbeatResponse(self._commit_queue.epoch, may_stop=True)
        is_new = self.record_fitness(asked.node_id, asked.broker_epoch, asked.fitness)
        await self._news_for(asked.position, until_moved=is_new)
        if self._sessions is None:
            raise not_controller()
        if self._is_away():
            if self.is_disputed:  # the broker may have a session with another controller
                return SessionHeartbeatResponse(self._commit_queue.epoch, is_disputed=True)
            return SessionHeartbeatResponse(self._commit_queue.epoch, store_away=True)
        newest = self._root.encoded
        root = None if newest is None or newest[0] <= asked.position else newest[1]
        return SessionHeartbeatResponse(self._commit_queue.epoch, root, lease_counter=self._lease_counter)

    # ── health reports ───────────────────────────────────────────────────────────────────────────────────────────
    def record_fitness(self, node_id: int, broker_epoch: int, fitness: Fitness) -> bool:
        """Record the health report of a session. Returns whether it is new. The consequences are decided at once
        (`leaderships_moved`)."""
        return self._unfit_brokers.record((node_id, broker_epoch), fitness)

    async def leaderships_moved(self) -> None:
        """Wait until no unfit broker leads a partition that a fitter one could lead. The caller bounds the wait."""
        while self._sessions is not None and not self._unfit_brokers.is_done:
            await self._news.wait()

    def unfit(self, image: ClusterImage) -> dict[int, Fitness]:
        return self._unfit_brokers.reports.unfit(image)

    def fitness(self, image: ClusterImage) -> dict[int, Fitness]:
        return self._unfit_brokers.reports.fitness(image)

    async def alter_partition(self, asked: ProposalsRequest) -> tuple[ErrorCode, ...]:
        self._there()
        return await self._commit_queue.decide(lambda image: alter_partition.decide(image, asked, self.fitness(image)))

    def closed(self, node_id: int, broker_epoch: int) -> None:
        if self._sessions is not None:
            self._sessions.closed(node_id, broker_epoch, self._clock.monotonic_s())
            self._wake.set()

    # ── silence ──────────────────────────────────────────────────────────────────────────────────────────────────
    async def keep(self) -> None:
        """End silent sessions and move leaderships off unfit brokers, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._next_check_s()):
                    await self._wake.wait()
            self._wake.clear()
            sessions = self._sessions
            if sessions is None:
                continue
            due = sessions.check(self._clock.monotonic_s())
            if not self._is_away():
                await self._apply(due)
            await asyncio.gather(*map(self._knock, due.knocks))  # reported once, even while the store does not answer

    async def _apply(self, due: ExpiredSessions) -> None:
        if due.steps_back:
            log.error("fewer than half of the brokers sent heartbeats: releasing the lease")
            self._step_back()
        elif due.ended and self.is_stopping:
            log.info("this broker is still stopping: releasing the lease, so that another broker decides")
            self._step_back()
        elif due.ended:
            await self._end_silent(due.ended)
        elif not self._unfit_brokers.is_done and await self._unfit_brokers.act():
            self._notify()

    async def _knock(self, session: SessionId) -> None:
        """End the session of a dead process at once."""
        assert self._at is not None
        node = self._at.image.nodes.get(session[0])
        if node is not None and await self._refuses(node) and self._sessions is not None:
            self._sessions.refused(*session, self._clock.monotonic_s())
            self._wake.set()

    def _next_check_s(self) -> float | None:
        """The loop time of the next check: the next beat, or the first session's expiry. None while this broker is not
        the controller.
        """
        if self._sessions is None:
            return None
        now_s = asyncio.get_running_loop().time()
        over_s = self._sessions.soonest_s(self._clock.monotonic_s())
        return min(self._beats.after(now_s), now_s + over_s)

    async def _end_silent(self, due: tuple[SessionId, ...]) -> None:
        def decide(image: ClusterImage) -> Decision[tuple[SessionId, ...]]:
            # A broker whose heartbeat was answered during the wait keeps its session, because it continues to lead
            # (R25).
            over = self._there().end(due, self._clock.monotonic_s())
            return Decision(registrations.end(image, over).records, over)

        try:
            ended = await self._commit_queue.decide(decide)
        except (ThermoclineError, OSError) as refused:
            log.warning(
                "the sessions of brokers %s expired, but their end is not committed yet: %s", _nodes(due), refused
            )
            await asyncio.sleep(_REFUSED_S)
        else:
            if ended:
                log.warning(
                    "brokers that sent no heartbeat: %s; their sessions ended, and other replicas lead "
                    "their partitions",
                    _nodes(ended),
                )

    async def _end(self, sessions: tuple[SessionId, ...]) -> None:
        await self._commit_queue.decide(lambda image: registrations.end(image, sessions))

    # ── parked heartbeats ────────────────────────────────────────────────────────────────────────────────────────
    async def _news_for(self, position: int, *, until_moved: bool) -> None:
        """Wait until the image is newer than `position`, or for as long as a heartbeat is parked. With `until_moved`,
        the wait also ends when the consequences of the heartbeat's report are decided."""
        with suppress(TimeoutError):
            now_s = asyncio.get_running_loop().time()
            async with asyncio.timeout_at(self._beats.until(now_s + self._times.parked_s, now_s)):
                while self._sessions is not None and (self._at is None or self._at.position <= position):
                    if until_moved and self._unfit_brokers.is_done:
                        return
                    await self._news.wait()

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _is_away(self) -> bool:
        return self._clock.monotonic_s() - self._lease_bumped_s > self._times.away_s

    def _there(self) -> Sessions:
        if self._sessions is None:
            raise not_controller()
        return self._sessions


def _nodes(sessions: tuple[SessionId, ...]) -> str:
    return ", ".join(str(node_id) for node_id, _ in sessions)
